"""The commands: what a client can say, as bytes to send and as values received.

1. ``COMMANDS`` is the one table of what exists: the states in which a command may come, and
   what body follows its line. The parser holds clients to it.
2. Values come in runs where the wire has runs: publishes to one topic, and finishes.
3. Builders check nothing: the library that calls them has.
4. Values hold arrays that others made; this module itself loads without numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from sparq.protocol.layout import ID_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sparq.protocol.frames import Bodies

"""What a client of nsqlookupd begins with."""
MAGIC_V2: Final = b"  V2"
"""What a client of nsqd begins with."""

STATE_INIT: Final = 0
STATE_SUBSCRIBED: Final = 3
STATE_CLOSING: Final = 4


class BodyKind(Enum):
    """What follows a command's line."""

    NONE = "none"
    SIZED = "i32 size, then so many bytes"
    MESSAGE = "i32 size, then one message"
    MESSAGES = "i32 size, i32 count, then i32 size and bytes of each message"


class CommandKind(NamedTuple):
    """One row of the table.

    Attributes:
        states: the connection states in which the command is not an error.
        body: what follows the line.
    """

    states: frozenset[int]
    body: BodyKind = BodyKind.NONE


_INIT: Final = frozenset({STATE_INIT})
_CONSUMING: Final = frozenset({STATE_SUBSCRIBED, STATE_CLOSING})
_ALWAYS: Final = frozenset({STATE_INIT, STATE_SUBSCRIBED, STATE_CLOSING})

COMMANDS: Final[dict[bytes, CommandKind]] = {
    b"IDENTIFY": CommandKind(_INIT, BodyKind.SIZED),
    b"AUTH": CommandKind(_INIT, BodyKind.SIZED),
    b"SUB": CommandKind(_INIT),
    b"PUB": CommandKind(_ALWAYS, BodyKind.MESSAGE),
    b"MPUB": CommandKind(_ALWAYS, BodyKind.MESSAGES),
    b"DPUB": CommandKind(_ALWAYS, BodyKind.MESSAGE),
    # RDY after CLS is no error, but has no effect either.
    b"RDY": CommandKind(_CONSUMING),
    b"FIN": CommandKind(_CONSUMING),
    b"REQ": CommandKind(_CONSUMING),
    b"TOUCH": CommandKind(_CONSUMING),
    b"CLS": CommandKind(frozenset({STATE_SUBSCRIBED})),
    b"NOP": CommandKind(_ALWAYS),
    # sparq's own: range reading.
    b"ATTACH": CommandKind(_INIT),
    b"ENDS": CommandKind(_ALWAYS),
    b"READ": CommandKind(_ALWAYS),
    b"COMMIT": CommandKind(_ALWAYS),
}


# Received. What comes in runs is not frozen: freezing triples what making a value costs.


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY: `body` is JSON as the client sent it."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Authenticate:
    """AUTH: `secret` is for an authd and for nobody else to see."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUB: consume a channel on this connection."""

    topic: str
    channel: str


@dataclass(slots=True)
class Publish:
    """A run of PUBs to one topic; each is a publish of its own and gets its own OK."""

    topic: str
    bodies: Bodies

    @property
    def replies(self) -> int:
        """How many OKs the client waits for."""
        return len(self.bodies)


@dataclass(slots=True)
class TopicNeeded:
    """The line of an MPUB has come: NSQ creates its topic before it reads the body."""

    topic: str


@dataclass(slots=True)
class MultiPublish:
    """MPUB: all of the bodies or none, one OK."""

    topic: str
    bodies: Bodies


@dataclass(frozen=True, slots=True)
class DeferredPublish:
    """DPUB: one body, not to be delivered before `defer_ms` have passed."""

    topic: str
    bodies: Bodies
    defer_ms: int


@dataclass(frozen=True, slots=True)
class Ready:
    """RDY: how many messages may be in flight on this connection."""

    count: int


@dataclass(slots=True, eq=False)
class Finish:
    """A run of FINs.

    Attributes:
        raw_ids: the ids' numbers: a range where they ascend without a gap, a list below 16 of them,
            else a uint64 array of shape (n,).
            ``layout.INVALID_ID`` stands for an id that cannot be any message's.
        text: the ids as they came, 16 bytes each, for error texts; beside a range nothing, whose
            ids are as they have to be.
    """

    raw_ids: range | list[int] | NDArray[np.uint64]
    text: bytes

    def __len__(self) -> int:
        return len(self.raw_ids)

    def id_text(self, position: int) -> bytes:
        """The id at this position of the run as it came."""
        if isinstance(self.raw_ids, range):
            return b"%016x" % self.raw_ids[position]
        return self.text[position * ID_SIZE : (position + 1) * ID_SIZE]


@dataclass(frozen=True, slots=True)
class Requeue:
    """REQ: put a message back, at once or after a while (already held to the limit)."""

    id: bytes
    raw_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Touch:
    """TOUCH: more time for a message in flight."""

    id: bytes
    raw_id: int


@dataclass(frozen=True, slots=True)
class Close:
    """CLS: no more messages, please."""


@dataclass(frozen=True, slots=True)
class Nop:
    """NOP: still here."""


@dataclass(frozen=True, slots=True)
class Attach:
    """ATTACH: read a channel's log by ranges from now on."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class Ends:
    """ENDS: where a topic's log begins and ends, and where a time, a count or a size leads.

    Attributes:
        topic: the topic.
        kind: "" for the ends alone, "time", "after" or "within".
        value: for "time" the wall time in ns, else the index to begin at.
        count: for "after" how many messages behind the index, for "within" how many bytes.
    """

    topic: str
    kind: str = ""
    value: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """READ: the stored batches of [first, end), up to `max_bytes`."""

    topic: str
    log: str
    first: int
    end: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class CommitRange:
    """COMMIT: everything before `index` is done, says the attach of this epoch."""

    topic: str
    channel: str
    epoch: int
    index: int


Command = (
    Identify
    | Authenticate
    | Subscribe
    | Publish
    | TopicNeeded
    | MultiPublish
    | DeferredPublish
    | Ready
    | Finish
    | Requeue
    | Touch
    | Close
    | Nop
    | Attach
    | Ends
    | Read
    | CommitRange
)


# To send

_SIZE: Final = struct.Struct(">i")


def _line(name: bytes, *arguments: str | bytes | int) -> bytes:
    words = [
        argument if isinstance(argument, bytes) else str(argument).encode()
        for argument in arguments
    ]
    return b" ".join((name, *words)) + b"\n"


def _sized(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


def identify(body: bytes) -> bytes:
    """IDENTIFY with a JSON body."""
    return b"IDENTIFY\n" + _sized(body)


def auth(secret: bytes) -> bytes:
    """AUTH with the secret as its body."""
    return b"AUTH\n" + _sized(secret)


def sub(topic: str, channel: str) -> bytes:
    """SUB."""
    return _line(b"SUB", topic, channel)


def pub(topic: str, body: bytes) -> bytes:
    """PUB."""
    return _line(b"PUB", topic) + _sized(body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB."""
    messages = b"".join(map(_sized, bodies))
    return _line(b"MPUB", topic) + _sized(_SIZE.pack(len(bodies)) + messages)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    """DPUB."""
    return _line(b"DPUB", topic, defer_ms) + _sized(body)


def rdy(count: int) -> bytes:
    """RDY."""
    return _line(b"RDY", count)


def fin(message_id: bytes) -> bytes:
    """FIN."""
    return b"FIN %b\n" % message_id


def fins(message_ids: Sequence[bytes]) -> bytes:
    """FIN for each of at least one message."""
    return b"FIN %b\n" % b"\nFIN ".join(message_ids)


def req(message_id: bytes, timeout_ms: int) -> bytes:
    """REQ."""
    return _line(b"REQ", message_id, timeout_ms)


def touch(message_id: bytes) -> bytes:
    """TOUCH."""
    return _line(b"TOUCH", message_id)


def cls() -> bytes:
    """CLS."""
    return b"CLS\n"


def nop() -> bytes:
    """NOP."""
    return b"NOP\n"


def ping() -> bytes:
    """PING, to nsqlookupd."""
    return b"PING\n"


def register(topic: str, channel: str | None = None) -> bytes:
    """REGISTER, to nsqlookupd."""
    return _line(b"REGISTER", topic, *([channel] if channel else []))


def attach(topic: str, channel: str) -> bytes:
    """ATTACH."""
    return _line(b"ATTACH", topic, channel)


def ends(topic: str) -> bytes:
    """ENDS: the ends alone."""
    return _line(b"ENDS", topic)


def ends_at_time(topic: str, wall_ns: int) -> bytes:
    """ENDS: and the first index published at or after a wall time."""
    return _line(b"ENDS", topic, "time", wall_ns)


def ends_after(topic: str, index: int, count: int) -> bytes:
    """ENDS: and the index `count` messages behind `index`."""
    return _line(b"ENDS", topic, "after", index, count)


def ends_within(topic: str, index: int, max_bytes: int) -> bytes:
    """ENDS: and how far stored batches of `max_bytes` reach from `index` on."""
    return _line(b"ENDS", topic, "within", index, max_bytes)


def read(topic: str, log: str, first: int, end: int, max_bytes: int) -> bytes:
    """READ."""
    return _line(b"READ", topic, log, first, end, max_bytes)


def commit(topic: str, channel: str, epoch: int, index: int) -> bytes:
    """COMMIT."""
    return _line(b"COMMIT", topic, channel, epoch, index)
