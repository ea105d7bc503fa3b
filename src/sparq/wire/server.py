"""nsqd's end of a V2 connection: bytes in, commands out; output in, bytes out.

```
              "  V2"        layers granted            TLS agreed
   MAGIC ──────────▶ OPEN ────────────────▶ UPGRADING ──────────▶ HANDSHAKE
                      │ ▲                       │                     │
        the client     │ └───── layers stand ────┴─────────────────────┘
        ends its side  ▼
                  HALF_CLOSED             from anywhere ──▶ ENDED
```
1. While a connection is OPEN its commands are read. The parser's ``state``, which the session sets,
   decides which commands are allowed (before SUB, subscribed, after CLS).
2. An upgrade begins after the reply that grants it. Bytes received after the IDENTIFY belong to the
   next layer and are never commands (docs/protocol.md, "IDENTIFY").
3. A HALF_CLOSED client still gets the replies to its commands. No upgrade begins in this state.
4. Input received after ENDED is dropped.
"""

from __future__ import annotations

import enum
import ssl
from collections.abc import Mapping
from typing import Final

from sparq.options.limits import IdentifyLimits
from sparq.protocol.compression import Deflate, Snappy
from sparq.protocol.identify import Granted
from sparq.protocol.parser import CommandParser
from sparq.wire.layers import Layers, Tls

MAGIC: Final = b"  V2"


class ConnectionState(enum.Enum):
    """The states of a connection."""

    MAGIC = enum.auto()
    OPEN = enum.auto()
    UPGRADING = enum.auto()
    HANDSHAKE = enum.auto()
    HALF_CLOSED = enum.auto()
    ENDED = enum.auto()


NEXT: Final[Mapping[ConnectionState, frozenset[ConnectionState]]] = {
    ConnectionState.MAGIC: frozenset({ConnectionState.OPEN}),
    ConnectionState.OPEN: frozenset({ConnectionState.UPGRADING, ConnectionState.HALF_CLOSED}),
    ConnectionState.UPGRADING: frozenset({ConnectionState.HANDSHAKE, ConnectionState.OPEN}),
    ConnectionState.HANDSHAKE: frozenset({ConnectionState.OPEN}),
    ConnectionState.HALF_CLOSED: frozenset({ConnectionState.HALF_CLOSED}),
    ConnectionState.ENDED: frozenset(),
}
"""The states that may follow each state, besides ENDED; others are bugs."""


class WrongMagicError(Exception):
    """The peer did not begin with the magic bytes of protocol V2."""


class ServerConnection:
    """The state of one connection, its parser and its layers.

    Args:
        limits: the parser's limits on commands.
        needs_tls: whether only IDENTIFY is allowed until TLS is in use.

    Attributes:
        state: the present state.
        is_plain: whether input goes straight to the parser: OPEN, without layers.
        is_v2: whether the client has sent the magic bytes of V2.
        has_layers: whether output goes through ``layers``.
        parser: takes plain bytes, returns commands.
        layers: the layers that all bytes pass through; none at first.
        granted: the layers granted to the last IDENTIFY; set by ``note_granted``.
    """

    __slots__ = (
        *("_held", "granted", "has_layers", "is_plain", "is_v2"),
        *("layers", "parser", "state"),
    )
    granted: Granted

    def __init__(self, limits: IdentifyLimits, *, needs_tls: bool = False) -> None:
        self.state = ConnectionState.MAGIC
        self.is_plain = self.is_v2 = self.has_layers = False
        self.parser = CommandParser(limits)
        self.parser.needs_tls = needs_tls
        self.layers = Layers()
        self._held = b""

    def go(self, state: ConnectionState) -> None:
        """Change the state, as `NEXT` allows."""
        assert state is ConnectionState.ENDED or state in NEXT[self.state], (self.state, state)
        self.state = state
        # Computed here and not in properties: nsqd reads them for each chunk of input and output.
        self.has_layers = bool(self.layers)
        self.is_plain = state is ConnectionState.OPEN and not self.has_layers

    def feed(self, data: bytes) -> None:
        """Process input from the socket, except plain commands, which go to the parser.

        The bytes go to the layers; without layers they are held for the next step.

        Raises:
            WrongMagicError: the input does not begin with V2's magic bytes.
        """
        if self.has_layers:
            self.layers.feed(data)
            return
        self._held += data
        if self.state is ConnectionState.MAGIC and len(self._held) >= len(MAGIC):
            if not self._held.startswith(MAGIC):
                raise WrongMagicError
            self.is_v2 = True
            self._held = self._held[len(MAGIC) :]
            self.go(ConnectionState.OPEN)

    def take_held(self) -> bytes:
        """Return and clear the held input, for the parser or the layer that reads it next."""
        held, self._held = self._held, b""
        return held

    # Upgrades

    def note_granted(self, granted: Granted) -> None:
        """Note that layers are granted: no command is read until they are in place."""
        self.granted = granted
        self._held = self.parser.take_rest()
        if self.state is not ConnectionState.HALF_CLOSED:
            self.go(ConnectionState.UPGRADING)

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Start TLS after its reply was sent; then call ``shake_hands`` after each read."""
        self.layers.add(Tls(context, is_server=True), self.take_held())
        self.go(ConnectionState.HANDSHAKE)

    def shake_hands(self) -> ssl.SSLObject | None:
        """Continue the handshake; return its `ssl` object when complete; None: more input needed.

        Raises:
            LayerError: it failed; ``layers.output`` has the alert for the client.
        """
        tls = self.layers.tls
        if tls is None or not tls.shake_hands():
            return None
        self.parser.needs_tls = False
        return tls.connection

    def finish_upgrade(self) -> bool:
        """Add the granted compression, if any; return whether there is one."""
        granted = self.granted
        is_compressed = granted.deflate or granted.snappy
        if is_compressed:
            compression = Deflate(granted.deflate_level) if granted.deflate else Snappy()
            # Bytes are held only without TLS, and are compressed; with TLS its buffer has them.
            self.layers.add(compression, self.take_held())
        self.go(ConnectionState.OPEN)
        return is_compressed
