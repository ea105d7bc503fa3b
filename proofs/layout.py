"""Where messages lie in a log's files, read as docs/log_format.md has it and not by sparq's code.

Who damages files must know what each byte belongs to. This reads only whole files, checks nothing,
and stops at what is no batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SEGMENT_HEADER_SIZE = 128
HEADER_COPIES = (0, 4096)
DATA_START = 4608
FRAME_HEADER_SIZE = 34
_BATCH = struct.Struct("<4sHBBB3xIQQqqqIIIII4x")


class Stored(NamedTuple):
    """One batch: where it lies, and what it holds.

    Attributes:
        offset, size: its bytes in the file.
        frames_at: where in the file its frames begin.
        first_index: of its first message.
        bodies: in order.
    """

    path: str
    offset: int
    size: int
    frames_at: int
    first_index: int
    bodies: tuple[bytes, ...]

    @property
    def indexes(self) -> range:
        """The indexes of its messages."""
        return range(self.first_index, self.first_index + len(self.bodies))

    def touches(self, start: int, end: int) -> bool:
        """Whether any of its bytes lies in [start, end) of the file."""
        return self.offset < end and start < self.offset + self.size


def batches(path: str, data: bytes) -> Iterator[Stored]:
    """The batches of a segment with these bytes."""
    at = DATA_START
    while at + _BATCH.size <= len(data):
        fields = _BATCH.unpack_from(data, at)
        magic, header_size, first_index, count, total = (fields[i] for i in (0, 1, 8, 11, 14))
        if magic != b"SPQB":
            return
        ends = struct.unpack_from(f"<{count}I", data, at + header_size)
        frames_at = at + header_size + 4 * count
        edges = zip((0, *ends), ends, strict=False)
        bodies = tuple(
            data[frames_at + start + FRAME_HEADER_SIZE : frames_at + end] for start, end in edges
        )
        yield Stored(path, at, total, frames_at, first_index, bodies)
        at += total
