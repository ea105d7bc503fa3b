"""The V2 clients of one nsqd: what they share, how many there may be, and how they go.

When nsqd stops each is closed, and has a moment to read what it was sent before it is cut off.
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
    from sparq.nsqd.options import Options
    from sparq.nsqd.tls import Tls
    from sparq.nsqd.turns import Turns, V2Connection

STOP_SECONDS = 1.0
"""How long clients may take to read what they were sent before nsqd stopped."""

logger = logging.getLogger(__name__)


class Clients:
    """What all V2 connections of one nsqd share.

    Attributes:
        connections: those that there are.
        connections_max: so many at a time; who comes then is closed at once.
        authenticator: says what a client may do, by tokens and authds; None: there are none.
        tls: the certificates; None: no TLS.
    """

    def __init__(self, options: Options, turns: Turns, access: Access | None = None) -> None:
        self.options = options
        self.turns = turns
        self.connections: set[V2Connection] = set()
        self.connections_max = files.UNLIMITED
        self.authenticator: Authenticator | None = None
        tokens = access if options.access.token_file else None
        if options.auth.http_addresses or tokens is not None:
            self.authenticator = import_module("sparq.nsqd.auth").Authenticator(options, tokens)
        self.tls: Tls | None = None
        self._is_full = False
        self._all_gone = asyncio.Event()

    def admit(self, connection: V2Connection) -> bool:
        """Take a new connection in, if there is room for one more; False: it has to go."""
        if len(self.connections) >= self.connections_max:
            if not self._is_full:
                logger.warning("TCP: refusing clients beyond %d", self.connections_max)
            self._is_full = True
            return False
        self._is_full = False
        self.connections.add(connection)
        return True

    def forget(self, connection: V2Connection) -> None:
        """A connection is over."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()

    def close(self) -> None:
        """nsqd stops: let each connection send what it holds, and end."""
        for connection in tuple(self.connections):
            connection.close()

    async def gone(self) -> None:
        """Return when all closed connections have gone; one that does not read is cut."""
        if self.connections:
            self._all_gone.clear()  # it is set whenever the last client has left
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), STOP_SECONDS)
            for connection in tuple(self.connections):
                connection.abort()
            await self._all_gone.wait()
        if self.authenticator is not None:
            await self.authenticator.close()
