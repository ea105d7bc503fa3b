"""Finds runs of equal commands many at a time: FINs, and PUBs to one topic.

1. A run consists of complete, valid commands in one chunk. Any other command, or an incomplete or
   invalid one, ends the run and is left to the parser, which handles it alone and reports errors.
2. Rows of one width are compared all at once, in strides over the chunk; others one by one. Every
   check that may fail is limited, so that no sequence of commands takes quadratic time.
"""

import re
import struct
from binascii import Error as HexError
from binascii import hexlify, unhexlify
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.protocol.commands import Finish
from sparq.protocol.frames import VECTOR_MIN, BodySlices, Run, joined
from sparq.protocol.layout import ID_SIZE

COMPARED_MAX: Final = 4_096
"""Maximum rows compared at once; as many ids differ only in their last three hex digits."""
COMPARED_FIRST: Final = 64
"""PUBs compared first, before up to `COMPARED_MAX`: a short run must not cost a long comparison."""
SINGLE_STEP: Final = 256
"""PUBs parsed one by one before the next check for rows of one width."""

_SIZE: Final = struct.Struct(">i")
_FIN: Final = b"FIN "
_FINS: Final = re.compile(rb"(?:FIN [0-9a-f]{16}\n)+")
_MANY_FINS: Final = re.compile(rb"(?:FIN [0-9a-f]{16}\n){%d}" % VECTOR_MIN)
_WORD: Final = np.dtype("<u4")
_ID: Final = np.dtype("S16")
_RAW: Final = np.dtype(">u8")
_FIN_WORD: Final = np.frombuffer(_FIN, _WORD)[0]
FIN_WIDTH: Final = len(_FIN) + ID_SIZE + 1
_FIN_COLUMNS: Final = ((0, b"F"), (1, b"I"), (2, b"N"), (3, b" "), (FIN_WIDTH - 1, b"\n"))
_FIN_ROWS: Final = np.frombuffer(
    b"".join(b"FIN 0000000000000%03x\n" % low for low in range(COMPARED_MAX)), np.uint8
).reshape(COMPARED_MAX, FIN_WIDTH)
_LOW_AT: Final = FIN_WIDTH - 1 - 3
"""Position in a line of the three digits that differ among `COMPARED_MAX` consecutive ids."""
_ID_MAX: Final = (1 << 64) - 2  # the id above it is `INVALID_ID`
_NEWLINE: Final = 0x0A


# FINs


def finish_run(data: bytes, at: int) -> Finish | None:
    """The FINs with valid ids that begin at `at`; None if there are none.

    Unless the ids are consecutive, the first 16 lines are checked by a regular expression: only
    after that many is it worth checking all that follow, even if every seventeenth line ends a run.
    """
    if len(data) - at == FIN_WIDTH:
        return _lone_finish(data, at)
    count = min((len(data) - at) // FIN_WIDTH, COMPARED_MAX)
    if count >= VECTOR_MIN and (finish := _consecutive(data, at, count)) is not None:
        return finish
    if _MANY_FINS.match(data, at) is None:
        return finish_run_scalar(data, at, VECTOR_MIN)
    rows = _finish_rows(data, at)
    # A strided view of the chunk: `tobytes` copies all ids side by side, for one `unhexlify`.
    text = np.ndarray((rows,), _ID, data, at + len(_FIN), (FIN_WIDTH,)).tobytes()
    try:
        decoded = unhexlify(text)
    except HexError:  # one id is malformed: the run ends before it
        return finish_run_scalar(data, at, rows)
    if hexlify(decoded) != text:  # ids have no capital hex digits
        return finish_run_scalar(data, at, rows)
    return Finish(np.frombuffer(decoded, _RAW).astype(np.uint64), text)


def _lone_finish(data: bytes, at: int) -> Finish | None:
    """The FIN, if it is the whole rest of the chunk, as from a consumer with RDY 1."""
    if _FINS.match(data, at) is None:
        return None
    text = data[at + len(_FIN) : -1]
    return Finish([int(text, 16)], text)


def _consecutive(data: bytes, at: int, count: int) -> Finish | None:
    """The next `count` FINs if their ids ascend without a gap; else None.

    Messages are delivered in this order and so mostly finished in it. One comparison with the
    expected lines checks that each line is complete and each digit right.
    """
    try:
        first = int(data[at + len(_FIN) : at + FIN_WIDTH - 1], 16)
        end_at = at + count * FIN_WIDTH
        last = int(data[end_at - FIN_WIDTH + len(_FIN) : end_at - 1], 16)
    except ValueError:
        return None
    if last - first != count - 1 or first < 0 or last > _ID_MAX:
        return None
    ids = range(first, last + 1)
    while first <= last:
        row = first % COMPARED_MAX
        rows = min(COMPARED_MAX - row, last - first + 1)
        lines = _finish_lines(first // COMPARED_MAX)
        if not data.startswith(lines[row * FIN_WIDTH : (row + rows) * FIN_WIDTH], at):
            return None
        first += rows
        at += rows * FIN_WIDTH
    return Finish(ids, b"")


# Each channel of a topic finishes the same ids, and a consumer a few hundred of them at a time.
# Building these lines for each run took a sixth of the time of a fan-out to ten channels.
@lru_cache(maxsize=32)
def _finish_lines(page: int) -> bytes:
    """The FIN lines of the `COMPARED_MAX` ids whose leading 13 hex digits are `page`: 86 KB."""
    rows = _FIN_ROWS.copy()
    rows[:, len(_FIN) : _LOW_AT] = np.frombuffer(b"%013x" % page, np.uint8)
    return rows.tobytes()


def finish_run_scalar(data: bytes, at: int, row_max: int) -> Finish | None:
    """Find at most `row_max` FINs like `finish_run`, by a regular expression."""
    found = _FINS.match(data, at, min(len(data), at + row_max * FIN_WIDTH))
    if found is None:
        return None
    text = b"".join(
        [data[row + len(_FIN) : row + FIN_WIDTH - 1] for row in range(at, found.end(), FIN_WIDTH)]
    )
    count = len(text) // ID_SIZE
    raw_ids = struct.unpack(f">{count}Q", unhexlify(text))
    return Finish(np.array(raw_ids, np.uint64) if count >= VECTOR_MIN else list(raw_ids), text)


def _finish_rows(data: bytes, at: int) -> int:
    """Number of rows from `at` that have the shape of a FIN."""
    count = min((len(data) - at) // FIN_WIDTH, COMPARED_MAX)
    end = at + count * FIN_WIDTH
    # Usually all rows are FINs, and comparing slices detects that faster than arrays do.
    if all(data[at + place : end : FIN_WIDTH] == byte * count for place, byte in _FIN_COLUMNS):
        return count
    words = np.ndarray((count,), _WORD, data, at, (FIN_WIDTH,)) == _FIN_WORD
    words &= np.ndarray((count,), np.uint8, data, at + FIN_WIDTH - 1, (FIN_WIDTH,)) == _NEWLINE
    # At least one row differs here, since the comparison of slices failed. If all were equal,
    # `argmin` would return 0.
    return int(words.argmin())


# PUBs


def publish_run(data: bytes, at: int, line: bytes, size_max: int) -> BodySlices | None:
    """The PUBs from `at` on with the same line; None if the first is incomplete or invalid.

    Args:
        data: the chunk.
        at: position of the first `line`, which the caller has parsed.
        line: the line with its newline.
        size_max: the largest message allowed, in bytes.
    """
    runs: list[Run] = []
    skip = len(line) + 4
    begin = at
    while True:
        ends: range | list[int] | None = _publish_rows(data, at, line, size_max)
        if ends is None:
            ends = _publishes_singly(data, at, line, size_max)
            # Fewer than `SINGLE_STEP`: the run ends here. For so few, lists cost less than arrays.
            if not runs and len(ends) < VECTOR_MIN:
                return _few(data, begin, skip, ends)
        if not len(ends):
            break
        _add(runs, ends)
        at = int(ends[-1])
    first = runs[0]
    if len(runs) == 1 and isinstance(first, range):
        size = first.step - skip
        return BodySlices.even(data, range(begin + skip, first.stop - size, first.step), size)
    return _uneven(data, begin, skip, joined(runs))


def _add(runs: list[Run], ends: range | list[int]) -> None:
    """Add ends to the runs; they extend the last run if they continue it."""
    last = runs[-1] if runs else None
    if isinstance(last, range):
        step = last.step
        onward = range(last[-1] + step, last[-1] + len(ends) * step + 1, step)
        if ends == onward or (isinstance(ends, list) and ends == list(onward)):
            runs[-1] = range(last.start, onward.stop, step)
            return
    runs.append(np.array(ends, np.int64) if isinstance(ends, list) else ends)


def _uneven(data: bytes, begin: int, skip: int, ends: NDArray[np.int64]) -> BodySlices:
    starts = np.empty_like(ends)
    starts[0] = begin + skip
    np.add(ends[:-1], skip, out=starts[1:])
    return BodySlices(data, starts, ends - starts)


def _few(data: bytes, begin: int, skip: int, ends: list[int]) -> BodySlices | None:
    if not ends:
        return None
    starts = [begin + skip, *(end + skip for end in ends[:-1])]
    return BodySlices(data, starts, [end - start for start, end in zip(starts, ends, strict=True)])


def _publish_rows(data: bytes, at: int, line: bytes, size_max: int) -> range | None:
    """The ends of PUBs of one size from `at` on; None if there are fewer than `VECTOR_MIN`."""
    head_size = len(line) + 4
    if len(data) < at + head_size:
        return None
    (size,) = _SIZE.unpack_from(data, at + len(line))
    width = head_size + size
    if not 0 < size <= size_max:
        return None
    head = data[at : at + head_size]
    fitting = (len(data) - at) // width
    count = min(fitting, COMPARED_MAX)
    # One comparison first: PUBs of different sizes usually fail here, and need no array.
    if count < VECTOR_MIN or not data.startswith(head, at + (VECTOR_MIN - 1) * width):
        return None
    found = _equal_heads(data, at, head, width, min(count, COMPARED_FIRST))
    if found == COMPARED_FIRST:
        found = _equal_heads(data, at, head, width, count)
    if found < VECTOR_MIN:
        return None
    return range(at + width, at + found * width + 1, width)


def _equal_heads(data: bytes, at: int, head: bytes, width: int, count: int) -> int:
    """Number of consecutive rows, of the next `count`, that begin with `head`."""
    heads = np.ndarray((count, len(head)), np.uint8, data, at, (width, 1))
    equal = heads == np.frombuffer(head, np.uint8)
    return count if equal.all() else int(equal.all(axis=1).argmin())


def _publishes_singly(data: bytes, at: int, line: bytes, size_max: int) -> list[int]:
    """The ends of the next complete, valid PUBs."""
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
