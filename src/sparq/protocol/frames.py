"""Frames and messages as bytes, made and read by the batch.

The layout of one frame stands in ``layout``.

1. A message is written once, as the frame its consumers will receive; the log stores this form.
2. A run is ``frames`` (frame after frame) and ``ends`` (uint32: where each frame ends). Slicing a
   run needs no walk.
3. Functions over runs have an array path and, for few items, a scalar one with the same answer.
"""

import struct
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
    CLOSE_WAIT,
    FRAME_ERROR,
    FRAME_HEADER_SIZE,
    FRAME_MESSAGE,
    FRAME_OVERHEAD,
    FRAME_RANGE,
    FRAME_RESPONSE,
    HEARTBEAT,
    ID_OFFSET,
    ID_SIZE,
    INDEX_BITS,
    INDEX_LIMIT,
    INVALID_ID,
    MESSAGE_HEADER_SIZE,
    NODE_LIMIT,
    OK,
    Buffer,
    error,
    frame,
    response,
)

__all__ = [
    "ATTEMPTS_MAX",
    "ATTEMPTS_OFFSET",
    "CLOSE_WAIT",
    "FRAME_ERROR",
    "FRAME_HEADER_SIZE",
    "FRAME_MESSAGE",
    "FRAME_OVERHEAD",
    "FRAME_RANGE",
    "FRAME_RESPONSE",
    "HEARTBEAT",
    "ID_OFFSET",
    "ID_SIZE",
    "INDEX_BITS",
    "INDEX_LIMIT",
    "INVALID_ID",
    "MESSAGE_HEADER_SIZE",
    "NODE_LIMIT",
    "OK",
    "Buffer",
    "error",
    "frame",
    "response",
]
"""What was made for runs and is used with them, from ``layout``; the rest is this module's own."""

VECTOR_MIN: Final = 16
"""Below so many items plain Python is faster than arrays."""

COPY_MAX: Final = 4_096
"""Up to about this size copying a body costs less than a view of it."""

Ends = NDArray[np.uint32]
Offsets = list[int] | NDArray[np.int64]
Starts = range | Offsets
Run = range | NDArray[np.int64]
"""Places of things that follow each other; a range where all are of one width."""

_HEADER: Final = struct.Struct(">iiqH16s")
_BIG_U32: Final = np.dtype(">u4")
_BIG_U64: Final = np.dtype(">u8")


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

    buffer: bytes
    starts: Starts
    sizes: Offsets

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> "Bodies":
        """Bodies that lie in separate objects, joined."""
        sizes = [len(body) for body in bodies]
        return cls(b"".join(bodies), list(accumulate(sizes, initial=0))[:-1], sizes)

    @classmethod
    def even(cls, buffer: bytes, starts: range, size: int) -> "Bodies":
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


# Making runs


def encode(
    pieces: Sequence[Bodies], first_index: int, node_id: int, timestamp_ns: int
) -> tuple[bytes, Ends]:
    """The bodies as message frames with consecutive indexes and attempts 1.

    Args:
        pieces: the bodies, in order; not empty in all.
        first_index: the index of the first.
        node_id: 0 to 1,023, joined into each id.
        timestamp_ns: the timestamp of each.

    Returns:
        The frames and the end of each in them.
    """
    count = sum([len(piece.sizes) for piece in pieces])
    assert 0 <= first_index <= INDEX_LIMIT - count
    assert 0 <= node_id < NODE_LIMIT
    if count < VECTOR_MIN:
        return encode_scalar(pieces, first_index, node_id, timestamp_ns)
    ids = _consecutive_ids(count, first_index, node_id)
    # Many pieces of few bodies are cheaper cut out one by one than filled in piece by piece.
    if count >= VECTOR_MIN * len(pieces) and (size := _one_size(pieces)):
        return _encode_equal(pieces, ids, size, timestamp_ns)
    sizes = _all_sizes(pieces)
    headers = _headers(sizes, ids, timestamp_ns)
    parts: list[Buffer] = [b""] * (2 * count)
    # The last byte of a header is a hex digit, so S34 items keep all their bytes.
    parts[0::2] = headers.view("S34").ravel().tolist()
    parts[1::2] = [body for piece in pieces for body in _cut(piece)]
    return b"".join(parts), np.cumsum(sizes + FRAME_OVERHEAD).astype(np.uint32)


def encode_scalar(
    pieces: Sequence[Bodies], first_index: int, node_id: int, timestamp_ns: int
) -> tuple[bytes, Ends]:
    """What `encode` does, message by message."""
    parts: list[Buffer] = []
    ends: list[int] = []
    raw = node_id << INDEX_BITS | first_index
    end = 0
    for piece in pieces:
        for body in _cut(piece):
            size = len(body)
            parts.append(_HEADER.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, b"%016x" % raw))
            parts.append(body)
            end += FRAME_OVERHEAD + size
            ends.append(end)
            raw += 1
    return b"".join(parts), np.array(ends, np.uint32)


def _consecutive_ids(count: int, first_index: int, node_id: int) -> NDArray[np.uint8]:
    """The digits of `count` ids, shape (count, 16)."""
    raw = np.arange(first_index, first_index + count, dtype=np.uint64)
    raw |= np.uint64(node_id << INDEX_BITS)
    return np.frombuffer(hexlify(raw.astype(_BIG_U64).data), np.uint8).reshape(count, ID_SIZE)


def _one_size(pieces: Sequence[Bodies]) -> int:
    """The size of all bodies; 0 where they have several, or none."""
    size = int(next(piece.sizes[0] for piece in pieces if len(piece.sizes)))
    for piece in pieces:
        sizes = piece.sizes
        if not len(sizes) or (isinstance(piece.starts, range) and sizes[0] == size):
            continue
        if isinstance(sizes, list):
            if sizes.count(size) != len(sizes):
                return 0
        elif not (sizes == size).all():
            return 0
    return size


def _all_sizes(pieces: Sequence[Bodies]) -> NDArray[np.int64]:
    if all(isinstance(piece.sizes, list) for piece in pieces):
        return np.array([size for piece in pieces for size in piece.sizes], np.int64)
    return np.concatenate([np.asarray(piece.sizes, np.int64) for piece in pieces])


def _headers(
    sizes: NDArray[np.int64], ids: NDArray[np.uint8], timestamp_ns: int
) -> NDArray[np.uint8]:
    """The 34 bytes before each body, shape (n, 34)."""
    count = len(sizes)
    template = _HEADER.pack(0, FRAME_MESSAGE, timestamp_ns, 1, bytes(ID_SIZE))
    headers = np.frombuffer(bytearray(template * count), np.uint8).reshape(count, FRAME_OVERHEAD)
    headers[:, :4] = (sizes + 30).astype(_BIG_U32).view(np.uint8).reshape(count, 4)
    headers[:, ID_OFFSET:] = ids
    return headers


def _encode_equal(
    pieces: Sequence[Bodies], ids: NDArray[np.uint8], size: int, timestamp_ns: int
) -> tuple[bytes, Ends]:
    """All bodies have one size: the frames are the rows of a table."""
    count, width = len(ids), FRAME_OVERHEAD + size
    rows = np.empty((count, width), np.uint8)
    header = _HEADER.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, bytes(ID_SIZE))
    rows[:, :ID_OFFSET] = np.frombuffer(header, np.uint8, ID_OFFSET)
    rows[:, ID_OFFSET:FRAME_OVERHEAD] = ids
    row = 0
    for piece in pieces:
        following = row + len(piece.sizes)
        _fill(rows[row:following, FRAME_OVERHEAD:], piece)
        row = following
    # The copy pays: the table's memory is used again while it is hot, which small writes need.
    return rows.tobytes(), np.arange(width, count * width + 1, width, dtype=np.uint32)


def _fill(rows: NDArray[np.uint8], piece: Bodies) -> None:
    """Copies bodies of one size into the rows: in one step where they are known to lie evenly."""
    count, size = rows.shape
    starts = piece.starts
    if isinstance(starts, range):
        strides = (starts.step, 1)
        rows[:] = np.ndarray((count, size), np.uint8, piece.buffer, starts.start, strides)
        return
    rows[:] = np.frombuffer(b"".join(_cut(piece)), np.uint8).reshape(count, size)


def _cut(piece: Bodies) -> list[bytes] | list[memoryview]:
    """The bodies one by one: copies, or views where these cost less."""
    starts, sizes = piece.starts, piece.sizes
    if isinstance(starts, (list, range)):
        slices = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    else:
        ends = starts + np.asarray(sizes, np.int64)
        slices = list(map(slice, starts.tolist(), ends.tolist()))
    if slices and slices[0].stop - slices[0].start > COPY_MAX:
        return list(map(memoryview(piece.buffer).__getitem__, slices))
    return list(map(piece.buffer.__getitem__, slices))


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
