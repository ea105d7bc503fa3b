"""Read a topic's log by ranges: ATTACH, ENDS, READ and COMMIT over a blocking connection.

A range [a, b) of a log has the same messages each time it is read. So indexes can serve as the
offsets of a stream processor, which runs a batch again after a failure.

1. A reader connects on its first command and, after a failure, on the next command. It never
   retries by itself: only its owner knows how long to retry.
2. An attachment lasts as long as its connection: after an `OSError`, attach again. COMMIT needs an
   attachment; ENDS and READ do not.
3. An nsqd that cannot read ranges (Go's) is refused before the first command.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from sparq.client.blocking.connection import BlockingConnection
from sparq.client.errors import SparqClientError, WrongPeerError
from sparq.protocol import commands
from sparq.protocol.layout import FRAME_RANGE
from sparq.wire.layer_options import PLAIN, LayerOptions

RANGE_FEATURE: Final = "sparq_range"
SIZES_VERSION: Final = 2
"""Version of the feature that reports sizes (`place_within`) and if ATTACH created a channel."""

READ_BYTES: Final = 4 << 20
"""Bytes requested by one READ: about ten thousand messages of a usual size."""

_RANGE_HEADER: Final = struct.Struct(">qq")

Answer = TypeVar("Answer")


class NoRangesError(SparqClientError):
    """The nsqd cannot read ranges, or its version lacks the command; the text names it."""


class Ends(NamedTuple):
    """The bounds of a log; ordinals count messages from the log's beginning.

    Attributes:
        log: the log's id, 32 hex digits.
        node: the node id in the message ids.
        first: the lowest index that can be read.
        end: the index after the last one that can be read.
        first_ordinal: number of messages before `first`.
        end_ordinal: number of messages before `end`.
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
        epoch: identifies this attachment; a later one has a higher epoch.
        ends: the bounds of the log.
        committed: the index of the channel's cursor.
        committed_ordinal: number of messages before `committed`.
        created: whether this attachment created the channel.
    """

    epoch: int
    ends: Ends
    committed: int
    committed_ordinal: int
    created: bool = False


class Place(NamedTuple):
    """A position in a log.

    Attributes:
        at: its index.
        at_ordinal: number of messages before `at`.
        from_ordinal: number of messages before the start index of the query; 0 without one.
        ends: the bounds of the log.
        size: bytes of the stored batches from the start index to `at`; 0 if not requested.
    """

    at: int
    at_ordinal: int
    from_ordinal: int
    ends: Ends
    size: int = 0


class RangeData(NamedTuple):
    """A piece of a range in its stored form.

    Attributes:
        next: the index at which the next piece starts; the range's end after the last piece.
        lost: number of messages before `next` lost to damage.
        batches: whole stored batches, which may extend beyond both ends of the requested range;
            valid until the next piece or the next command.
    """

    next: int
    lost: int
    batches: memoryview


class RangeReader:
    """Reads ranges from one nsqd.

    All commands raise `OSError` if nsqd cannot be reached, closes the connection or times out,
    `RemoteError` if it refuses, `NoRangesError` if it is not sparq's, `TlsError` or
    `AuthRequiredError` if TLS or AUTH fails, and `WrongPeerError` if the peer is not an nsqd.

    Args:
        address: the nsqd's ``host:port`` or path.
        user_agent: shown by nsqd.
        layers: TLS, compression and AUTH of its connections.

    Attributes:
        address: the nsqd's ``host:port`` or path.
    """

    def __init__(
        self, address: str, *, user_agent: str = "sparq range reader", layers: LayerOptions = PLAIN
    ) -> None:
        self.address = address
        self._user_agent = user_agent
        self._layers = layers
        self._connection: BlockingConnection | None = None

    # Commands

    def attach(self, topic: str, channel: str) -> Attached:
        """Hold a channel for this connection; a missing topic or channel is created."""
        return self._ask(_attached, commands.attach(topic, channel))

    def ends(self, topic: str) -> Ends:
        """Return the bounds of the topic's log."""
        return self._ask(_ends, commands.ends(topic))

    def place_at_time(self, topic: str, wall_ns: int) -> Place:
        """Return the position of the first message at or after a time, else the log's end."""
        return self._ask(_place, commands.ends(topic, "time", wall_ns))

    def place_after(self, topic: str, index: int, count: int) -> Place:
        """Return the position `count` messages after `index`, at most the log's end."""
        return self._ask(_place, commands.ends(topic, "after", index, count))

    def place_within(self, topic: str, index: int, max_bytes: int) -> Place:
        """Return the position that at most `max_bytes` of stored batches reach from `index` on.

        Batches are counted in whole extents of 64 to 128 KiB, or of one larger batch. The first
        extent always counts, even if it is larger than `max_bytes`.

        Raises:
            NoRangesError: this version of nsqd does not report sizes.
        """
        version = self._connected().identity[RANGE_FEATURE]
        if not isinstance(version, int) or version < SIZES_VERSION:
            raise NoRangesError(
                f"nsqd {self.address} is too old to report the sizes of ranges: upgrade it"
            )
        return self._ask(_place, commands.ends(topic, "within", index, max_bytes))

    def commit(self, topic: str, channel: str, epoch: int, index: int) -> None:
        """Move the cursor of the held channel to `index`: all messages before it are processed."""
        self._connected().ask(commands.commit(topic, channel, epoch, index))

    def read(
        self, topic: str, log: str, first: int, end: int, max_bytes: int = READ_BYTES
    ) -> Iterator[RangeData]:
        """Read [first, end) piece by piece; the next piece is requested one ahead.

        A piece is valid until the next one: all are received into the same buffer.

        While pieces are left, the reader accepts no other command. A caller that stops early must
        close the iterator, which closes the connection.
        """
        connection = self._connected()
        # Also if the caller stops early: the piece requested ahead is still to come, and the next
        # command would take it for its answer.
        with connection.closed_after_failure():
            connection.send(commands.read(topic, log, first, end, max_bytes))
            while first < end:
                data = _receive_range(connection)
                # Otherwise the loop might never end, or messages be passed over.
                if not first < data.next <= end:
                    raise WrongPeerError(
                        f"{self.address} answered READ from {first} to {end} "
                        f"with the next index {data.next}"
                    )
                first = data.next
                if first < end:
                    connection.send(commands.read(topic, log, first, end, max_bytes))
                yield data

    def close(self) -> None:
        """Close the connection, and with it an attachment; the next command connects again."""
        if self._connection is not None:
            self._connection.close()

    # Connection

    def _connected(self) -> BlockingConnection:
        """Return the connection; a new one after a failure, which closed the one before."""
        if self._connection is None or self._connection.closed:
            connection = BlockingConnection(
                self.address, user_agent=self._user_agent, layers=self._layers
            )
            if not connection.identity.get(RANGE_FEATURE):
                connection.close()
                version = connection.identity.get("version", "unknown")
                raise NoRangesError(
                    f"nsqd {self.address} (version {version}) cannot read ranges of its log: "
                    "only sparq's nsqd can"
                )
            self._connection = connection
        return self._connection

    def _ask(self, read: Callable[[Mapping[str, Any]], Answer], command: bytes) -> Answer:
        answer = self._connected().ask_json(command)
        try:
            return read(answer)
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise WrongPeerError(f"{self.address} answered with {answer}: {error!r}") from None


def _receive_range(connection: BlockingConnection) -> RangeData:
    frame_type, data = connection.receive()
    if frame_type != FRAME_RANGE or len(data) < _RANGE_HEADER.size:
        raise WrongPeerError(
            f"{connection.address} answered READ with a frame of type {frame_type}"
        )
    following, lost = _RANGE_HEADER.unpack_from(data)
    return RangeData(following, lost, data[_RANGE_HEADER.size :])


def _numbers(answer: Mapping[str, Any], *names: str) -> list[int]:
    return [int(answer[name]) for name in names]


def _ends(answer: Mapping[str, Any]) -> Ends:
    numbers = _numbers(answer, "node", "first", "end", "first_ordinal", "end_ordinal")
    return Ends(str(answer["log"]), *numbers)


def _attached(answer: Mapping[str, Any]) -> Attached:
    epoch, committed, ordinal = _numbers(answer, "epoch", "committed", "committed_ordinal")
    return Attached(epoch, _ends(answer), committed, ordinal, answer.get("created") is True)


def _place(answer: Mapping[str, Any]) -> Place:
    at, at_ordinal = _numbers(answer, "at", "at_ordinal")
    from_ordinal, size = int(answer.get("from_ordinal", 0)), int(answer.get("size", 0))
    return Place(at, at_ordinal, from_ordinal, _ends(answer), size)
