"""One nsqlookupd: its registry, its two ports, its start and stop.

All its data is in memory: after a restart the nsqds register again within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from sparq.daemon import reload as hangup
from sparq.daemon.access import access, rules
from sparq.daemon.address import Listener
from sparq.daemon.http import Site
from sparq.nsqlookupd.guard import Guard
from sparq.nsqlookupd.http import NsqlookupdEndpoints
from sparq.nsqlookupd.main import listen
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.registry import Registry
from sparq.nsqlookupd.tcp import LookupConnection, instant
from sparq.options.units import SECOND
from sparq.program import lifecycle
from sparq.protocol import NSQ_VERSION

CHECK_SECONDS: Final = 1.0
"""How often the tokens of connected nsqds are checked for expiry."""

logger = logging.getLogger(__name__)


class Nsqlookupd:
    """One nsqlookupd: a registry, its TCP port for nsqds, its HTTP port for all clients.

    Attributes:
        access: access rights over HTTP; None: no checks.
    """

    def __init__(self, options: NsqlookupdOptions) -> None:
        """Raises StartError: an option is invalid."""
        self._options = options
        self.registry = Registry(
            options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns
        )
        self.tcp_port = 0
        self.http_port = 0
        self.connections: set[LookupConnection] = set()
        self.access = access.build(rules.NSQLOOKUPD, options.http.token, options.access)
        self._guard = Guard(options, self.access)
        endpoints = NsqlookupdEndpoints(
            self.registry,
            instant,
            debug_routes=options.http.debug_routes,
            access=self.access,
        )
        self._site = Site(
            endpoints.routes(),
            access=self.access,
            request_seconds=options.http.request_timeout_ns / SECOND,
        )
        self._listeners: list[Listener] = []
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, listeners: Sequence[Listener] | None = None) -> None:
        """Serve on these listeners, TCP and HTTP; without them, on the options' addresses.

        Raises:
            ListenError: an address cannot be bound; no listener stays open.
        """
        options = self._options
        self._listeners = list(listeners or listen(options))
        tcp, http = self._listeners
        self.tcp_port, self.http_port = tcp.port, http.port
        # In the order of NSQ's answer: a map, which Go's encoder sorts.
        me = {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": http.port,
            "tcp_port": tcp.port,
            "version": NSQ_VERSION,
        }
        await tcp.serve(lambda: LookupConnection(self.registry, me, self.connections, self._guard))
        await self._site.start(http)
        if options.require_token:
            self._watch()
        logger.info("TCP: listening on %s", tcp.text)
        logger.info("HTTP: listening on %s", http.text)

    def reload(self) -> None:
        """Read the token file again, and check the connected nsqds against it."""
        if self.access is not None and self.access.reload():
            self._review(again=True)

    def _review(self, *, again: bool = False) -> None:
        """Close the connections whose token is no longer valid."""
        for connection in tuple(self.connections):
            connection.review(again=again)

    def _watch(self) -> None:
        """Check for expired tokens every `CHECK_SECONDS`."""
        self._review()
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._watch)

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._timer is not None:
            self._timer.cancel()
        while self._listeners:
            self._listeners.pop().close()
        for connection in list(self.connections):
            connection.close()
        await self._site.stop()
        if self.access is not None:
            await self.access.close()
        logger.info("bye")


async def serve(
    options: NsqlookupdOptions,
    listeners: Sequence[Listener],
    read_again: Callable[[], NsqlookupdOptions],
    stop: asyncio.Event,
) -> None:
    """Run one nsqlookupd until the event is set; at SIGHUP its options are read again.

    Raises:
        StartError: an option is invalid.
    """
    daemon = Nsqlookupd(options)
    await daemon.start(listeners)

    def reload() -> None:
        nonlocal options  # those in force; only the log level can change at run time
        wanted = hangup.read_again(read_again)
        if wanted is not None:
            options = hangup.apply_live_options(options, wanted, ("log",))
            daemon.reload()

    lifecycle.on_hangup(reload)
    await lifecycle.until_stopped(stop)
    await daemon.stop()
