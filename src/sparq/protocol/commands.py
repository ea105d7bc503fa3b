"""The commands of a client, as bytes to send and as values received.

1. ``COMMANDS`` is the only table of commands: the states in which each is allowed, and whether a
   body follows its line. The parser enforces it.
2. Consecutive PUBs to one topic, and consecutive FINs, are one value: a run.
3. Builders check nothing: the client library has checked the arguments before.
4. Values hold arrays made by other modules; this module itself loads without numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from sparq.protocol.layout import ID_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sparq.protocol.frames import BodySlices

MAGIC_V2: Final = b"  V2"
"""The first bytes that a client sends to nsqd."""

# NSQ's own numbers, because /stats shows them.
STATE_INIT: Final = 0
STATE_SUBSCRIBED: Final = 3
STATE_CLOSING: Final = 4


class CommandKind(NamedTuple):
    """One row of the table of commands.

    Attributes:
        states: the connection states in which the command is allowed.
        parameters: how many parameters the line has at least.
        has_body: whether a body follows the line: i32 size and bytes; for MPUB with a count, and a
            size for each message.
    """

    states: frozenset[int]
    parameters: int = 0
    has_body: bool = False


_INIT: Final = frozenset({STATE_INIT})
_CONSUMING: Final = frozenset({STATE_SUBSCRIBED, STATE_CLOSING})
_ALWAYS: Final = frozenset({STATE_INIT, STATE_SUBSCRIBED, STATE_CLOSING})

COMMANDS: Final[dict[bytes, CommandKind]] = {
    b"IDENTIFY": CommandKind(_INIT, 0, has_body=True),
    b"AUTH": CommandKind(_INIT, 0, has_body=True),
    b"SUB": CommandKind(_INIT, 2),
    # Allowed on a subscribed connection too, as in NSQ: a consumer may publish what it makes.
    b"PUB": CommandKind(_ALWAYS, 1, has_body=True),
    b"MPUB": CommandKind(_ALWAYS, 1, has_body=True),
    b"DPUB": CommandKind(_ALWAYS, 2, has_body=True),
    # RDY after CLS is not an error, but has no effect.
    b"RDY": CommandKind(_CONSUMING),
    b"FIN": CommandKind(_CONSUMING, 1),
    b"REQ": CommandKind(_CONSUMING, 2),
    b"TOUCH": CommandKind(_CONSUMING, 1),
    b"CLS": CommandKind(frozenset({STATE_SUBSCRIBED})),
    b"NOP": CommandKind(_ALWAYS),
    # Range reading, an extension of sparq.
    b"ATTACH": CommandKind(_INIT, 2),
    b"ENDS": CommandKind(_ALWAYS, 1),
    b"READ": CommandKind(_ALWAYS, 5),
    b"COMMIT": CommandKind(_ALWAYS, 4),
}

ENDS_NUMBERS: Final = {
    "": (),
    "time": ("time",),
    "after": ("index", "count"),
    "within": ("index", "bytes"),
}
"""The kinds of ENDS, and the names of their numbers."""


# Received commands. Runs are not frozen dataclasses: freezing triples the cost of creating one.


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY; `body` is the JSON as the client sent it."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Authenticate:
    """AUTH; only an authd may see `secret`, so it is left out of the repr."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUB: consume a channel on this connection."""

    topic: str
    channel: str


@dataclass(slots=True)
class PublishRun:
    """A run of PUBs to one topic; each is a separate publish and gets its own OK."""

    topic: str
    bodies: BodySlices

    @property
    def replies(self) -> int:
        """Number of OKs that the client expects."""
        return len(self.bodies)


@dataclass(slots=True)
class TopicNeeded:
    """The line of an MPUB has arrived: NSQ creates the topic before it reads the body."""

    topic: str


@dataclass(slots=True)
class MultiPublish:
    """MPUB: all bodies are published or none, with one OK."""

    topic: str
    bodies: BodySlices


@dataclass(frozen=True, slots=True)
class DeferredPublish:
    """DPUB: one body, delivered no earlier than after `defer_ms`."""

    topic: str
    bodies: BodySlices
    defer_ms: int


@dataclass(frozen=True, slots=True)
class Ready:
    """RDY: the maximum number of messages in flight on this connection."""

    count: int


@dataclass(slots=True, eq=False)
class Finish:
    """A run of FINs.

    Attributes:
        raw_ids: the ids as numbers: a range if they ascend without a gap, a list if there are fewer
            than 16, else a uint64 array of shape (n,).
            ``layout.INVALID_ID`` stands for an id that no message can have.
        text: the ids as received, 16 bytes each, for error texts; empty with a range, whose numbers
            determine the text.
    """

    raw_ids: range | list[int] | NDArray[np.uint64]
    text: bytes

    def __len__(self) -> int:
        return len(self.raw_ids)

    def id_text(self, position: int) -> bytes:
        """The id at this position of the run, as received."""
        if isinstance(self.raw_ids, range):
            return b"%016x" % self.raw_ids[position]
        return self.text[position * ID_SIZE : (position + 1) * ID_SIZE]


@dataclass(frozen=True, slots=True)
class Requeue:
    """REQ: requeue a message after `timeout_ms`, which is already capped at the limit."""

    id: bytes
    raw_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Touch:
    """TOUCH: extend the timeout of a message in flight."""

    id: bytes
    raw_id: int


@dataclass(frozen=True, slots=True)
class Close:
    """CLS: the client wants no more messages."""


@dataclass(frozen=True, slots=True)
class Nop:
    """NOP: no operation, the answer to a heartbeat."""


@dataclass(frozen=True, slots=True)
class Attach:
    """ATTACH: hold a channel and read its topic's log by ranges."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """ENDS: where a topic's log begins and ends, and optionally the index at a time or distance.

    Attributes:
        topic: the topic.
        kind: "" for the ends alone, "time", "after" or "within".
        value: for "time" the wall time in ns since 1970, else the index to begin at.
        count: for "after" the number of messages after the index, for "within" the bytes.
    """

    topic: str
    kind: str = ""
    value: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """READ: request the stored batches of [first, end), up to `max_bytes`."""

    topic: str
    log: str
    first: int
    end: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class CommitRange:
    """COMMIT: the attachment of this epoch has finished everything before `index`."""

    topic: str
    channel: str
    epoch: int
    index: int


Command = (
    Identify
    | Authenticate
    | Subscribe
    | PublishRun
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
    | ReadEnds
    | Read
    | CommitRange
)


# Commands to send

_SIZE: Final = struct.Struct(">i")


def _line(name: bytes, *arguments: str | bytes | int) -> bytes:
    words = [
        argument if isinstance(argument, bytes) else str(argument).encode()
        for argument in arguments
    ]
    return b" ".join((name, *words)) + b"\n"


def _sized(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


@lru_cache(maxsize=1024)
def _publish_line(name: bytes, topic: str) -> bytes:
    return _line(name, topic)


def identify(body: bytes) -> bytes:
    """IDENTIFY with a JSON body."""
    return b"IDENTIFY\n" + _sized(body)


def auth(secret: bytes) -> bytes:
    """AUTH with the secret as its body."""
    return b"AUTH\n" + _sized(secret)


def sub(topic: str, channel: str) -> bytes:
    """SUB: consume a channel; it is created if it does not exist."""
    return _line(b"SUB", topic, channel)


def pub(topic: str, body: bytes) -> bytes:
    """PUB: publish a message."""
    return _publish_line(b"PUB", topic) + _sized(body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB: publish several messages; all of them are accepted, or none."""
    messages = b"".join(map(_sized, bodies))
    return _publish_line(b"MPUB", topic) + _sized(_SIZE.pack(len(bodies)) + messages)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    """DPUB: publish a message that is delivered after `defer_ms` at the earliest."""
    return _line(b"DPUB", topic, defer_ms) + _sized(body)


def rdy(count: int) -> bytes:
    """RDY: allow nsqd to have `count` messages in flight to this client."""
    return _line(b"RDY", count)


def fin(message_id: bytes) -> bytes:
    """FIN: finish a message."""
    return b"FIN %b\n" % message_id


def fins(message_ids: Sequence[bytes]) -> bytes:
    """A FIN for each message; at least one id is required."""
    return b"FIN %b\n" % b"\nFIN ".join(message_ids)


def req(message_id: bytes, timeout_ms: int) -> bytes:
    """REQ: requeue a message, for delivery after `timeout_ms`."""
    return _line(b"REQ", message_id, timeout_ms)


def touch(message_id: bytes) -> bytes:
    """TOUCH: restart a message's timeout."""
    return _line(b"TOUCH", message_id)


def cls() -> bytes:
    """CLS: receive no further messages."""
    return b"CLS\n"


def nop() -> bytes:
    """NOP: the answer to a heartbeat."""
    return b"NOP\n"


def attach(topic: str, channel: str) -> bytes:
    """ATTACH: become the range reader of a channel."""
    return _line(b"ATTACH", topic, channel)


def ends(topic: str, kind: str = "", *numbers: int) -> bytes:
    """ENDS: the log's ends, and the index of a message; see ``ReadEnds`` for kinds and numbers."""
    return _line(b"ENDS", topic, kind, *numbers) if kind else _line(b"ENDS", topic)


def read(topic: str, log: str, first: int, end: int, max_bytes: int) -> bytes:
    """READ: request the messages with indexes in [first, end) as stored batches."""
    return _line(b"READ", topic, log, first, end, max_bytes)


def commit(topic: str, channel: str, epoch: int, index: int) -> bytes:
    """COMMIT: finish the messages before `index`; refused if another reader has attached since."""
    return _line(b"COMMIT", topic, channel, epoch, index)
