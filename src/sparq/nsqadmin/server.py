"""One nsqadmin: its parts put together, its port, its life once it listens.

1. A route is served only with its row in the table of rights (`access.rights`), and what that row
   wants is asked for before its handler: a route that nobody thought of ends the start.
2. It keeps nothing that it needs: after a restart it knows what its daemons tell, and its log.
3. SIGHUP takes other nsqlookupds, rights and tokens, and the log level.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import aiohttp
from aiohttp import web

from sparq.cluster.fleet import Fleet
from sparq.cluster.reach import Reach
from sparq.cluster.upstream import Upstream, UpstreamError
from sparq.daemon import files, token
from sparq.daemon import reload as hangup
from sparq.daemon.address import Listener, listen
from sparq.daemon.http import Call, HttpError, Route, Site
from sparq.nsqadmin import metrics, upstream_tls
from sparq.nsqadmin.access import LIVE, SECURE_HEADERS, Access, Audit, right_of
from sparq.nsqadmin.actions import Actions
from sparq.nsqadmin.api import site as api
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.notify import Notifier
from sparq.nsqadmin.options import Options, base_of, check
from sparq.nsqadmin.pages import site as pages
from sparq.nsqadmin.v2 import site as v2
from sparq.nsqadmin.watch.watch import Watch
from sparq.program import lifecycle
from sparq.program.lifecycle import StartError
from sparq.protocol.durations import SECOND
from sparq.protocol.names import is_valid_name

ROOMS: Final[Sequence[Callable[[Desk], Sequence[Route]]]] = (
    api.routes,
    v2.routes,
    pages.routes,
)
"""The routes of each package, one function a line."""

HTML_ERRORS: Final[Sequence[Callable[[Desk, web.BaseRequest, int, str], web.Response | None]]] = (
    pages.error,
)
"""Who has a page for a refused request; the first one that has it counts."""

NOT_HTML: Final = ("/api", "/config", "/metrics", "/ping", "/static")

RELOADED: Final = ("log_level", "verbose", "lookupd_http_addresses")
"""Options that SIGHUP changes, besides those of rights (`access.LIVE`)."""

OWN_FILES: Final = 256
"""Open files that are no connection of a client's: its own, and those to nsqds."""

CONNECTIONS_MIN: Final = 16

logger = logging.getLogger(__name__)


class Nsqadmin:
    """One nsqadmin, from `start` to `stop`."""

    def __init__(self, options: Options) -> None:
        """Raises StartError: an option that it cannot run with."""
        seconds = options.http_client_request_timeout_ns / SECOND
        connect = options.http_client_connect_timeout_ns / SECOND
        tls = upstream_tls.context(options)
        upstream = Upstream(
            connect_seconds=connect,
            request_seconds=seconds,
            tls=tls,
            token=token.resolve(options.upstream_token, "--upstream-token"),
        )
        fleet = _fleet(upstream, options)
        audit = Audit(options.audit_log, _publisher(fleet, options.audit_topic))
        access = Access(options, audit)
        timeout = aiohttp.ClientTimeout(total=seconds, connect=connect)
        self._notifier = Notifier(options.notification_http_endpoint, timeout, tls)
        actions = Actions(fleet, access, audit, self._notifier)
        self.desk = Desk(options, upstream, fleet, access, audit, actions, Watch(fleet))
        self._stack = contextlib.AsyncExitStack()
        self._listener: Listener | None = None
        self.site: Site | None = None
        self.http_port = 0

    async def start(self, listener: Listener | None = None) -> None:
        """Answer at this socket; without it at the options' address.

        Raises:
            ListenError: the address cannot be had.
        """
        desk, options = self.desk, self.desk.options
        self._listener = listener or listen(options.http_address)
        self.http_port = self._listener.port
        await self._stack.enter_async_context(desk.upstream)
        await self._stack.enter_async_context(desk.watch)
        self.site = Site(
            routes(desk),
            desk.access.gate,
            options.http_connections or _connections(),
            request_seconds=options.http_request_timeout_ns / SECOND,
            base=base_of(options),
            headers=SECURE_HEADERS,
            compresses=True,
            words=lambda request, error: _page_of(desk, request, error),
        )
        await self.site.start(self._listener)
        logger.info("HTTP: listening on %s", self._listener.text)

    async def stop(self) -> None:
        """Stop listening, end what is being answered, tell and write down what waits."""
        if self._listener is not None:
            self._listener.close()
        if self.site is not None:
            await self.site.stop()
        await self._notifier.close()
        await self.desk.audit.close()
        await self._stack.aclose()
        logger.info("bye")

    def reload(self, wanted: Options) -> None:
        """Make true what a configuration file says now."""
        try:
            check(wanted)
        except StartError as error:
            logger.error("SIGHUP: nothing is changed: %s", error)
            return
        desk = self.desk
        live = (*RELOADED, *(LIVE if desk.access.reload(wanted) else ()))
        hangup.take(desk.options, wanted, live)
        desk.options = dataclasses.replace(
            desk.options, **{name: getattr(wanted, name) for name in live}
        )
        desk.fleet.look_at(desk.options.lookupd_http_addresses)


def routes(desk: Desk) -> list[Route]:
    """All routes, each behind the right that it needs.

    Raises:
        LookupError: a route has no row in the table of rights.
    """
    access = desk.access

    def ping(_call: Call) -> str:
        return "OK"

    own = [
        Route("GET", "/ping", ping, plain=True),
        Route("GET", "/metrics", lambda _call: metrics.exposition(desk), plain=True, log=False),
        Route("POST", "/signin", lambda call: access.sign_in(call.request)),
        Route("POST", "/signout", lambda call: access.sign_out(call.request)),
    ]
    found = [*own, *(route for room in ROOMS for route in room(desk))]
    return [_guarded(route, access) for route in found]


def _page_of(desk: Desk, request: web.BaseRequest, error: HttpError) -> web.Response | None:
    """What a browser is shown of a refused request; None: NSQ's JSON."""
    path = request.path.removeprefix(base_of(desk.options))
    if "text/html" not in request.headers.get("Accept", "") or path.startswith(NOT_HTML):
        return None
    pages = (make(desk, request, error.status, error.code) for make in HTML_ERRORS)
    return next((page for page in pages if page is not None), None)


def _guarded(route: Route, access: Access) -> Route:
    right = right_of(route.method, route.path)

    async def handle(call: Call) -> Any:
        if right.config:
            access.require_config(call.request)
        elif right.role:
            access.require(call.request, right.role)
        result = route.handler(call)
        return await result if isinstance(result, Awaitable) else result

    return route._replace(handler=handle)


def _fleet(upstream: Upstream, options: Options) -> Fleet:
    lookupds, allowed = options.lookupd_http_addresses, options.allowed_nodes
    try:
        reach = Reach(lookupds, allowed) if allowed else None
    except ValueError as error:
        raise StartError(f"--allow-node-address: {error}") from None
    try:
        return Fleet(upstream, nsqds=options.nsqd_http_addresses, lookupds=lookupds, reach=reach)
    except ValueError as error:
        raise StartError(str(error)) from None


def _publisher(fleet: Fleet, topic: str) -> Callable[[bytes], Awaitable[None]] | None:
    """What publishes to a topic, at the first node that takes it."""
    if not topic:
        return None
    if not is_valid_name(topic):
        raise StartError(f"--audit-topic={topic} is no name of a topic")

    async def publish(entry: bytes) -> None:
        why = "there is no nsqd"
        for node in (await fleet.nodes()).value:
            try:
                await fleet.post(node, "/pub", entry, topic=topic)
                return
            except UpstreamError as error:
                why = str(error)
        raise OSError(why)

    return publish


def _connections() -> int:
    limit = files.raise_limit()
    return max(CONNECTIONS_MIN, limit - OWN_FILES) if limit > 0 else files.UNLIMITED


async def serve(
    options: Options,
    listener: Listener,
    read_again: Callable[[], Options],
    stop: asyncio.Event,
) -> None:
    """Run one nsqadmin until the event is set; at SIGHUP its options are read again.

    Raises:
        StartError: an option is one that it cannot run with.
    """
    daemon = Nsqadmin(options)
    await daemon.start(listener)

    def reload() -> None:
        wanted = hangup.read_again(read_again)
        if wanted is not None:
            daemon.reload(wanted)

    lifecycle.on_hangup(reload)
    await stop.wait()
    await daemon.stop()
