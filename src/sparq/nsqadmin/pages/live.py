"""Live parts of pages: `GET /live?view=PAGE`, one stream of server-sent events per visible tab.

1. Each snapshot of the cluster is rendered once for all viewers of the same page with the same
   rights.
2. An event has a page's whole live part, and is sent only if the part differs from what the browser
   has. The mark of the part is the event's id, which the browser sends when it reconnects.
3. Browsers open six connections to a host over HTTP/1.1. So a browser gets at most `STREAMS_MAX`
   streams. Further tabs poll: their stream sends `retry` and ends after one event.
4. A stream ends after some minutes, so that rights are checked again. If a page can no longer be
   shown (its node was forgotten), the page gets a sentence about it; the stream does not fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiohttp import web

from sparq.daemon.http import Call, HttpError, Route, parse_query, unquote_path
from sparq.daemon.routes import RouteTable
from sparq.nsqadmin.access import right_of
from sparq.nsqadmin.pages.page_request import PageRequest, Viewer
from sparq.nsqadmin.pages.rendering import Renderer
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot

STREAMS_MAX: Final = 3
"""Out of six connections, so that some are left for pages, actions and polls of other tabs."""
STREAM_SECONDS: Final = 300.0
BEAT_SECONDS: Final = 15.0
POLL_MILLISECONDS: Final = 600
"""A poll is answered at once, mostly with the event `same`; htmx waits up to 1.3 times as long."""

AGAIN_MILLISECONDS: Final = 500
KEPT_MAX: Final = 512
EVENTS: Final = "text/event-stream; charset=utf-8"
COOKIE: Final = "nsqadmin_tabs"

logger = logging.getLogger(__name__)


class Live:
    """The streams of one nsqadmin."""

    def __init__(
        self, services: Services, renderer: Renderer, viewers: Mapping[str, Viewer]
    ) -> None:
        """`viewers`: views by path; parts of a path may be parameters."""
        self.services = services
        self._renderer = renderer
        # Views are not handlers of requests; the table is only used to look them up.
        routes = (Route("GET", path, cast(Any, viewer)) for path, viewer in viewers.items())
        self._table = RouteTable(routes)
        self._kept: OrderedDict[tuple[object, ...], tuple[int, asyncio.Task[str]]] = OrderedDict()
        self._streams: Counter[str] = Counter()

    async def resolve(
        self, call: Call, path: str, query: Mapping[str, str]
    ) -> tuple[PageRequest, Viewer]:
        """Find the view of a page, and check that the sender may see it.

        Raises:
            HttpError: 404 if there is no such page; 401 or 403 if the sender may not see it.
        """
        found = self._table.find(path)
        if found is None:
            raise HttpError(404, "NOT_FOUND")
        route = found.methods["GET"]
        identity = self.services.access.require(call.request, right_of("GET", route.path).role)
        snapshot = await self.services.watch.current()
        page_request = PageRequest(self.services, identity, path, found.parameters, query, snapshot)
        return page_request, cast(Viewer, route.handler)

    async def part(self, page_request: PageRequest, viewer: Viewer) -> str:
        """The live part of a page, rendered once per snapshot (rule 1)."""
        identity = page_request.identity
        key = (page_request.path, tuple(sorted(page_request.query.items())), int(identity.roles))
        # A task is kept, not its text: viewers who come while it renders wait for the same task.
        kept = self._kept.pop(key, None)
        if kept is None or kept[0] != page_request.snapshot.number:
            kept = (
                page_request.snapshot.number,
                asyncio.create_task(self._render(page_request, viewer)),
            )
        self._kept[key] = kept
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        # Shielded, so that one viewer's disconnect does not cancel it for the others.
        return await asyncio.shield(kept[1])

    async def _render(self, page_request: PageRequest, viewer: Viewer) -> str:
        try:
            view = await viewer(page_request)
        except HttpError as error:
            return self._renderer.fragment("gone.html", sentence=error.code)
        return self._renderer.live(page_request, view)

    async def stream(self, call: Call) -> web.StreamResponse:
        """Answer `GET /live`."""
        view = urlsplit(call.query.get("view", ""))
        page_request, viewer = await self.resolve(
            call, unquote_path(view.path), parse_query(view.query)
        )
        browser = call.request.cookies.get(COOKIE, "")[:64]
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if not browser:
            browser = secrets.token_urlsafe(12)
            base = self.services.url("/")
            headers["Set-Cookie"] = f"{COOKIE}={browser}; Path={base}; HttpOnly; SameSite=Strict"
        seen = call.request.headers.get("Last-Event-ID", "") or call.query.get("seen", "")
        if self._streams[browser] >= STREAMS_MAX:
            response = await call.stream(EVENTS, headers)
            with contextlib.suppress(ConnectionError):
                await self._send(response, page_request, viewer, seen, POLL_MILLISECONDS)
            return response
        self._streams[browser] += 1
        try:
            response = await call.stream(EVENTS, headers)
            await self._follow(call.request, response, page_request, viewer, seen)
        except ConnectionError:
            pass  # the browser has disconnected
        finally:
            self._streams[browser] -= 1
            self._streams += Counter()  # removes browsers without streams
        return response

    async def _follow(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        page_request: PageRequest,
        viewer: Viewer,
        seen: str,
    ) -> None:
        until = asyncio.get_running_loop().time() + STREAM_SECONDS
        while not _is_left(request) and asyncio.get_running_loop().time() < until:
            seen = await self._send(response, page_request, viewer, seen, AGAIN_MILLISECONDS)
            snapshot = await self._next(request, response, page_request.snapshot)
            page_request = dataclasses.replace(page_request, snapshot=snapshot)

    async def _next(
        self, request: web.BaseRequest, response: web.StreamResponse, last: ClusterSnapshot
    ) -> ClusterSnapshot:
        """Wait for the next snapshot; meanwhile, comments keep proxies from closing the stream."""
        while not _is_left(request):
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    return await self.services.watch.changed(last.number)
            except TimeoutError:
                await response.write(b": still here\n\n")
        return last

    async def _send(
        self,
        response: web.StreamResponse,
        page_request: PageRequest,
        viewer: Viewer,
        seen: str,
        again: int,
    ) -> str:
        """Send the live part if it differs from what the browser has; returns its mark."""
        part = await self.part(page_request, viewer)
        if mark(part) == seen:
            # `retry` needs a message; the page has no listener for the event `same`.
            await response.write(f"event: same\nretry: {again}\ndata:\n\n".encode())
            return seen
        # A line end would end the field: each line needs its own `data:`, and the browser joins
        # them.
        data = "\n".join(f"data: {line}" for line in part.splitlines())
        await response.write(f"id: {mark(part)}\nretry: {again}\n{data}\n\n".encode())
        return mark(part)


def mark(part: str) -> str:
    """A short hash of a text."""
    return hashlib.blake2b(part.encode(), digest_size=9).hexdigest()


def _is_left(request: web.BaseRequest) -> bool:
    """Whether the browser has disconnected."""
    return request.transport is None or request.transport.is_closing()
