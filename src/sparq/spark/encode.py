"""Arrow columns to the bodies of MPUBs, without a Python loop over rows.

Joining each row's length, as four bytes, with its body gives one Arrow array whose data are the
messages of an MPUB as they stand on the wire; its offsets tell where it may be cut.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.spark.errors import RowError

MPUB_BYTES: Final = 1 << 20
"""How much goes into one MPUB where nsqd's limit allows more: what a lost answer repeats."""

ARROW_BYTES_MAX: Final = 1 << 30
"""More than this is not joined at once: Arrow's offsets have 31 bits."""

_COUNT: Final = struct.Struct(">i")
_PREFIX_SIZE: Final = 4


class MultiPublish(NamedTuple):
    """The body of one MPUB in two parts.

    Attributes:
        messages: how many messages it has.
        head: the first part: their number as four bytes.
        sized: the second: each message behind its size.
    """

    messages: int
    head: bytes
    sized: memoryview


def multi_publishes(bodies: Any, max_msg_size: int, max_body_size: int) -> Iterator[MultiPublish]:
    """The rows of a binary or string column as MPUBs, in order.

    Raises:
        RowError: a row cannot become a message.
    """
    if len(bodies) > 1 and bodies.nbytes > ARROW_BYTES_MAX:
        half = len(bodies) // 2
        yield from multi_publishes(bodies[:half], max_msg_size, max_body_size)
        yield from multi_publishes(bodies[half:], max_msg_size, max_body_size)
        return
    sizes = _checked_sizes(bodies, min(max_msg_size, max_body_size - 2 * _PREFIX_SIZE))
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
    while first < len(ends):
        # A message larger than what one MPUB should have goes alone; the limit was checked.
        last = max(int(np.searchsorted(ends, begin + room, side="right")), first + 1)
        end = int(ends[last - 1])
        yield MultiPublish(last - first, _COUNT.pack(last - first), data[begin:end])
        first, begin = last, end


def _checked_sizes(bodies: Any, size_max: int) -> Any:
    """The size of each body in bytes, int64, shape (n,)."""
    if bodies.null_count:
        row = pc.index(bodies.is_null(), pa.scalar(value=True)).as_py()
        raise RowError(f"row {row} of a record batch has no body (null)")
    sizes = np.asarray(pc.binary_length(bodies)).astype(np.int64)
    if len(sizes) and not sizes.min():
        raise RowError(
            f"row {int(sizes.argmin())} of a record batch has an empty body: "
            "a message has one byte at least"
        )
    if len(sizes) and sizes.max() > size_max:
        raise RowError(
            f"row {int(sizes.argmax())} of a record batch has a body of {sizes.max()} bytes, "
            f"more than {size_max} (options max_msg_size, max_body_size)"
        )
    return sizes


def by_topic(topics: Any, bodies: Any) -> Iterator[tuple[str, Any]]:
    """The bodies of each topic, in order within a topic.

    Raises:
        RowError: a row has no topic.
    """
    if topics.null_count:
        row = pc.index(topics.is_null(), pa.scalar(value=True)).as_py()
        raise RowError(f"row {row} of a record batch has no topic (null)")
    for topic in pc.unique(topics):
        yield topic.as_py(), bodies.filter(pc.equal(topics, topic))
