"""Encodes Arrow columns as MPUB bodies, without a Python loop over rows.

Joining each row's length, as four bytes, with its body gives one Arrow array whose data are the
messages of an MPUB in wire format; the array's offsets tell where it can be split.

A sink publishes nothing of a partition before it knows that every row can be published: `Spool`
keeps the rows until then.
"""

import os
import struct
import tempfile
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.protocol.names import is_valid_name, quote
from sparq.spark.errors import RowError

MPUB_BYTES: Final = 1 << 20
"""Maximum bytes per MPUB, even if nsqd's limit is larger: a lost reply repeats this much."""

ARROW_BYTES_MAX: Final = 1 << 30
"""Maximum bytes joined at once: Arrow's offsets have 31 bits."""

MEMORY_BYTES_MAX: Final = 64 << 20
"""Bytes that a task's spool keeps in memory; Spark's own tasks use a few hundred MiB each."""

_COUNT: Final = struct.Struct(">i")
_PREFIX_SIZE: Final = 4


class MpubBody(NamedTuple):
    """The body of one MPUB in two parts.

    Attributes:
        messages: number of messages.
        head: first part: the number of messages as four bytes.
        sized: second part: each message, preceded by its size.
    """

    messages: int
    head: bytes
    sized: memoryview


class RowPosition(NamedTuple):
    """Position of a record batch among the rows of its task, for error texts.

    Attributes:
        where: the partition, in words.
        first: the number of the batch's first row in the partition.
    """

    where: str
    first: int

    def row(self, at: Any) -> str:
        """Describe row `at` of the batch in words."""
        return f"row {self.first + int(at)} of {self.where} (counted from 0)"


def size_limit(max_msg_size: int, max_body_size: int) -> int:
    """The largest message that both of nsqd's limits allow."""
    # Every row is sent in an MPUB, even alone: its body begins with the number of messages, and
    # each message with its size.
    return min(max_msg_size, max_body_size - 2 * _PREFIX_SIZE)


def multi_publishes(bodies: Any, max_body_size: int) -> Iterator[MpubBody]:
    """Encode a binary or string column as MPUBs, in order; `check_bodies` must have passed."""
    if len(bodies) > 1 and bodies.nbytes > ARROW_BYTES_MAX:
        half = len(bodies) // 2
        yield from multi_publishes(bodies[:half], max_body_size)
        yield from multi_publishes(bodies[half:], max_body_size)
        return
    sizes = np.asarray(pc.binary_length(bodies)).astype(np.int64)
    prefixes = pa.Array.from_buffers(
        pa.binary(_PREFIX_SIZE), len(sizes), [None, pa.py_buffer(sizes.astype(">i4"))]
    )
    joined = pc.binary_join_element_wise(
        prefixes.cast(pa.binary()), bodies.cast(pa.binary()), pa.scalar(b"", pa.binary())
    )
    data = memoryview(joined.buffers()[2] or b"")
    ends = np.cumsum(sizes + _PREFIX_SIZE)
    room = min(max_body_size, MPUB_BYTES) - _PREFIX_SIZE
    first, begin = 0, 0
    # Each MPUB is a view of `data`: nothing is copied per message or per MPUB.
    while first < len(ends):
        # A message larger than `room` gets an MPUB of its own; nsqd's limit was checked before.
        last = max(int(np.searchsorted(ends, begin + room, side="right")), first + 1)
        end = int(ends[last - 1])
        yield MpubBody(last - first, _COUNT.pack(last - first), data[begin:end])
        first, begin = last, end


def check_bodies(bodies: Any, size_max: int, rows: RowPosition) -> None:
    """Check that every row of a column can become a message.

    Args:
        bodies: a binary or string column.
        size_max: the largest message, in bytes.
        rows: the column's position, for the error text.

    Raises:
        RowError: a row cannot; the text names it.
    """
    if bodies.null_count:
        row = pc.index(bodies.is_null(), pa.scalar(value=True)).as_py()
        raise RowError(f"{rows.row(row)} has no body (null)")
    sizes = np.asarray(pc.binary_length(bodies))
    if len(sizes) and not sizes.min():
        raise RowError(
            f"{rows.row(sizes.argmin())} has an empty body: a message needs at least one byte"
        )
    if len(sizes) and sizes.max() > size_max:
        raise RowError(
            f"{rows.row(sizes.argmax())} has a body of {sizes.max()} bytes, "
            f"over the limit of {size_max} (options max_msg_size, max_body_size)"
        )


def check_topics(topics: Any, rows: RowPosition) -> None:
    """Check that every row of a column is a legal topic name.

    Raises:
        RowError: a row is not; the text names it.
    """
    if topics.null_count:
        row = pc.index(topics.is_null(), pa.scalar(value=True)).as_py()
        raise RowError(f"{rows.row(row)} has no topic (null)")
    for topic in pc.unique(topics):
        if not is_valid_name(topic.as_py()):
            row = pc.index(topics, topic).as_py()
            raise RowError(f"{rows.row(row)} has an invalid topic name: {quote(topic.as_py())}")


def by_topic(topics: Any, bodies: Any) -> Iterator[tuple[str, Any]]:
    """Each topic with its bodies; a topic's bodies keep their order."""
    for topic in pc.unique(topics):
        yield topic.as_py(), bodies.filter(pc.equal(topics, topic))


class Spool:
    """Record batches, written once and read once; `close` deletes them.

    They are kept as an Arrow IPC stream: in memory up to `MEMORY_BYTES_MAX`, beyond it in a
    temporary file.
    """

    def __init__(self) -> None:
        # Spark's executors have their own directories for data that does not fit into memory.
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close()
            MEMORY_BYTES_MAX, dir=folder if os.path.isdir(folder) else None
        )
        self._writer: Any = None

    def add(self, rows: Any) -> None:
        """Keep a record batch; all must have the same columns."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        self._writer.write_batch(rows)

    def batches(self) -> Iterator[Any]:
        """The record batches, in order."""
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Delete the kept batches."""
        self._file.close()
