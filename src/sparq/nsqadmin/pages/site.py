"""The routes of nsqadmin's pages: views by path, forms, static files, and the live parts.

1. Browsers must not store a page: it shows the current state of the cluster, and it may show data
   that only its reader may see.
2. Live parts: `GET /live?view=PAGE` is a stream of server-sent events, one per visible tab. Each
   snapshot of the cluster is rendered once for all viewers of the same page with the same rights.
3. An event has a page's whole live part, and is sent only if the part differs from what the browser
   has. The mark of the part is the event's id, which the browser sends when it reconnects.
4. Browsers open six connections to a host over HTTP/1.1. So a browser gets at most `STREAMS_MAX`
   streams. Further tabs poll: their stream sends `retry` and ends after one event.
5. A stream ends after some minutes, so that rights are checked again. If a page can no longer be
   shown (its node was forgotten), the page gets a sentence about it; the stream does not fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiohttp import web

from sparq.daemon.access.rules import Role
from sparq.daemon.http import Call, HttpError, Route, RouteTable, parse_query, unquote_path
from sparq.nsqadmin.access import AdminRoute
from sparq.nsqadmin.actions import ROLES
from sparq.nsqadmin.pages import cluster, forms, messages, policies
from sparq.nsqadmin.pages.rendering import PageRequest, Renderer, Viewer, html, serve_asset
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot
from sparq.nsqadmin.words import in_words

VIEWERS: Final[dict[str, Viewer]] = {
    "/": partial(cluster.plain, "overview.html", "Overview"),
    "/topics": cluster.topics,
    "/topics/:topic": cluster.topic,
    "/topics/:topic/:channel": cluster.channel,
    "/connections": cluster.connections,
    "/connection": cluster.connection,
    "/nodes": cluster.nodes,
    "/nodes/:node": cluster.node,
    "/messages": messages.messages,
    "/message": messages.message,
    "/replay": messages.replay,
    "/dead-letters": messages.dead_letters,
    "/policies": policies.policies,
    "/counter": partial(cluster.plain, "counter.html", "Counter"),
    "/lookup": cluster.lookup,
    "/audit": cluster.audit,
}
"""The pages. Each needs the role `read`: it shows no message bodies without the role for them."""

NEEDS_MORE: Final = {"/audit": Role.ADMINISTER}
"""Pages that need another role."""

FORMS: Final[dict[str, tuple[Role, forms.FormHandler]]] = {
    # The role that all actions of the page need at least.
    **{
        path: (reduce(and_, map(ROLES.__getitem__, actions)), partial(forms.act, path))
        for path, actions in forms.OFFERED.items()
    },
    "/policies": (Role.ADMINISTER, policies.act),
    "/nodes/:node/dismiss": (Role.OPERATE, forms.dismiss),
}
"""The routes to which pages send forms."""

NOT_HTML: Final = ("/api", "/config", "/metrics", "/ping", "/static")
NEXT_SECONDS: Final = 2.5
STREAMS_MAX: Final = 3
"""Out of six connections, so that some are left for pages, actions and polls of other tabs."""

STREAM_SECONDS: Final = 300.0
BEAT_SECONDS: Final = 15.0
POLL_MILLISECONDS: Final = 600
"""A poll is answered at once, mostly with the event `same`; htmx waits up to 1.3 times as long."""

AGAIN_MILLISECONDS: Final = 500
KEPT_MAX: Final = 512
COOKIE: Final = "nsqadmin_tabs"


def routes(services: Services) -> list[AdminRoute]:
    """List the routes of the pages."""
    renderer = Renderer(services)
    pages = Pages(renderer)

    async def sign_in(call: Call) -> web.Response:
        if not services.access.uses_tokens:
            raise HttpError(404, "NO_TOKENS")
        caller, to = services.access.decide(call.request), call.query.get("to", "")
        return renderer.alone("signin.html", caller, title="Sign in", to=to)

    icon = partial(serve_asset, name="icon.svg")
    return [
        AdminRoute(Role.READ, "GET", "/live", pages.stream, log=False),
        AdminRoute(Role.NONE, "GET", "/static/:name", serve_asset, log=False),
        AdminRoute(Role.NONE, "GET", "/favicon.ico", icon, log=False),
        AdminRoute(Role.NONE, "GET", "/signin", sign_in),
        *(AdminRoute(role_of(path), "GET", path, pages.open) for path in VIEWERS),
        *(
            AdminRoute(role, "POST", path, partial(handle, renderer))
            for path, (role, handle) in FORMS.items()
        ),
    ]


def role_of(path: str) -> Role:
    """The role that the page with this path needs."""
    return NEEDS_MORE.get(path, Role.READ)


def error(services: Services, request: web.BaseRequest, refused: HttpError) -> web.Response | None:
    """The answer to a browser's refused request; None: NSQ's JSON is the answer.

    It is an error page; for a form on a page, a notice on that page.
    """
    path = request.path.removeprefix(services.url(""))
    if "text/html" not in request.headers.get("Accept", "") or path.startswith(NOT_HTML):
        return None
    is_sign_in = refused.status == 401 and path == "/signin"
    status, code = refused.status, "WRONG_TOKEN" if is_sign_in else refused.code
    renderer = Renderer(services)
    if "HX-Request" in request.headers and request.method == "POST":
        return forms.refusal(renderer, HttpError(status, code))
    title, sentence, hint = in_words(status, code)
    facts = {"title": title, "sentence": sentence, "hint": hint}
    facts["wanted"] = request.path_qs if request.method == "GET" else ""
    return renderer.alone("error.html", services.access.decide(request), status, **facts)


class Pages:
    """The pages of one nsqadmin, and their streams."""

    def __init__(self, renderer: Renderer) -> None:
        self._services, self._renderer = renderer.services, renderer
        # Views are not handlers of requests; the table is only used to look them up.
        self._table = RouteTable(
            Route("GET", path, cast(Any, viewer)) for path, viewer in VIEWERS.items()
        )
        self._kept: OrderedDict[tuple[object, ...], tuple[int, asyncio.Task[str]]] = OrderedDict()
        self._streams: Counter[str] = Counter()

    async def _resolve(
        self, call: Call, path: str, query: Mapping[str, str]
    ) -> tuple[PageRequest, Viewer]:
        """Find the view of a page, and check that the sender may see it.

        Raises:
            HttpError: 404 if there is no such page; 401 or 403 if the sender may not see it.
        """
        found = self._table.find(path)
        if found is None:
            raise HttpError(404, "NOT_FOUND")
        services, route = self._services, found.methods["GET"]
        caller = services.access.require(call.request, role_of(route.path))
        snapshot = await services.watch.current()
        page_request = PageRequest(services, caller, path, found.parameters, query, snapshot)
        return page_request, cast(Viewer, route.handler)

    async def open(self, call: Call) -> web.Response:
        """Answer with a whole page."""
        path = call.path.removeprefix(self._services.url("")) or "/"
        page_request, viewer = await self._resolve(call, path, call.query)
        page_request = replace(page_request, is_opened=True)
        view = await viewer(page_request)
        if view.status == 404:  # it may be so new that only the next snapshot has it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NEXT_SECONDS):
                    snapshot = await self._services.watch.changed(page_request.snapshot.number)
                page_request = replace(page_request, snapshot=snapshot)
                view = await viewer(page_request)
        seen = mark(self._renderer.live(page_request, view)) if view.is_live else ""
        return html(self._renderer.page(page_request, view, seen), view.status)

    async def stream(self, call: Call) -> web.StreamResponse:
        """Answer `GET /live`."""
        view = urlsplit(call.query.get("view", ""))
        page_request, viewer = await self._resolve(
            call, unquote_path(view.path), parse_query(view.query)
        )
        browser = call.request.cookies.get(COOKIE, "")[:64]
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if not browser:
            browser = secrets.token_urlsafe(12)
            path = self._services.url("/")
            headers["Set-Cookie"] = f"{COOKIE}={browser}; Path={path}; HttpOnly; SameSite=Strict"
        seen = call.request.headers.get("Last-Event-ID", "") or call.query.get("seen", "")
        polls = self._streams[browser] >= STREAMS_MAX
        again = POLL_MILLISECONDS if polls else AGAIN_MILLISECONDS
        now = asyncio.get_running_loop().time
        until = now() if polls else now() + STREAM_SECONDS
        response = await call.stream("text/event-stream; charset=utf-8", headers)
        self._streams[browser] += 1
        try:
            while True:
                part = await self._part(page_request, viewer)
                if mark(part) == seen:
                    # `retry` needs a message; the page has no listener for the event `same`.
                    event = f"event: same\nretry: {again}\ndata:\n\n"
                else:
                    # Each line needs its own `data:`; the browser joins them.
                    data, seen = "\ndata: ".join(part.splitlines()), mark(part)
                    event = f"id: {seen}\nretry: {again}\ndata: {data}\n\n"
                await response.write(event.encode())
                if now() >= until:
                    break
                snapshot = await self._next(call.request, response, page_request.snapshot.number)
                if snapshot is None:
                    break
                page_request = replace(page_request, snapshot=snapshot)
        except ConnectionError:
            pass  # the browser has disconnected
        finally:
            self._streams[browser] -= 1
            self._streams += Counter()  # removes browsers without streams
        return response

    async def _next(
        self, request: web.BaseRequest, response: web.StreamResponse, after: int
    ) -> ClusterSnapshot | None:
        """Wait for the next snapshot; None: the browser has disconnected."""
        while request.transport is not None and not request.transport.is_closing():
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    return await self._services.watch.changed(after)
            except TimeoutError:
                # A comment keeps proxies from closing the stream.
                await response.write(b": still here\n\n")
        return None

    async def _part(self, page_request: PageRequest, viewer: Viewer) -> str:
        """The live part of a page, rendered once per snapshot (rule 2)."""

        async def render() -> str:
            try:
                return self._renderer.live(page_request, await viewer(page_request))
            except HttpError as error:
                return self._renderer.fragment("gone.html", sentence=error.code).text or ""

        query = tuple(sorted(page_request.query.items()))
        key = (page_request.path, query, page_request.caller.grants)
        # A task is kept, not its text: viewers who come while it renders wait for the same task.
        kept = self._kept.pop(key, None)
        if kept is None or kept[0] != page_request.snapshot.number:
            kept = page_request.snapshot.number, asyncio.create_task(render())
        self._kept[key] = kept
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        # Shielded, so that one viewer's disconnect does not cancel it for the others.
        return await asyncio.shield(kept[1])


def mark(part: str) -> str:
    """A short hash of a text."""
    return hashlib.blake2b(part.encode(), digest_size=9).hexdigest()
