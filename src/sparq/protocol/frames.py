"""Frames and messages as bytes, made and read by the batch.

The layout of one frame stands in ``layout``.

1. A message is written once, as the frame its consumers will receive; the log stores this form.
2. A run is ``frames`` (frame after frame) and ``ends`` (uint32: where each frame ends). Slicing a
   run needs no walk.
3. Functions over runs have an array path and, for few items, a scalar one with the same answer.
"""

from binascii import hexlify
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
    INDEX_BITS,
    INVALID_ID,
    Buffer,
)

VECTOR_MIN: Final = 16
"""Below so many items plain Python is faster than arrays."""

Ends = NDArray[np.uint32]
Offsets = list[int] | NDArray[np.int64]
Starts = range | Offsets
Run = range | NDArray[np.int64]
"""Places of things that follow each other; a range where all are of one width."""


# Not frozen, as nothing is that is made for each run: freezing triples what the making costs.
@dataclass(slots=True, eq=False)
class Bodies:
    """Message bodies where they arrived: pieces of one buffer that nobody changes.

    Attributes:
        buffer: holds the bodies, with anything between them.
        starts: where each body begins, ascending; a list, an int64 array, or a range, which also
            says that all have one size: a run of equal commands then costs no array at all.
        sizes: the bodies' sizes in bytes; a list or an int64 array, beside a range a list.
    """

    buffer: bytes | bytearray
    starts: Starts
    sizes: Offsets

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> "Bodies":
        """Bodies that lie in separate objects, joined."""
        sizes = [len(body) for body in bodies]
        return cls(b"".join(bodies), list(accumulate(sizes, initial=0))[:-1], sizes)

    @classmethod
    def even(cls, buffer: bytes | bytearray, starts: range, size: int) -> "Bodies":
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
        """The bodies' bytes in all."""
        if isinstance(self.starts, range):
            return int(self.sizes[0]) * len(self.starts) if self.starts else 0
        return int(sum(self.sizes)) if isinstance(self.sizes, list) else int(self.sizes.sum())


def joined(runs: Sequence[Run]) -> NDArray[np.int64]:
    """Runs as one array."""
    return np.concatenate([_as_array(run) for run in runs])


def _as_array(run: Run) -> NDArray[np.int64]:
    # From a range itself numpy would take item by item.
    if isinstance(run, range):
        return np.arange(run.start, run.stop, run.step, dtype=np.int64)
    return run


# Ids


def message_id(index: int, node_id: int) -> bytes:
    """The 16 hex digits that stand for this index of this node."""
    return b"%016x" % (node_id << INDEX_BITS | index)


def message_ids(indexes: NDArray[np.int64], node_id: int) -> NDArray[np.bytes_]:
    """The ids of many indexes, shape (n,), dtype S16."""
    raw = (np.asarray(indexes).astype(np.uint64) | np.uint64(node_id << INDEX_BITS)).astype(">u8")
    return np.frombuffer(hexlify(raw.tobytes()), "S16")


def parse_raw_id(text: Buffer) -> int:
    """The number an id stands for; INVALID_ID for what is not 16 lower-case hex digits."""
    if len(text) != ID_SIZE:
        return INVALID_ID
    try:
        raw = int(bytes(text), 16)
    except ValueError:
        return INVALID_ID
    # int() also takes capitals, signs, spaces and underscores; writing it again tells.
    return raw if raw >= 0 and b"%016x" % raw == text else INVALID_ID


# Reading and changing runs


def patch_attempts(
    frames: Buffer, ends: NDArray[np.integer], attempts: int | NDArray[np.integer]
) -> bytearray:
    """A copy of the run in which each message has the attempts given, at most 65,535.

    Args:
        frames: the run.
        ends: the end of each frame.
        attempts: one number for all, or one for each.
    """
    patched = bytearray(frames)
    cells = np.frombuffer(patched, np.uint8)
    at = np.empty(len(ends), np.int64)
    at[:1] = ATTEMPTS_OFFSET
    np.add(ends[:-1], ATTEMPTS_OFFSET, out=at[1:], casting="unsafe")
    capped = np.minimum(np.asarray(attempts, np.int64), ATTEMPTS_MAX)
    cells[at] = (capped >> 8).astype(np.uint8)
    cells[at + 1] = (capped & 0xFF).astype(np.uint8)
    return patched


def patch_timestamps(
    frames: Buffer, ends: NDArray[np.integer], timestamps: NDArray[np.int64]
) -> bytes:
    """A copy of the run in which each message has the timestamp given.

    Args:
        frames: the run.
        ends: the end of each frame.
        timestamps: one for each, ns since 1970.
    """
    patched = bytearray(frames)
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1]
    cells = np.frombuffer(patched, np.uint8)
    at = starts[:, None] + np.arange(FRAME_HEADER_SIZE, ATTEMPTS_OFFSET)
    cells[at] = timestamps.astype(">i8").view(np.uint8).reshape(-1, 8)
    return bytes(patched)


def take(frames: Buffer, ends: NDArray[np.integer], positions: Sequence[int]) -> bytes:
    """The frames at these positions of the run, in the order given, as a run of their own."""
    view = memoryview(frames)
    bounds = [0, *ends.tolist()]
    return b"".join([view[bounds[at] : bounds[at + 1]] for at in positions])
