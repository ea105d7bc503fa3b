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
from sparq.nsqadmin.pages import cluster, connections, forms, messages, policies, topics
from sparq.nsqadmin.pages.assets import assets
from sparq.nsqadmin.pages.live import Live, mark
from sparq.nsqadmin.pages.page_request import Viewer
from sparq.nsqadmin.pages.rendering import Renderer, html
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
NEXT_SECONDS: Final = 2.5


def routes(services: Services) -> list[Route]:
    """List the routes of the pages."""
    renderer = Renderer(services, assets())
    live = Live(services, renderer, VIEWERS)

    return [
        Route("GET", "/live", live.stream, log=False),
        Route("GET", "/static/:name", assets().serve, log=False),
        Route("GET", "/favicon.ico", partial(assets().serve, name="icon.svg"), log=False),
        Route("GET", "/signin", lambda call: _sign_in(services, renderer, call)),
        *(Route("GET", path, _page(renderer, live)) for path in VIEWERS),
        *(
            Route("POST", path, forms.handler(renderer, partial(forms.act, path)))
            for path in forms.OFFERED
        ),
        Route("POST", "/policies", forms.handler(renderer, policies.act)),
        Route("POST", "/nodes/:node/dismiss", forms.handler(renderer, forms.dismiss)),
    ]


def error(services: Services, request: web.BaseRequest, status: int, code: str) -> web.Response:
    """Render an error page; for a form on a page, a notice on that page."""
    is_sign_in = status == 401 and request.path == services.url("/signin")
    code = "WRONG_TOKEN" if is_sign_in else code
    renderer = Renderer(services, assets())
    if "HX-Request" in request.headers and request.method == "POST":
        return forms.refusal(renderer, HttpError(status, code))
    wanted = request.path_qs if request.method == "GET" else ""
    title, sentence, hint = in_words(status, code)
    facts = {"title": title, "sentence": sentence, "hint": hint, "wanted": wanted}
    identity = services.access.identify(request)
    return html(renderer.alone("error.html", identity, **facts), status)


def _page(renderer: Renderer, live: Live) -> Callable[[Call], Awaitable[web.Response]]:
    async def handle(call: Call) -> web.Response:
        path = call.path.removeprefix(base_of(live.services.options)) or "/"
        page_request, viewer = await live.resolve(call, path, call.query)
        page_request = dataclasses.replace(page_request, is_opened=True)
        view = await viewer(page_request)
        if view.status == 404:  # it may be so new that only the next snapshot has it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NEXT_SECONDS):
                    snapshot = await live.services.watch.changed(page_request.snapshot.number)
                page_request = dataclasses.replace(page_request, snapshot=snapshot)
                view = await viewer(page_request)
        seen = mark(renderer.live(page_request, view)) if view.is_live else ""
        return html(renderer.page(page_request, view, seen), view.status)

    return handle


def _sign_in(services: Services, renderer: Renderer, call: Call) -> web.Response:
    if not services.access.uses_tokens:
        raise HttpError(404, "NO_TOKENS")
    identity = services.access.identify(call.request)
    to = call.query.get("to", "")
    return html(renderer.alone("signin.html", identity, title="Sign in", to=to))
