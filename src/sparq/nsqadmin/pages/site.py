"""The routes of nsqadmin's pages: views by path, forms, live parts, static files.

Browsers must not store a page: it shows the current state of the cluster, and it may show data that
only its reader may see.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from aiohttp import web

from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqadmin.options import base_of
from sparq.nsqadmin.pages import acting, cluster, connections, messages, policies, topics
from sparq.nsqadmin.pages.assets import assets
from sparq.nsqadmin.pages.live import Live, mark
from sparq.nsqadmin.pages.page_request import PageRequest, Viewer
from sparq.nsqadmin.pages.rendering import Renderer
from sparq.nsqadmin.pages.words import in_words
from sparq.nsqadmin.services import Services

VIEWERS: Final[dict[str, Viewer]] = {
    "/": cluster.overview,
    "/topics": topics.topics,
    "/topics/:topic": topics.topic,
    "/topics/:topic/:channel": topics.channel,
    "/connections": connections.connections,
    "/connection": connections.connection,
    "/nodes": cluster.nodes,
    "/nodes/:node": cluster.node,
    "/messages": messages.messages,
    "/message": messages.message,
    "/replay": messages.replay,
    "/dead-letters": messages.dead_letters,
    "/policies": policies.policies,
    "/counter": cluster.counter,
    "/lookup": cluster.lookup,
    "/audit": cluster.audit,
}
FORMS: Final[dict[str, acting.Form]] = {
    "/topics/:topic": acting.on_topic,
    "/topics/:topic/:channel": acting.on_channel,
    "/connection": acting.on_connection,
    "/nodes/:node": acting.on_node,
    "/lookup": acting.on_lookup,
    "/messages": acting.on_messages,
    "/replay": acting.on_replay,
    "/dead-letters": acting.on_messages,
}
NEXT_SECONDS: Final = 2.5
HTML: Final = "text/html; charset=utf-8"


def routes(services: Services) -> list[Route]:
    """List the routes of the pages."""
    renderer = Renderer(services, assets())
    live = Live(services, renderer, VIEWERS)
    own = [
        Route("GET", "/live", live.stream, log=False),
        Route("GET", "/static/:name", assets().serve, log=False),
        Route("GET", "/favicon.ico", partial(assets().serve, name="icon.svg"), log=False),
        Route("GET", "/signin", lambda call: _sign_in(services, renderer, call)),
    ]
    shown = [Route("GET", path, _page(renderer, live)) for path in VIEWERS]
    posted = [
        Route("POST", path, acting.handler(services, renderer, form))
        for path, form in FORMS.items()
    ]
    changed = Route("POST", "/policies", policies.handler(services, renderer))
    dismissed = Route("POST", "/nodes/:node/dismiss", acting.dismissal(services, renderer))
    publish = acting.handler(services, renderer, acting.on_publish)
    published = Route("POST", "/publish", publish)
    return [*own, *shown, *posted, changed, dismissed, published]


def error(services: Services, request: web.BaseRequest, status: int, code: str) -> web.Response:
    """Render an error page; for a form on a page, a notice on that page."""
    is_sign_in = status == 401 and request.path == services.url("/signin")
    title, sentence, hint = in_words(status, "WRONG_TOKEN" if is_sign_in else code)
    renderer = Renderer(services, assets())
    if "HX-Request" in request.headers and request.method == "POST":
        return acting.notice(renderer, "bad", f"{sentence} {hint}", status=status)
    wanted = request.path_qs if request.method == "GET" else ""
    text = renderer.error(services.access.identify(request), title, sentence, hint, wanted)
    return _html(text, status)


def _page(renderer: Renderer, live: Live) -> Callable[[Call], Awaitable[web.Response]]:
    async def handle(call: Call) -> web.Response:
        path = call.path.removeprefix(base_of(live.services.options)) or "/"
        page_request, viewer = await live.resolve(call, path, call.query)
        page_request = dataclasses.replace(page_request, is_opened=True)
        view = await viewer(page_request)
        if view.status == 404:  # it may be so new that only the next snapshot has it
            page_request = await _with_next_snapshot(page_request)
            view = await viewer(page_request)
        seen = mark(renderer.live(page_request, view)) if view.is_live else ""
        return _html(renderer.page(page_request, view, seen), view.status)

    return handle


async def _with_next_snapshot(page_request: PageRequest) -> PageRequest:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NEXT_SECONDS):
            snapshot = await page_request.services.watch.changed(page_request.snapshot.number)
            return dataclasses.replace(page_request, snapshot=snapshot)
    return page_request


def _html(text: str, status: int = 200) -> web.Response:
    headers = {"Cache-Control": "no-store", "Content-Type": HTML}
    return web.Response(text=text, status=status, headers=headers)


def _sign_in(services: Services, renderer: Renderer, call: Call) -> web.Response:
    if not services.access.uses_tokens:
        raise HttpError(404, "NO_TOKENS")
    identity = services.access.identify(call.request)
    return _html(renderer.sign_in(identity, call.query.get("to", "")))
