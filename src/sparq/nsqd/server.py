"""One nsqd: a broker, its turns and its V2 clients; their start, stop, and methods for HTTP.

HTTP handlers await broker operations here. V2 connections call the broker directly (see ``tcp``).
A client that is closed, by a request or when nsqd stops, has `STOP_SECONDS` to read its pending
output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING

from sparq.daemon import files
from sparq.daemon.access import access, rules, tokens
from sparq.nsqd.turns import Turns, instant
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparq.broker.broker import Broker
    from sparq.broker.draining import ChangeDrains
    from sparq.broker.turn import Ticket
    from sparq.nsqd.auth import Authenticator
    from sparq.nsqd.options import NsqdOptions
    from sparq.nsqd.tls import Certificates
    from sparq.nsqd.turns import V2Connection
    from sparq.protocol.frames import BodySlices

STOP_SECONDS = 1.0
"""How long clients that are closed may take to read their pending output."""

POLL_SECONDS = 0.01

logger = logging.getLogger(__name__)


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
        connections: the open V2 connections.
        connections_max: maximum number of V2 connections; further ones are closed at once.
        http_connections_max: the same for HTTP and HTTPS.
        options: the options in force; a `Reloader` changes them.
        drain_watchers: called after the drains have changed.
        access: access rights; None: no checks.
        authenticator: gets V2 clients' permissions from tokens and authds; None: neither is
            configured.
        lookupd_token: token sent to nsqlookupds; "": none.
        tls: the certificates; None: no TLS.
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
        self.authenticator: Authenticator | None = None
        tokens_of_file = self.access if options.access.token_file else None
        if options.auth.http_addresses or tokens_of_file is not None:
            auth = import_module("sparq.nsqd.auth")
            self.authenticator = auth.Authenticator(options, tokens_of_file)
        self.lookupd_token = tokens.resolve(options.lookupd.token, "--lookupd-token")
        self.tls: Certificates | None = None
        self.connections: set[V2Connection] = set()
        self.connections_max = self.http_connections_max = files.UNLIMITED
        self.tcp_port = self.http_port = self.https_port = -1
        self.exiting = False
        self.drain_watchers: list[Callable[[], object]] = []
        self._is_full = False

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

    # V2 clients

    def admit(self, connection: V2Connection) -> bool:
        """Add a new connection; False: the limit is reached, and the caller must close it."""
        was_full, self._is_full = self._is_full, len(self.connections) >= self.connections_max
        if not self._is_full:
            self.connections.add(connection)
        # Once until a client is admitted again: a flood of connections must not fill the log.
        elif not was_full:
            logger.warning(
                "TCP: refusing connections: the limit of %d clients is reached",
                self.connections_max,
            )
        return not self._is_full

    async def disconnect(self, address: str) -> bool:
        """Close the connection from a remote address; returns whether there was one.

        Its messages in flight wait for their timeout, as after any loss of a connection.
        """
        of = self.turns.by_session.items()
        found = [connection for session, connection in of if session.remote_address == address]
        for connection in found:
            connection.close()
        await self._wait_closed(found)
        return bool(found)

    async def _wait_closed(self, connections: Collection[V2Connection]) -> None:
        """Wait until connections are closed; abort those that are not after `STOP_SECONDS`."""
        until = self.loop.time() + STOP_SECONDS
        while left := self.connections.intersection(connections):
            if self.loop.time() >= until:
                for connection in left:
                    connection.abort()
            await asyncio.sleep(POLL_SECONDS)

    # Life

    async def stop(self) -> None:
        """Stop as NSQ does: close all connections and write everything to disk.

        The listeners must be closed before.
        """
        self.exiting = True
        connections = tuple(self.connections)
        for connection in connections:
            connection.close()
        await self.turns.wait_until_durable()
        await self._wait_closed(connections)
        if self.authenticator is not None:
            await self.authenticator.close()
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
