"""One nsqd: a broker, its turns and its V2 clients; their start, stop, and methods for HTTP.

HTTP handlers await broker operations here. V2 connections call the broker directly (see ``tcp``).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sparq.daemon import files
from sparq.daemon.access import access, rules, tokens
from sparq.nsqd.clients import Clients
from sparq.nsqd.tcp import TcpConnection
from sparq.nsqd.turns import Turns, instant
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparq.broker.broker import Broker
    from sparq.broker.draining import ChangeDrains
    from sparq.broker.turn import Ticket
    from sparq.daemon.address import Listener
    from sparq.nsqd.options import NsqdOptions
    from sparq.protocol.frames import BodySlices


class FutureTicket:
    """Let a coroutine wait for the broker: a ticket with a future."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def answered(self, error: RemoteError | None) -> None:
        """Resolve the future: with None on success, else with the error."""
        # It is cancelled if the HTTP client has gone; its publish is stored all the same.
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Nsqd:
    """State shared by the TCP and HTTP code around one broker.

    Attributes:
        exiting: True from the moment `stop` begins; publishes over HTTP then get EXITING.
        tcp_port, http_port, https_port: the ports actually bound; -1 if there is none.
        http_connections_max: maximum HTTP and HTTPS connections; further ones are closed at once.
        options: the options in force; a `Reloader` changes them.
        drain_watchers: called after the drains have changed.
        access: access rights; None: no checks.
        lookupd_token: token sent to nsqlookupds; "": none.
    """

    def __init__(
        self, options: NsqdOptions, broker: Broker, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.options = options
        self.broker = broker
        self.limits = broker.limits
        self.loop = loop
        self.turns = Turns(broker, loop)
        self.runner = self.turns.runner
        self.access = access.build(rules.NSQD, options.http.token, options.access)
        self.lookupd_token = tokens.resolve(options.lookupd.token, "--lookupd-token")
        self.clients = Clients(options, self.turns, self.access)
        self.http_connections_max = files.UNLIMITED
        self.tcp_port = self.http_port = self.https_port = -1
        self.exiting = False
        self.drain_watchers: list[Callable[[], object]] = []
        self._listener: Listener | None = None

    # For HTTP

    async def ask(self, begin: Callable[[Ticket], object]) -> None:
        """Begin an operation of the broker, and return when its ticket is answered.

        Raises:
            RemoteError: the answer is an error.
        """
        waiting = FutureTicket(self.loop)
        begin(waiting)
        self.turns.schedule()
        await waiting.future

    async def publish(self, topic: str, bodies: BodySlices, defer_ms: int = 0) -> None:
        """Publish; return once the messages are stored. Raises RemoteError if they are refused."""
        now = instant()
        await self.ask(
            lambda ticket: self.broker.publish(topic, bodies, now, ticket, defer_ms=defer_ms)
        )

    async def change_drains(self, make: ChangeDrains) -> None:
        """Change the drains; the change applies once it is on disk.

        Raises:
            RemoteError: they could not be written; nothing has changed.
        """
        await self.ask(lambda ticket: self.broker.drains.change(make, ticket))
        for watcher in self.drain_watchers:
            watcher()

    # Life

    async def start(self, listener: Listener) -> None:
        """Accept clients on a listening socket and start the tick timer."""
        self._listener = listener
        await listener.serve(lambda: TcpConnection(self.clients))
        self.turns.tick()

    async def stop(self) -> None:
        """Stop as NSQ does: accept no clients, close all connections, write everything to disk."""
        self.exiting = True
        if self._listener is not None:
            self._listener.close()
        self.clients.close()
        await self.turns.wait_until_durable()
        await self.clients.wait_closed()
        self.turns.stop()
        with contextlib.suppress(asyncio.CancelledError):
            # A commit in flight may be one that does not sync (--sync-every above 1). So the broker
            # closes again after each round, until the last one has synced everything: with a single
            # round, a power cut after a clean stop could lose the newest messages.
            is_last = False
            while not is_last:
                is_last = self.broker.close(instant())
                self.runner.submit(self.broker.end_turn(instant()))
                await self.runner.barrier()
        await self.loop.run_in_executor(None, self.runner.stop)
        self.broker.closed()
