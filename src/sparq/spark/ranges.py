"""Ranges of logs as Spark partitions: read from nsqd in the executors, decoded into Arrow.

1. The rows of a range are counted against the log's ordinals: a range gives every message exactly
   once, or fails, or (without failOnDataLoss) reports how many are missing.
2. An interrupted read continues where the last whole piece ended. Rows that Spark already has are
   never returned again.

Decoding works on one column at a time. Bodies: the offsets ``[body, end]`` of all frames in a row
form one Arrow binary array over the bytes as nsqd sent them, without a copy. Every second element
is a body; the others are the bytes between two bodies. Fields of the frames' headers: an array over
the same bytes with an overlapping item at every byte, indexed by the field's offset in each frame.

3. No Python code runs per message; some runs per stored batch.
4. Payload checksums are verified here, at the last moment before Spark gets the rows.
5. Types are exactly those that Spark expects of a Python source: timestamps in microseconds with
   the zone UTC, 32-bit offsets.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import TaskContext

from sparq.client.range_reader import RangeData, RangeReader
from sparq.protocol import batch
from sparq.protocol.errors import RemoteError
from sparq.protocol.layout import FRAME_OVERHEAD, ID_OFFSET, ID_SIZE
from sparq.spark.errors import RetryDeadline, may_pass, report_loss
from sparq.spark.options import ClusterOptions

ROWS_MAX: Final = 50_000
"""Rows per record batch: enough to make its fixed cost small, few enough for the JVM's heap."""

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("nsqd", pa.string()),
        pa.field("id", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("body", pa.binary()),
    ]
)

_TIMESTAMP_OFFSET: Final = 8
_NS_PER_US: Final = 1000


class Range(NamedTuple):
    """Messages [first, end) of one log.

    Attributes:
        topic, nsqd: the values of these columns.
        address, log: the nsqd to read from, and the id of its log.
        first, end: the first index, and the index after the last one.
        ordinal: messages in the log before `first`.
        messages: number of messages in the range.
    """

    topic: str
    nsqd: str
    address: str
    log: str
    first: int
    end: int
    ordinal: int
    messages: int

    def __str__(self) -> str:
        return f"[{self.first}, {self.end}) of topic {self.topic} at nsqd {self.address}"


@cache
def freeze_loaded_objects() -> None:
    """Exclude all objects loaded so far from garbage collection (`gc.freeze`), in a task only.

    Spark's worker collects garbage after each task. With all modules loaded, this took 60 ms: a
    third of the time of a task of 500,000 rows, and most of the time of a small one.
    """
    # Cached: once per worker process, which Spark uses for many tasks.
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


def read_range(
    wanted: Range, columns: Sequence[str], cluster: ClusterOptions, *, fails: bool = True
) -> Iterator[Any]:
    """The range's messages as Arrow record batches of these columns.

    Raises:
        UnreachableError: nsqd stayed unreachable for longer than the timeout.
        DataLossError: messages are lost, and `fails` is set (failOnDataLoss).
        RemoteError, NoRangesError, WrongPeerError, TlsError, AuthRequiredError, BatchError:
            unexpected refusals and damaged data; they are not retried.
    """
    freeze_loaded_objects()
    decoder = Decoder(wanted.topic, wanted.nsqd, columns)
    reader = RangeReader(wanted.address, user_agent="sparq spark task", layers=cluster.layers)
    reading = _Reading(wanted, reader, cluster.timeout_ms, fails=fails)
    try:
        for first, data in reading.pieces():
            for rows in decoder.decode(data.batches, first, data.next):
                reading.rows += rows.num_rows
                yield rows
        reading.check_count()
    finally:
        reader.close()


class _Reading:
    """One pass over a range, which continues after connection failures.

    Attributes:
        rows: number of messages decoded so far.
    """

    def __init__(self, wanted: Range, reader: RangeReader, timeout_ms: int, *, fails: bool) -> None:
        self.rows = 0
        self._wanted = wanted
        self._fails = fails
        self._lost = 0
        self._at = wanted.first
        self._reader = reader
        self._patience = RetryDeadline(f"nsqd {wanted.address}", timeout_ms)

    def pieces(self) -> Iterator[tuple[int, RangeData]]:
        """Each piece of the range, with the index of the first message to take from it."""
        while self._at < self._wanted.end:
            try:
                yield from self._pieces_of_one_connection()
            except OSError as error:
                self._patience.wait(error)
            except RemoteError as refusal:
                if may_pass(refusal):
                    self._patience.wait(refusal)
                elif refusal.code == "E_RANGE_FAILED":
                    self._refused(refusal)
                else:
                    raise

    def _pieces_of_one_connection(self) -> Iterator[tuple[int, RangeData]]:
        wanted = self._wanted
        for data in self._reader.read(wanted.topic, wanted.log, self._at, wanted.end):
            if data.lost:
                self._missing(data.lost, f"their data before index {data.next} is damaged")
            yield self._at, data
            # After the `yield`: Spark has all rows of the piece by now, so a reconnect continues
            # after it.
            self._at = data.next
            self._patience.reset()

    def _refused(self, refusal: RemoteError) -> None:
        """Find out why nsqd refused the range; skip a gap, report lost messages, or wait."""
        wanted = self._wanted
        try:
            ends = self._reader.ends(wanted.topic)
        except OSError as error:
            self._patience.wait(error)
            return
        except RemoteError as error:
            if may_pass(error):
                return  # the next READ gets the same refusal and waits
            ends = None
        left = wanted.messages - self.rows - self._lost
        if ends is None or ends.log != wanted.log:
            self._missing(left, f"their log no longer exists ({refusal})")
            self._at = wanted.end
            return
        # nsqd has the first message that is missing here: the range ends too late, or (if nsqd has
        # its end, too) the refusal has another reason, which no retry removes.
        if self._at >= ends.first:
            if ends.end >= wanted.end:
                raise refusal
            # Right after a restart nsqd holds the log's end back until it knows all channels.
            self._patience.wait(refusal)
            return
        # Some indexes before the log's first message may never have had a message.
        gone = ends.first_ordinal - (wanted.ordinal + self.rows + self._lost)
        # The log may now begin after this range: then `gone` also counts messages that are not of
        # this range, hence `min`.
        if gone > 0:
            self._missing(
                min(gone, left), f"they were deleted before this query read them ({refusal})"
            )
        self._at = min(ends.first, wanted.end)

    def _missing(self, count: int, why: str) -> None:
        self._lost += count
        wanted = self._wanted
        place = f"topic {wanted.topic} at nsqd {wanted.address}"
        report_loss(f"{count:,} messages of {place} are lost: {why}", fails=self._fails)

    def check_count(self) -> None:
        """Check that the range had as many messages as the log's ordinals say."""
        found, wanted = self.rows + self._lost, self._wanted
        if found != wanted.messages:
            text = f"{wanted} has {found} messages instead of {wanted.messages}"
            report_loss(text, fails=self._fails)


# Decoding


class FramePositions(NamedTuple):
    """Positions of frames in a buffer; each array has the shape (n,).

    Attributes:
        starts: the first byte of each frame.
        ends: the byte after each frame.
        indexes: the index of each message.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    indexes: NDArray[np.int64]

    def piece(self, at: int, count: int) -> "FramePositions":
        """At most `count` frames, from position `at` on."""
        chosen = slice(at, at + count)
        return FramePositions(self.starts[chosen], self.ends[chosen], self.indexes[chosen])


def locate(data: memoryview, first: int, end: int) -> FramePositions:
    """Locate the frames of [first, end) in consecutive whole stored batches.

    Raises:
        ValueError: the bytes are not whole stored batches, or a checksum is wrong.
    """
    ends: list[NDArray[np.uint32]] = []
    bases: list[int] = []
    first_indexes: list[int] = []
    at = 0
    # Collect per batch, compute once for all: a log of single PUBs has many small batches, and each
    # array operation has a fixed cost.
    for stored in batch.walk(data):
        header = stored.header
        ends.append(stored.ends)
        bases.append(at + header.header_size + 4 * stored.count)
        first_indexes.append(header.first_index)
        at += header.total_size
    if not ends:
        nothing = np.empty(0, np.int64)
        return FramePositions(nothing, nothing, nothing)
    counts = np.fromiter(map(len, ends), np.int64, len(ends))
    begins = np.cumsum(counts) - counts
    stops = np.concatenate(ends).astype(np.int64) + np.repeat(np.array(bases, np.int64), counts)
    # A frame begins where the previous one ends; the first of a batch, after the batch's header and
    # end offsets.
    starts = np.empty_like(stops)
    starts[1:] = stops[:-1]
    starts[begins] = bases
    indexes = np.arange(len(stops)) + np.repeat(np.array(first_indexes, np.int64) - begins, counts)
    # READ returns whole batches: the first and the last may extend beyond the range.
    low, high = np.searchsorted(indexes, (first, end)).tolist()
    return FramePositions(starts, stops, indexes).piece(low, high - low)


def _fields(data: memoryview, frames: FramePositions, offset: int, kind: str) -> NDArray[Any]:
    """One header field of each frame, by its offset in the frame and its dtype, shape (n,)."""
    size = np.dtype(kind).itemsize
    at_every_byte: NDArray[np.void] = np.ndarray(
        (len(data) - size + 1,), f"V{size}", data, strides=(1,)
    )
    # Indexing plain bytes is several times faster than indexing a dtype with a byte order.
    return at_every_byte[frames.starts + offset].view(kind)


def _ids(data: memoryview, frames: FramePositions) -> Any:
    ids = _fields(data, frames, ID_OFFSET, f"S{ID_SIZE}")
    offsets = np.arange(0, (len(ids) + 1) * ID_SIZE, ID_SIZE, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(ids)]
    return pa.Array.from_buffers(pa.string(), len(ids), buffers)


def _timestamps(data: memoryview, frames: FramePositions) -> Any:
    stamps_ns = _fields(data, frames, _TIMESTAMP_OFFSET, ">i8").astype(np.int64)
    return pa.array(stamps_ns // _NS_PER_US).view(SCHEMA.field("timestamp").type)


def _bodies(data: memoryview, frames: FramePositions) -> Any:
    count = len(frames.starts)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = frames.starts
    offsets[0::2] += FRAME_OVERHEAD
    offsets[1::2] = frames.ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    parts = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    positions = pa.array(np.arange(0, 2 * count, 2, dtype=np.int64))
    # The copy that `take` makes is needed: the client receives the next piece into the same memory.
    return pc.take(parts, positions, boundscheck=False)


_MESSAGE_COLUMNS: Final[dict[str, Callable[[memoryview, FramePositions], Any]]] = {
    "id": _ids,
    "index": lambda _, frames: pa.array(frames.indexes),
    "timestamp": _timestamps,
    "body": _bodies,
}


class Decoder:
    """Makes record batches from the stored batches of one topic at one nsqd."""

    def __init__(self, topic: str, nsqd: str, columns: Sequence[str] = SCHEMA.names) -> None:
        self._schema = pa.schema([SCHEMA.field(name) for name in columns])
        # Dictionaries would be smaller, but Spark accepts only the exact type. One array is made,
        # of which every record batch gets a slice.
        self._constants = {
            name: pa.repeat(pa.scalar(text, pa.string()), ROWS_MAX)
            for name, text in (("topic", topic), ("nsqd", nsqd))
        }

    def decode(self, data: memoryview, first: int, end: int) -> Iterator[Any]:
        """Decode the messages of [first, end) in consecutive whole stored batches.

        Raises:
            ValueError: the bytes are not whole stored batches, or a checksum is wrong.
        """
        located = locate(data, first, end)
        for at in range(0, len(located.starts), ROWS_MAX):
            yield self._record_batch(data, located.piece(at, ROWS_MAX))

    def _record_batch(self, data: memoryview, frames: FramePositions) -> Any:
        count = len(frames.starts)
        columns = [
            self._constants[name].slice(0, count)
            if name in self._constants
            else _MESSAGE_COLUMNS[name](data, frames)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
