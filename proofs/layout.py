"""Finds messages in a log's files: follows docs/log_format.md and uses no code of sparq.

A proof that damages files must know the meaning of each byte. This module reads only undamaged
files, checks nothing, and stops at the first bytes that are no batch.
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
    """One batch: its position in a file, and its messages.

    Attributes:
        path: the file.
        offset, size: position in the file and size, in bytes.
        frames_at: offset in the file at which its frames begin.
        first_index: index of its first message.
        bodies: bodies of its messages, in order.
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
        """Whether any of its bytes is in [start, end) of the file."""
        return self.offset < end and start < self.offset + self.size


def batches(path: str, data: bytes) -> Iterator[Stored]:
    """The batches of a segment, from the bytes of its file."""
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
