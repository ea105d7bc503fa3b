"""The program `nsqlookupd`: its listeners, its life, its command line.

All it knows is in memory: after a restart it is told again by the nsqds within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence

from sparq.daemon import address, flags, lifecycle
from sparq.daemon import logging as log_lines
from sparq.daemon.http import Site
from sparq.nsqlookupd.http import Endpoints
from sparq.nsqlookupd.options import Options
from sparq.nsqlookupd.registry import Registry
from sparq.nsqlookupd.tcp import Connection, instant
from sparq.protocol.identify import NSQ_VERSION

PROGRAM = "nsqlookupd"

logger = logging.getLogger(__name__)


class Nsqlookupd:
    """One nsqlookupd: a registry, its TCP port for nsqds, its HTTP port for everybody."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.registry = Registry(
            options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns
        )
        self.tcp_port = 0
        self.http_port = 0
        self.connections: set[Connection] = set()
        self._site = Site(Endpoints(self.registry, instant).routes())
        self._listeners: list[address.Listener] = []

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: an address cannot be had; then nothing listens.
        """
        options = self._options
        try:
            for where in (options.tcp_address, options.http_address):
                self._listeners.append(address.listen(where))
        except address.ListenError:
            self._close_listeners()
            raise
        tcp, http = self._listeners
        self.tcp_port, self.http_port = tcp.port, http.port
        me = {
            "tcp_port": tcp.port,
            "http_port": http.port,
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
        }
        await tcp.serve(lambda: Connection(self.registry, me, self.connections))
        await self._site.start(http)
        logger.info("TCP: listening on %s", tcp.text)
        logger.info("HTTP: listening on %s", http.text)

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        self._close_listeners()
        for connection in list(self.connections):
            connection.close()
        await self._site.stop()
        logger.info("bye")

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()


async def serve(options: Options, stop: asyncio.Event) -> None:
    """Run one nsqlookupd until the event is set.

    Raises:
        StartError: it cannot listen.
    """
    daemon = Nsqlookupd(options)
    try:
        await daemon.start()
    except address.ListenError as error:
        raise lifecycle.StartError(str(error)) from error
    await stop.wait()
    await daemon.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    version = lifecycle.version_line(PROGRAM)
    options = flags.parse(Options, PROGRAM, version, words)
    level = logging.DEBUG if options.verbose else options.log_level
    log_lines.set_up(options.log_prefix, level)
    logger.info("%s", version)
    return lifecycle.run(PROGRAM, lambda stop: serve(options, stop))
