"""Runs of equal commands, found many at a time: finishes, and publishes to one topic.

1. A run is what stands in one chunk, whole and right. Whatever else comes next, cut off or wrong,
   ends the run and is left to the parser, which takes it singly and knows what to say.
2. Rows of one width are compared all at once, in strides over the chunk; others one by one. A look
   that may be in vain is bounded, so that no sequence of commands makes it quadratic.
"""

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.protocol.commands import Finish
from sparq.protocol.frames import ID_SIZE, INVALID_ID, VECTOR_MIN, Bodies, parse_ids, parse_raw_id

LOOK_MAX: Final = 4_096
"""Rows looked at in one go."""
LOOK_FIRST: Final = 64
"""Publishes looked at before so many: a short run must not cost a long look."""
SINGLE_STEP: Final = 256
"""Publishes walked singly before the next look for rows of one width."""

_SIZE: Final = struct.Struct(">i")
_FIN: Final = b"FIN "
_FIN_WORD: Final = np.frombuffer(_FIN, "<u4")[0]
FIN_WIDTH: Final = len(_FIN) + ID_SIZE + 1
_NEWLINE: Final = 0x0A


# Finishes


def finish_run(data: bytes, at: int) -> Finish | None:
    """The FINs that begin at `at`, each ``FIN``, a space, 16 bytes and a newline; None for none."""
    rows = _finish_rows(data, at)
    if rows < VECTOR_MIN:
        return finish_run_scalar(data, at, rows)
    text = np.ndarray((rows, ID_SIZE), np.uint8, data, at + len(_FIN), (FIN_WIDTH, 1)).tobytes()
    raw_ids = parse_ids(text)
    if (raw_ids == INVALID_ID).any():
        return finish_run_scalar(data, at, rows)
    return Finish(raw_ids, text)


def finish_run_scalar(data: bytes, at: int, rows: int) -> Finish | None:
    """What `finish_run` does, with at most `rows` FINs, one by one."""
    raw_ids: list[int] = []
    texts: list[bytes] = []
    for row_at in range(at, at + rows * FIN_WIDTH, FIN_WIDTH):
        text = data[row_at + len(_FIN) : row_at + FIN_WIDTH - 1]
        # The line is shorter than the row, or its id is: that is an error to be told.
        if b" " in text or b"\n" in text or text.endswith(b"\r"):
            break
        raw_ids.append(parse_raw_id(text))
        texts.append(text)
    if not texts:
        return None
    many = len(texts) >= VECTOR_MIN
    return Finish(np.array(raw_ids, np.uint64) if many else raw_ids, b"".join(texts))


def _finish_rows(data: bytes, at: int) -> int:
    """How many rows of the shape of a FIN begin here."""
    count = min((len(data) - at) // FIN_WIDTH, LOOK_MAX)
    far = at + (VECTOR_MIN - 1) * FIN_WIDTH
    if count < VECTOR_MIN or not data.startswith(_FIN, far):
        return _finish_rows_scalar(data, at, min(count, VECTOR_MIN - 1))
    words = np.ndarray((count,), "<u4", data, at, (FIN_WIDTH,)) == _FIN_WORD
    ends = np.ndarray((count,), np.uint8, data, at + FIN_WIDTH - 1, (FIN_WIDTH,)) == _NEWLINE
    words &= ends
    return count if words.all() else int(words.argmin())


def _finish_rows_scalar(data: bytes, at: int, row_max: int) -> int:
    for row in range(row_max):
        if not data.startswith(_FIN, at) or data[at + FIN_WIDTH - 1] != _NEWLINE:
            return row
        at += FIN_WIDTH
    return row_max


# Publishes


def publish_run(data: bytes, at: int, line: bytes, size_max: int) -> Bodies | None:
    """The PUBs that begin at `at`, all with the same line; None where not one is whole and right.

    Args:
        data: the chunk.
        at: where the first line begins.
        line: the line with its newline.
        size_max: the largest message allowed.
    """
    runs: list[NDArray[np.int64]] = []
    skip = len(line) + 4
    begin = at
    while True:
        ends = _publish_rows(data, at, line, size_max)
        if ends is None:
            singles = _publishes_singly(data, at, line, size_max)
            if not runs and len(singles) < VECTOR_MIN:
                return _few(data, begin, skip, singles)
            ends = np.array(singles, np.int64)
        if not len(ends):
            break
        runs.append(ends)
        at = int(ends[-1])
    ends = runs[0] if len(runs) == 1 else np.concatenate(runs)
    starts = np.empty_like(ends)
    starts[0] = begin + skip
    np.add(ends[:-1], skip, out=starts[1:])
    return Bodies(data, starts, ends - starts)


def _few(data: bytes, begin: int, skip: int, ends: list[int]) -> Bodies | None:
    if not ends:
        return None
    starts = [begin + skip, *(end + skip for end in ends[:-1])]
    return Bodies(data, starts, [end - start for start, end in zip(starts, ends, strict=True)])


def _publish_rows(data: bytes, at: int, line: bytes, size_max: int) -> NDArray[np.int64] | None:
    """The ends of PUBs of one size that begin here; None where there are not many."""
    head_size = len(line) + 4
    if len(data) < at + head_size:
        return None
    (size,) = _SIZE.unpack_from(data, at + len(line))
    width = head_size + size
    if not 0 < size <= size_max:
        return None
    head = data[at : at + head_size]
    count = min((len(data) - at) // width, LOOK_MAX)
    if count < VECTOR_MIN or not data.startswith(head, at + (VECTOR_MIN - 1) * width):
        return None
    found = _equal_heads(data, at, head, width, min(count, LOOK_FIRST))
    if found == LOOK_FIRST:
        found = _equal_heads(data, at, head, width, count)
    if found < VECTOR_MIN:
        return None
    return np.arange(at + width, at + found * width + 1, width, dtype=np.int64)


def _equal_heads(data: bytes, at: int, head: bytes, width: int, count: int) -> int:
    """How many of the next `count` rows begin with `head`."""
    heads = np.ndarray((count, len(head)), np.uint8, data, at, (width, 1))
    equal = heads == np.frombuffer(head, np.uint8)
    return count if equal.all() else int(equal.all(axis=1).argmin())


def _publishes_singly(data: bytes, at: int, line: bytes, size_max: int) -> list[int]:
    """The ends of the next PUBs that are whole and right."""
    ends: list[int] = []
    append, startswith, unpack_from = ends.append, data.startswith, _SIZE.unpack_from
    line_size, total = len(line), len(data)
    size_end_max = total - line_size - 4
    for _ in range(SINGLE_STEP):
        if at > size_end_max or not startswith(line, at):
            break
        at += line_size
        (size,) = unpack_from(data, at)
        at += 4 + size
        if not 0 < size <= size_max or at > total:
            break
        append(at)
    return ends
