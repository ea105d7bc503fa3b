"""nsqd's end of a V2 connection: bytes in, commands out; output in, bytes out.

```
              "  V2"        layers granted            TLS agreed
   MAGIC ──────────▶ OPEN ────────────────▶ UPGRADING ──────────▶ HANDSHAKE
                      │ ▲                       │                     │
        the client     │ └───── layers stand ────┴─────────────────────┘
        ends its side  ▼
                  HALF_CLOSED         END from anywhere ──▶ ENDED
```
1. While a connection is OPEN its commands are read; which of them are allowed there (before SUB,
   subscribed, behind CLS) is the parser's ``state``, which the session sets.
2. An upgrade begins behind the reply that grants it. What arrived behind the IDENTIFY is the next
   layer's, never a command (reference: wire.md 1.6).
3. A HALF_CLOSED client is still owed the answers to what it has sent. No upgrade begins there.
4. What arrives once it has ENDED is dropped.
"""

from __future__ import annotations

import enum
import ssl
from collections.abc import Mapping
from typing import Final

from sparq.protocol.compression import Deflate, Snappy
from sparq.protocol.identify import Granted, Limits
from sparq.protocol.parser import Parser
from sparq.wire.layers import Layers, Tls

MAGIC: Final = b"  V2"


class State(enum.Enum):
    """Where a connection stands in its life."""

    MAGIC = enum.auto()
    OPEN = enum.auto()
    UPGRADING = enum.auto()
    HANDSHAKE = enum.auto()
    HALF_CLOSED = enum.auto()
    ENDED = enum.auto()


class Event(enum.Enum):
    """What moves it on."""

    V2 = enum.auto()
    GRANTED = enum.auto()
    TLS = enum.auto()
    UPGRADED = enum.auto()
    EOF = enum.auto()
    END = enum.auto()


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.MAGIC, Event.V2): State.OPEN,
    (State.OPEN, Event.GRANTED): State.UPGRADING,
    (State.OPEN, Event.EOF): State.HALF_CLOSED,
    (State.UPGRADING, Event.TLS): State.HANDSHAKE,
    (State.UPGRADING, Event.UPGRADED): State.OPEN,
    (State.HANDSHAKE, Event.UPGRADED): State.OPEN,
    (State.HALF_CLOSED, Event.EOF): State.HALF_CLOSED,
    (State.HALF_CLOSED, Event.GRANTED): State.HALF_CLOSED,
    **{(state, Event.END): State.ENDED for state in State},
}
"""What is not here cannot happen; ``ServerConnection.go`` raises ``KeyError`` for it."""


class WrongMagicError(Exception):
    """The peer does not begin with the magic of the protocol V2."""


class ServerConnection:
    """The state of one connection, its parser and its layers.

    Args:
        limits: what the parser holds commands to.
        needs_tls: only IDENTIFY is allowed until TLS is spoken.

    Attributes:
        state: where it stands.
        is_plain: what arrives is the parser's as it is: OPEN, without layers.
        is_v2: the client has introduced itself.
        has_layers: what leaves is sealed by ``layers``.
        parser: takes plain bytes, gives commands.
        layers: through what everything goes; none at first.
        granted: what IDENTIFY was granted last; there from GRANTED on.
    """

    __slots__ = (
        *("_held", "granted", "has_layers", "is_plain", "is_v2"),
        *("layers", "parser", "state"),
    )
    granted: Granted

    def __init__(self, limits: Limits, *, needs_tls: bool = False) -> None:
        self.state = State.MAGIC
        self.is_plain = self.is_v2 = self.has_layers = False
        self.parser = Parser(limits)
        self.parser.needs_tls = needs_tls
        self.layers = Layers()
        self._held = b""

    def go(self, event: Event) -> None:
        """Move on by the table."""
        self.state = TRANSITIONS[self.state, event]
        self.has_layers = bool(self.layers)
        self.is_plain = self.state is State.OPEN and not self.has_layers

    def feed(self, data: bytes) -> None:
        """Take what arrived at the socket, but for plain commands, which go to the parser.

        It is for the layers, or held for what comes next.

        Raises:
            WrongMagicError: it does not begin as V2 does.
        """
        if self.has_layers:
            self.layers.feed(data)
            return
        self._held += data
        if self.state is State.MAGIC and len(self._held) >= len(MAGIC):
            if not self._held.startswith(MAGIC):
                raise WrongMagicError
            self.is_v2 = True
            self._held = self._held[len(MAGIC) :]
            self.go(Event.V2)

    def take_held(self) -> bytes:
        """What arrived before somebody was there who could read it."""
        held, self._held = self._held, b""
        return held

    # Upgrades

    def hold(self, granted: Granted) -> None:
        """Layers are granted: no command is read until they stand."""
        self.granted = granted
        self._held = self.parser.take_rest()
        self.go(Event.GRANTED)

    def start_tls(self, context: ssl.SSLContext) -> None:
        """The reply that grants TLS has left: its handshake follows, a ``shake_hands`` a read."""
        self.layers.add_tls(Tls(context, is_server=True), self.take_held())
        self.go(Event.TLS)

    def shake_hands(self) -> ssl.SSLObject | None:
        """Go on with the handshake: what it came to; None when more has to arrive.

        Raises:
            LayerError: it failed; ``layers.output`` tells the client.
        """
        tls = self.layers.tls
        if tls is None or not tls.shake_hands():
            return None
        self.parser.needs_tls = False
        return tls.connection

    def finish_upgrade(self) -> bool:
        """Put the compression on top that was granted; whether there was one."""
        granted = self.granted
        is_compressed = granted.deflate or granted.snappy
        if is_compressed:
            compression = Deflate(granted.deflate_level) if granted.deflate else Snappy()
            self.layers.add_compression(compression, self.take_held())
        self.go(Event.UPGRADED)
        return is_compressed
