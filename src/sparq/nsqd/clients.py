"""The V2 clients of one nsqd: shared state, the connection limit, and closing their connections.

A client that is closed, by a request or when nsqd stops, has `STOP_SECONDS` to read its pending
output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from importlib import import_module
from typing import TYPE_CHECKING

from sparq.daemon import files

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access
    from sparq.nsqd.auth import Authenticator
    from sparq.nsqd.options import NsqdOptions
    from sparq.nsqd.tls import Certificates
    from sparq.nsqd.turns import Turns, V2Connection

STOP_SECONDS = 1.0
"""How long clients that are closed may take to read their pending output."""

POLL_SECONDS = 0.01

logger = logging.getLogger(__name__)


class Clients:
    """State shared by all V2 connections of one nsqd.

    Attributes:
        connections: the open connections.
        connections_max: maximum number of connections; further ones are closed at once.
        authenticator: gets clients' permissions from tokens and authds; None: neither is
            configured.
        tls: the certificates; None: no TLS.
    """

    def __init__(self, options: NsqdOptions, turns: Turns, access: Access | None = None) -> None:
        self.options = options
        self.turns = turns
        self.connections: set[V2Connection] = set()
        self.connections_max = files.UNLIMITED
        self.authenticator: Authenticator | None = None
        tokens = access if options.access.token_file else None
        if options.auth.http_addresses or tokens is not None:
            self.authenticator = import_module("sparq.nsqd.auth").Authenticator(options, tokens)
        self.tls: Certificates | None = None
        self._is_full = False
        self._all_gone = asyncio.Event()

    def admit(self, connection: V2Connection) -> bool:
        """Add a new connection; False: the limit is reached, and the caller must close it."""
        if len(self.connections) >= self.connections_max:
            if not self._is_full:
                logger.warning(
                    "TCP: refusing connections: the limit of %d clients is reached",
                    self.connections_max,
                )
            # Warned once until a client is admitted again: a flood of connections must not fill the
            # log.
            self._is_full = True
            return False
        self._is_full = False
        self.connections.add(connection)
        return True

    def forget(self, connection: V2Connection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()

    async def disconnect(self, address: str) -> bool:
        """Close the connection from a remote address; returns whether there was one.

        Its messages in flight wait for their timeout, as after any loss of a connection.
        """
        of = self.turns.by_session.items()
        found = [connection for session, connection in of if session.remote_address == address]
        for connection in found:
            connection.close()
        until = self.turns.loop.time() + STOP_SECONDS
        while self.connections.intersection(found):
            if self.turns.loop.time() >= until:
                for connection in self.connections.intersection(found):
                    connection.abort()
            await asyncio.sleep(POLL_SECONDS)
        return bool(found)

    def close(self) -> None:
        """Close all connections after their pending output, when nsqd stops."""
        for connection in tuple(self.connections):
            connection.close()

    async def wait_closed(self) -> None:
        """Wait until all connections are closed; abort those that are not after `STOP_SECONDS`."""
        if self.connections:
            self._all_gone.clear()  # it is set whenever the last client has disconnected
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), STOP_SECONDS)
            for connection in tuple(self.connections):
                connection.abort()
            await self._all_gone.wait()
        if self.authenticator is not None:
            await self.authenticator.close()
