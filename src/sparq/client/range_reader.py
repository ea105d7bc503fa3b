"""Reads a topic's log by ranges: ATTACH, ENDS, READ and COMMIT over a blocking connection.

A range [a, b) of a log is the same messages each time it is read. That makes a range of indexes
what an offset must be for a stream processor that runs a batch again after a failure.

1. A reader connects when it is first asked and, after a failure, with the next question. It never
   retries by itself: only its owner knows for how long.
2. An attachment lives as long as its connection: after an `OSError`, attach again. COMMIT needs an
   attachment, ENDS and READ need none.
3. An nsqd that cannot read ranges (Go's) is refused before the first question.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from sparq.client.blocking.connection import Connection, Parts
from sparq.client.errors import SparqClientError, WrongPeerError
from sparq.client.layer_options import PLAIN, LayerOptions
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.layout import FRAME_RANGE

RANGE_FEATURE: Final = "sparq_range"
SIZES_VERSION: Final = 2
"""The version of the feature that tells sizes (`place_within`) and whether ATTACH created."""

READ_BYTES: Final = 4 << 20
"""How much one READ asks for: some ten thousand messages of a usual size."""

_RANGE_HEADER: Final = struct.Struct(">qq")

Answer = TypeVar("Answer")


class NoRangesError(SparqClientError):
    """An nsqd that cannot read ranges, or not as it is asked to; the text names it."""


class Ends(NamedTuple):
    """Where a log begins and ends; ordinals count messages from the log's beginning.

    Attributes:
        log: the log's id, 32 hex digits.
        node: the node id in the message ids.
        first: the lowest index that can be read.
        end: the index before which everything may be read.
        first_ordinal: messages before `first`.
        end_ordinal: messages before `end`.
    """

    log: str
    node: int
    first: int
    end: int
    first_ordinal: int
    end_ordinal: int


class Attached(NamedTuple):
    """A channel held for range reading.

    Attributes:
        epoch: names this attachment; a later one has a higher epoch.
        ends: the log's ends.
        committed: where the channel's cursor stands.
        committed_ordinal: messages before `committed`.
        created: whether this attachment has created the channel.
    """

    epoch: int
    ends: Ends
    committed: int
    committed_ordinal: int
    created: bool = False


class Place(NamedTuple):
    """A place in a log.

    Attributes:
        at: its index.
        at_ordinal: messages before `at`.
        from_ordinal: messages before the index that was counted from; 0 when none was.
        ends: the log's ends.
        size: bytes of the stored batches up to `at`; 0 when they were not asked for.
    """

    at: int
    at_ordinal: int
    from_ordinal: int
    ends: Ends
    size: int = 0


class RangeData(NamedTuple):
    """A piece of a range as it is stored.

    Attributes:
        next: where to go on; the range's end when there is no more.
        lost: how many messages before `next` damage has cost.
        batches: whole stored batches, which may reach over both ends of what was asked for;
            valid until the next piece or the next question.
    """

    next: int
    lost: int
    batches: memoryview


class RangeReader:
    """Asks one nsqd for ranges.

    Args:
        address: the nsqd's ``host:port`` or path.
        user_agent: shown by nsqd.
        layers: TLS, compression and AUTH of its connections.

    All questions raise `OSError` when nsqd cannot be reached, went away or took too long,
    `RemoteError` when it refused, `NoRangesError` when it is not sparq's, `TlsError` and
    `AuthRequiredError` when the layers cannot be had, and `WrongPeerError` when it is no nsqd
    at all.

    Attributes:
        address: the nsqd's ``host:port``.
    """

    def __init__(
        self, address: str, *, user_agent: str = "sparq range reader", layers: LayerOptions = PLAIN
    ) -> None:
        self.address = address
        self._user_agent = user_agent
        self._layers = layers
        self._connection: Connection | None = None

    # Questions

    def attach(self, topic: str, channel: str) -> Attached:
        """Holds a channel for this connection; a topic or channel that is missing is created."""
        answer = self._ask_json(commands.attach(topic, channel))
        return self._understood(_attached, answer)

    def ends(self, topic: str) -> Ends:
        """Where the topic's log begins and ends."""
        return self._understood(_ends, self._ask_json(commands.ends(topic)))

    def place_at_time(self, topic: str, wall_ns: int) -> Place:
        """The first message published at or after a time, else the log's end."""
        return self._understood(_place, self._ask_json(commands.ends_at_time(topic, wall_ns)))

    def place_after(self, topic: str, index: int, count: int) -> Place:
        """The place `count` messages behind `index`, at most the log's end."""
        return self._understood(_place, self._ask_json(commands.ends_after(topic, index, count)))

    def place_within(self, topic: str, index: int, max_bytes: int) -> Place:
        """How far stored batches of at most `max_bytes` reach from `index` on.

        They are counted by stretches of 64 to 128 KiB, or of one larger batch, each as a whole. The
        first stretch is passed whatever it takes.

        Raises:
            NoRangesError: nsqd is of a version that does not tell sizes.
        """
        version = self._connected().identity[RANGE_FEATURE]
        if not isinstance(version, int) or version < SIZES_VERSION:
            raise NoRangesError(f"nsqd {self.address} is too old to tell the sizes of ranges")
        command = commands.ends_within(topic, index, max_bytes)
        return self._understood(_place, self._ask_json(command))

    def commit(self, topic: str, channel: str, epoch: int, index: int) -> None:
        """Moves the held channel's cursor: everything before `index` is done."""
        self._answered(lambda open_: open_.ask(commands.commit(topic, channel, epoch, index)))

    def read(
        self, topic: str, log: str, first: int, end: int, max_bytes: int = READ_BYTES
    ) -> Iterator[RangeData]:
        """All of [first, end), piece by piece; the next piece is asked for one ahead.

        A piece is valid until the next: all are received into the same memory.

        While pieces are left, the reader may be asked nothing else; a caller that stops early
        closes the iterator, which closes the connection.
        """
        try:
            self._send(commands.read(topic, log, first, end, max_bytes))
            while first < end:
                data = self._answered(_receive_range)
                if not first < data.next <= end:
                    raise WrongPeerError(
                        f"{self.address} went from {first} to {data.next} on the way to {end}"
                    )
                first = data.next
                if first < end:
                    self._send(commands.read(topic, log, first, end, max_bytes))
                yield data
        except (GeneratorExit, WrongPeerError):
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the connection, and so of an attachment; a later question connects anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Connection

    def _ask_json(self, command: Parts) -> Mapping[str, Any]:
        return self._answered(lambda open_: open_.ask_json(command))

    def _send(self, command: bytes) -> None:
        self._answered(lambda open_: open_.send(command))

    def _answered(self, question: Callable[[Connection], Answer]) -> Answer:
        """The answer; whatever spoils the connection also drops it."""
        try:
            return question(self._connected())
        except RemoteError as refusal:
            if refusal.fatal:
                self.close()
            raise
        except (OSError, WrongPeerError):
            self.close()
            raise

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = Connection(self.address, user_agent=self._user_agent, layers=self._layers)
            if not connection.identity.get(RANGE_FEATURE):
                connection.close()
                version = connection.identity.get("version", "unknown")
                raise NoRangesError(
                    f"nsqd {self.address} (version {version}) cannot read ranges of its log: "
                    "only sparq's nsqd can"
                )
            self._connection = connection
        return self._connection

    def _understood(
        self, read: Callable[[Mapping[str, Any]], Answer], answer: Mapping[str, Any]
    ) -> Answer:
        try:
            return read(answer)
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise WrongPeerError(f"{self.address} answered {answer}: {error!r}") from None


def _receive_range(connection: Connection) -> RangeData:
    frame_type, data = connection.receive()
    if frame_type != FRAME_RANGE or len(data) < _RANGE_HEADER.size:
        raise WrongPeerError(
            f"{connection.address} answered READ with a frame of type {frame_type}"
        )
    following, lost = _RANGE_HEADER.unpack_from(data)
    return RangeData(following, lost, data[_RANGE_HEADER.size :])


def _ends(answer: Mapping[str, Any]) -> Ends:
    return Ends(
        log=str(answer["log"]),
        node=int(answer["node"]),
        first=int(answer["first"]),
        end=int(answer["end"]),
        first_ordinal=int(answer["first_ordinal"]),
        end_ordinal=int(answer["end_ordinal"]),
    )


def _attached(answer: Mapping[str, Any]) -> Attached:
    return Attached(
        epoch=int(answer["epoch"]),
        ends=_ends(answer),
        committed=int(answer["committed"]),
        committed_ordinal=int(answer["committed_ordinal"]),
        created=answer.get("created") is True,
    )


def _place(answer: Mapping[str, Any]) -> Place:
    return Place(
        at=int(answer["at"]),
        at_ordinal=int(answer["at_ordinal"]),
        from_ordinal=int(answer.get("from_ordinal", 0)),
        ends=_ends(answer),
        size=int(answer.get("size", 0)),
    )
