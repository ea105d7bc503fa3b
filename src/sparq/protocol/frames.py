"""Frames and messages as bytes, encoded and decoded in batches.

``layout`` documents the layout of one frame.

1. A message is encoded once, as the frame that its consumers will receive; the log stores this
   form.
2. A run is ``frames`` (consecutive frames) and ``ends`` (uint32: where each frame ends). Slicing a
   run does not require walking through its frames.
3. Functions over runs have an array path and, for few items, a scalar path with the same result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.protocol.layout import (
    ATTEMPTS_MAX,
    ATTEMPTS_OFFSET,
    FRAME_HEADER_SIZE,
    ID_SIZE,
    INVALID_ID,
    Buffer,
)

VECTOR_MIN: Final = 16
"""Below this number of items plain Python is faster than arrays."""

Ends = NDArray[np.uint32]
Offsets = list[int] | NDArray[np.int64]
Starts = range | Offsets
Run = range | NDArray[np.int64]
"""Positions of consecutive items; a range if all items have the same width."""


# Not frozen, like all dataclasses created per run: freezing triples the cost of creating one.
@dataclass(slots=True, eq=False)
class BodySlices:
    """Message bodies as slices of the buffer in which they arrived, which does not change any more.

    Attributes:
        buffer: holds the bodies, with arbitrary bytes between them.
        starts: where each body begins, ascending; a list, an int64 array, or a range. A range also
            means that all bodies have one size: a run of equal commands then needs no array.
        sizes: the bodies' sizes in bytes; a list or an int64 array, with a range always a list.
    """

    buffer: bytes | bytearray
    starts: Starts
    sizes: Offsets

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> "BodySlices":
        """Join bodies that are separate objects."""
        sizes = [len(body) for body in bodies]
        return cls(b"".join(bodies), list(accumulate(sizes, initial=0))[:-1], sizes)

    @classmethod
    def even(cls, buffer: bytes | bytearray, starts: range, size: int) -> "BodySlices":
        """Bodies of one size at even distances."""
        return cls(buffer, starts, [size] * len(starts))

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[memoryview]:
        view = memoryview(self.buffer)
        for start, size in zip(self.starts, self.sizes, strict=True):
            yield view[start : start + size]

    @property
    def size_bytes(self) -> int:
        """Total size of the bodies in bytes."""
        if isinstance(self.starts, range):
            return int(self.sizes[0]) * len(self.starts) if self.starts else 0
        return int(sum(self.sizes)) if isinstance(self.sizes, list) else int(self.sizes.sum())


def parse_raw_id(text: Buffer) -> int:
    """The number that an id encodes; INVALID_ID if it is not 16 lower-case hex digits."""
    if len(text) != ID_SIZE:
        return INVALID_ID
    try:
        raw = int(bytes(text), 16)
    except ValueError:
        return INVALID_ID
    # int() also accepts capitals, signs, spaces and underscores: formatting it again detects them.
    return raw if raw >= 0 and b"%016x" % raw == text else INVALID_ID


# Reading and changing runs


def patch_attempts(
    frames: Buffer, ends: NDArray[np.integer], attempts: int | NDArray[np.integer]
) -> bytearray:
    """Copy a run and set the attempts of each message, capped at 65,535.

    Args:
        frames: the run.
        ends: the end of each frame.
        attempts: one number for all messages, or one for each.
    """
    patched = bytearray(frames)
    cells = np.frombuffer(patched, np.uint8)
    at = np.empty(len(ends), np.int64)
    # A slice, because at[0] would raise for an empty run.
    at[:1] = ATTEMPTS_OFFSET
    np.add(ends[:-1], ATTEMPTS_OFFSET, out=at[1:], casting="unsafe")
    capped = np.minimum(np.asarray(attempts, np.int64), ATTEMPTS_MAX)
    # Byte by byte, because frames have any length and so the field has no fixed alignment.
    cells[at] = (capped >> 8).astype(np.uint8)
    cells[at + 1] = (capped & 0xFF).astype(np.uint8)
    return patched


def patch_timestamps(
    frames: Buffer, ends: NDArray[np.integer], timestamps: NDArray[np.int64]
) -> bytes:
    """Copy a run and set the timestamp of each message.

    Args:
        frames: the run.
        ends: the end of each frame.
        timestamps: one for each message, ns since 1970.
    """
    patched = bytearray(frames)
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1]
    cells = np.frombuffer(patched, np.uint8)
    at = starts[:, None] + np.arange(FRAME_HEADER_SIZE, ATTEMPTS_OFFSET)
    cells[at] = timestamps.astype(">i8").view(np.uint8).reshape(-1, 8)
    return bytes(patched)
