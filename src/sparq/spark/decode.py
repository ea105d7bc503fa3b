"""Decodes stored batches into Arrow record batches, one column at a time.

Bodies: the offsets ``[body, end]`` of all frames in a row form one Arrow binary array over the
bytes as nsqd sent them, without a copy. Every second element is a body; the others are the bytes
between two bodies. Decoding means taking every second element. Fields of the frames' headers: an
array over the same bytes with an overlapping item at every byte, indexed by the field's offset in
each frame.

1. No Python code runs per message; some runs per stored batch.
2. Payload checksums are verified here, at the last moment before Spark gets the rows.
3. Types are exactly those that Spark expects of a Python source: timestamps in microseconds with
   the zone UTC, 32-bit offsets.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparq.protocol import batch
from sparq.protocol.layout import FRAME_OVERHEAD, ID_OFFSET, ID_SIZE

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
