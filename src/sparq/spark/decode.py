"""Stored batches to Arrow record batches, a column at a time.

Offsets ``[start, start+34, end]`` of each frame, one frame after the other, make one Arrow binary
array over the bytes as they came from nsqd, without a copy: of three elements the first is a
frame's header, the second its body, the third what lies between it and the next frame (nothing, or
the header of another stored batch). Taking every third element is then the decoding.

1. No work is done per message in Python; some is done per stored batch.
2. Payload checksums are checked here, the last moment before the rows are Spark's.
3. Types are exactly those that Spark expects of a Python source: timestamps in microseconds with
   the zone UTC, 32-bit offsets.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparq.protocol import batch
from sparq.protocol.frames import FRAME_OVERHEAD, ID_SIZE

ROWS_MAX: Final = 50_000
"""Rows of one record batch: enough to make its fixed cost small, few enough for the JVM's heap."""

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("nsqd", pa.string()),
        pa.field("id", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("attempts", pa.int32()),
        pa.field("body", pa.binary()),
    ]
)

_HEADER: Final = np.dtype(
    [
        ("size", ">i4"),
        ("type", ">i4"),
        ("timestamp_ns", ">i8"),
        ("attempts", ">u2"),
        ("id", f"S{ID_SIZE}"),
    ]
)
assert _HEADER.itemsize == FRAME_OVERHEAD


class Located(NamedTuple):
    """Where frames lie in a buffer, each array of shape (n,).

    Attributes:
        starts: int32, the first byte of each frame.
        ends: int32, the byte behind each frame.
        indexes: int64, the index of each message.
    """

    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    indexes: NDArray[np.int64]

    def piece(self, at: int, count: int) -> "Located":
        """At most `count` of the frames from one on."""
        chosen = slice(at, at + count)
        return Located(self.starts[chosen], self.ends[chosen], self.indexes[chosen])


def locate(data: memoryview, first: int, end: int) -> Located:
    """The frames of [first, end) in a run of whole stored batches.

    Raises:
        ValueError: the bytes are not such a run, or a checksum is wrong.
    """
    starts, ends, indexes = [], [], []
    at = 0
    for stored in batch.walk(data):
        header = stored.header
        frames_at = at + header.header_size + 4 * stored.count
        at += header.total_size
        low = max(first - header.first_index, 0)
        high = min(end - header.first_index, stored.count)
        if low >= high:
            continue
        bounds = np.empty(stored.count + 1, np.int64)
        bounds[0] = 0
        bounds[1:] = stored.ends
        bounds += frames_at
        starts.append(bounds[low:high])
        ends.append(bounds[low + 1 : high + 1])
        indexes.append(np.arange(low, high, dtype=np.int64) + header.first_index)
    if not starts:
        nothing = np.empty(0, np.int32)
        return Located(nothing, nothing, np.empty(0, np.int64))
    return Located(
        np.concatenate(starts).astype(np.int32),
        np.concatenate(ends).astype(np.int32),
        np.concatenate(indexes),
    )


class Rows(NamedTuple):
    """The parts of some messages, from which the columns are made."""

    headers: NDArray[np.void]
    bodies: Any
    indexes: NDArray[np.int64]


def rows_of(data: memoryview, located: Located) -> Rows:
    """Headers and bodies of the frames, copied out of the buffer in one pass each."""
    count = len(located.starts)
    offsets = np.empty(3 * count, np.int32)
    offsets[0::3] = located.starts
    offsets[1::3] = located.starts + FRAME_OVERHEAD
    offsets[2::3] = located.ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    parts = pa.Array.from_buffers(pa.binary(), 3 * count - 1, buffers)
    positions = np.arange(0, 3 * count, 3, dtype=np.int32)
    headers = parts.take(pa.array(positions)).buffers()[2]
    return Rows(
        headers=np.frombuffer(headers, _HEADER, count),
        bodies=parts.take(pa.array(positions + 1)),
        indexes=located.indexes,
    )


def _text(cells: NDArray[np.bytes_]) -> Any:
    """A string column of items that all have the same size."""
    count, size = len(cells), cells.itemsize
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(cells))]
    return pa.Array.from_buffers(pa.string(), count, buffers)


_MESSAGE_COLUMNS: Final[dict[str, Callable[[Rows], Any]]] = {
    "id": lambda rows: _text(rows.headers["id"]),
    "index": lambda rows: pa.array(rows.indexes),
    "timestamp": lambda rows: pa.array(
        (rows.headers["timestamp_ns"] // 1000).astype(np.int64)
    ).view(SCHEMA.field("timestamp").type),
    "attempts": lambda rows: pa.array(rows.headers["attempts"].astype(np.int32)),
    "body": lambda rows: rows.bodies,
}


class Decoder:
    """Makes the record batches of one topic of one nsqd."""

    def __init__(self, topic: str, nsqd: str, columns: Sequence[str] = SCHEMA.names) -> None:
        self._schema = pa.schema([SCHEMA.field(name) for name in columns])
        self._constants = {
            name: pa.repeat(pa.scalar(text, pa.string()), ROWS_MAX)
            for name, text in (("topic", topic), ("nsqd", nsqd))
        }

    def decode(self, data: memoryview, first: int, end: int) -> Iterator[Any]:
        """The messages of [first, end) in a run of whole stored batches, as record batches.

        Raises:
            ValueError: the bytes are not such a run, or a checksum is wrong.
        """
        located = locate(data, first, end)
        for at in range(0, len(located.starts), ROWS_MAX):
            yield self._record_batch(rows_of(data, located.piece(at, ROWS_MAX)))

    def _record_batch(self, rows: Rows) -> Any:
        count = len(rows.indexes)
        columns = [
            self._constants[name].slice(0, count)
            if name in self._constants
            else _MESSAGE_COLUMNS[name](rows)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
