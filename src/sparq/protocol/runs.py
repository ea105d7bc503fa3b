"""Finds runs of equal commands many at a time: FINs, PUBs to one topic, messages of an MPUB.

1. A run consists of complete, valid commands in one chunk. Any other command, or an incomplete or
   invalid one, ends the run and is left to the parser, which handles it alone and reports errors.
2. Rows of one width are compared all at once, in strides over the chunk; others one by one. Every
   check that may fail is limited, so that no sequence of commands takes quadratic time.
"""

import re
import struct
from array import array
from binascii import unhexlify
from functools import lru_cache
from typing import Final

import numpy as np

from sparq.protocol.commands import Finish
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import VECTOR_MIN, BodySlices
from sparq.protocol.layout import ID_SIZE

COMPARED_MAX: Final = 4_096
"""Maximum FINs compared at once; as many ids differ only in their last three hex digits."""
EVEN_MAX: Final = 2_048
"""Maximum PUBs of one size compared at once: a short run must not cost a long comparison."""
SINGLE_MAX: Final = 256
"""Maximum commands or messages in one step that parses them one by one."""
MESSAGE_MIN: Final = 5
"""Least bytes of a message in an MPUB: its size, and one byte."""

_SIZE: Final = struct.Struct(">i")
_FIN: Final = b"FIN "
_FINS: Final = re.compile(rb"(?:FIN [0-9a-f]{16}\n)++")
_ID: Final = np.dtype("S16")
_RAW: Final = np.dtype(">u8")
FIN_WIDTH: Final = len(_FIN) + ID_SIZE + 1
_FIN_ROWS: Final = np.frombuffer(
    b"".join(b"FIN 0000000000000%03x\n" % low for low in range(COMPARED_MAX)), np.uint8
).reshape(COMPARED_MAX, FIN_WIDTH)
_LOW_AT: Final = FIN_WIDTH - 1 - 3
"""Position in a line of the three digits that differ among `COMPARED_MAX` consecutive ids."""
_ID_MAX: Final = (1 << 64) - 2  # the id above it is `INVALID_ID`


# FINs


def finish_run(data: bytes, at: int) -> Finish | None:
    """The FINs with valid ids that begin at `at`; None if there are none.

    A run has consecutive ids, or the next `SINGLE_MAX` of any ids; more are the next run.
    """
    count = min((len(data) - at) // FIN_WIDTH, COMPARED_MAX)
    if count >= VECTOR_MIN and (finish := _consecutive(data, at, count)) is not None:
        return finish
    found = _FINS.match(data, at, at + SINGLE_MAX * FIN_WIDTH)
    if found is None:
        return None
    count = (found.end() - at) // FIN_WIDTH
    if count == 1:
        text = data[at + len(_FIN) : at + FIN_WIDTH - 1]
        return Finish([int(text, 16)], text)
    # A strided view of the chunk: `tobytes` copies all ids side by side, for one `unhexlify`.
    text = np.ndarray((count,), _ID, data, at + len(_FIN), (FIN_WIDTH,)).tobytes()
    raw_ids = np.frombuffer(unhexlify(text), _RAW).astype(np.uint64)
    return Finish(raw_ids if count >= VECTOR_MIN else raw_ids.tolist(), text)


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


# PUBs


def publish_run(data: bytes, at: int, line: bytes, size_max: int) -> BodySlices | None:
    """The PUBs from `at` on with the same line; None if the first is incomplete or invalid.

    A run has PUBs of one size, or the next `SINGLE_MAX` of any sizes; more are the next run.

    Args:
        data: the chunk.
        at: position of the first `line`, which the caller has parsed.
        line: the line with its newline.
        size_max: the largest message allowed, in bytes.
    """
    head_size = len(line) + 4
    if len(data) < at + head_size:
        return None
    (size,) = _SIZE.unpack_from(data, at + len(line))
    if not 0 < size <= size_max:
        return None
    width = head_size + size
    count = min((len(data) - at) // width, EVEN_MAX)
    head = data[at : at + head_size]
    # One comparison first: PUBs of different sizes usually fail here, and need no array.
    if count >= VECTOR_MIN and data.startswith(head, at + (VECTOR_MIN - 1) * width):
        heads = np.ndarray((count, head_size), np.uint8, data, at, (width, 1))
        equal = heads == np.frombuffer(head, np.uint8)
        found = count if equal.all() else int(equal.all(axis=1).argmin())
        if found >= VECTOR_MIN:
            begin = at + head_size
            return BodySlices.even(data, range(begin, begin + found * width, width), size)
    ends = _publishes_singly(data, at, line, size_max)
    if not ends:
        return None
    starts = [at + head_size, *[end + head_size for end in ends[:-1]]]
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    if len(ends) < VECTOR_MIN:
        return BodySlices(data, starts, sizes)
    return BodySlices(data, np.array(starts, np.int64), np.array(sizes, np.int64))


def _publishes_singly(data: bytes, at: int, line: bytes, size_max: int) -> list[int]:
    """The ends of the next complete, valid PUBs."""
    ends: list[int] = []
    append, startswith, unpack_from = ends.append, data.startswith, _SIZE.unpack_from
    line_size, total = len(line), len(data)
    size_end_max = total - line_size - 4
    for _ in range(SINGLE_MAX):
        if at > size_end_max or not startswith(line, at):
            break
        at += line_size
        (size,) = unpack_from(data, at)
        at += 4 + size
        if not 0 < size <= size_max or at > total:
            break
        append(at)
    return ends


# The body of an MPUB


class MultiPublishBody:
    """Parses the body of one MPUB while it arrives: count, then size and bytes of each message.

    1. A size is checked before memory is allocated for it. The cost of a step is proportional to
       the bytes that are new.
    2. NSQ does not check the declared body size against the messages, and neither does this class.
       The messages together may not exceed the largest allowed body; otherwise one MPUB could ask
       for a million times the largest message.
    3. If the declared size suggests that all messages have one size, they are compared at once when
       all have arrived; other messages are parsed one by one. Both give the same result.

    Positions count from the first byte of the body.

    Attributes:
        declared_size: the size that its sender declares.
        need: the next step needs the body up to here.
        end: where the body ends, once all messages have been found.
    """

    def __init__(self, declared_size: int, message_size_max: int, body_size_max: int) -> None:
        self.need = 4
        self.end = 0
        self.declared_size = declared_size
        self._message_size_max = message_size_max
        self._body_size_max = body_size_max
        self._count = 0
        # An array: a list would take twenty times the memory of messages of one byte.
        self._ends = array("q")

    def parse(self, data: bytes | bytearray, begin: int) -> BodySlices | None:
        """Parse the bytes that have arrived; return the messages once all are complete.

        Args:
            data: holds the body so far; it must not change after the messages were returned.
            begin: where the body begins in `data`.

        Raises:
            RemoteError: the count or a size is not allowed.
        """
        if len(data) - begin < self.need:
            return None
        if not self._count:
            (count,) = _SIZE.unpack_from(data, begin)
            # NSQ's bound: 4 bytes for the count, and at least a size and one byte per message.
            if not 0 < count <= (self._body_size_max - 4) // MESSAGE_MIN:
                raise RemoteError("E_BAD_BODY", f"MPUB invalid message count {count}")
            self._count, self.need = count, 8
            if len(data) - begin < 8:
                return None
        if not self._ends and self._may_be_even(data, begin):
            if len(data) - begin < self.declared_size:
                self.need = self.declared_size
                return None
            (size,) = _SIZE.unpack_from(data, begin + 4)
            sizes = np.ndarray((self._count,), ">i4", data, begin + 4, (4 + size,))
            if (sizes == size).all():
                self.end, first = self.declared_size, begin + 8
                starts = range(first, begin + self.end + 4, 4 + size)
                return BodySlices.even(data, starts, size)
        while len(self._ends) < self._count:
            if not self._parse_singly(data, begin):
                return None
        self.end = self._ends[-1]
        ends = np.frombuffer(self._ends, np.int64) + begin
        starts_at = np.empty_like(ends)
        starts_at[0] = begin + 8
        np.add(ends[:-1], 4, out=starts_at[1:])
        # Slicing single bodies from bytes is faster than from a bytearray.
        return BodySlices(bytes(data), starts_at, ends - starts_at)

    def _may_be_even(self, data: bytes | bytearray, begin: int) -> bool:
        """Whether the declared size is that of messages as long as the first one."""
        (size,) = _SIZE.unpack_from(data, begin + 4)
        is_allowed: bool = 0 < size <= self._message_size_max
        even_size = 4 + self._count * (4 + size)
        return is_allowed and self.declared_size == even_size <= self._body_size_max

    def _parse_singly(self, data: bytes | bytearray, begin: int) -> bool:
        """Find the ends of the next complete messages; False: more bytes are needed.

        It steps through the messages first and checks all sizes afterwards: half the time. A
        wrong size leads to wrong positions for a few steps; everything found after it is dropped.
        """
        at = begin + (self._ends[-1] if self._ends else 4)
        ends = [at]
        append, unpack_from = ends.append, _SIZE.unpack_from
        try:
            for _ in range(min(self._count - len(self._ends), SINGLE_MAX)):
                at += unpack_from(data, at)[0] + 4
                append(at)  # a negative size leads backwards: harmless, and dropped below
        except struct.error:
            pass  # the last step ended where there is no complete size
        bounds = np.array(ends, np.int64) - begin
        # As unsigned numbers, sizes below 1 exceed every limit: one comparison covers both bounds.
        fitting = (bounds[1:] - bounds[:-1] - MESSAGE_MIN).view(np.uint64) < self._message_size_max
        fitting &= bounds[1:] <= min(len(data) - begin, self._body_size_max)
        sound = len(fitting) if fitting.all() else int(fitting.argmin())
        self._ends.frombytes(bounds[1 : sound + 1].tobytes())
        if sound == 0:
            self._stop_at(data, begin, int(bounds[0]))
        return sound > 0

    def _stop_at(self, data: bytes | bytearray, begin: int, at: int) -> None:
        """Handle a next message that is incomplete: set `need`, or raise if it is not allowed."""
        needs = [at + 4]
        if len(data) - begin >= at + 4:
            (size,) = _SIZE.unpack_from(data, begin + at)
            if size <= 0:
                text = f"MPUB invalid message({len(self._ends)}) body size {size}"
                raise RemoteError("E_BAD_MESSAGE", text)
            if size > self._message_size_max:
                text = f"MPUB message too big {size} > {self._message_size_max}"
                raise RemoteError("E_BAD_MESSAGE", text)
            needs.append(at + 4 + size)
        for self.need in needs:
            if self.need > self._body_size_max:
                text = f"MPUB body too big {self.need} > {self._body_size_max}"
                raise RemoteError("E_BAD_BODY", text)

    def cut_short(self, data: bytes | bytearray) -> RemoteError:
        """The error for a body that ends early, after `data`."""
        self.declared_size = 0
        if len(data) >= 8:
            self.parse(data, 0)  # an invalid size comes first
        if not self._count:
            return RemoteError("E_BAD_BODY", "MPUB failed to read message count")
        if len(data) - (self._ends[-1] if self._ends else 4) < 4:
            text = f"MPUB failed to read message({len(self._ends)}) body size"
            return RemoteError("E_BAD_MESSAGE", text)
        return RemoteError("E_BAD_MESSAGE", "MPUB failed to read message body")


def parse_body(body: bytes, message_size_max: int, body_size_max: int) -> BodySlices:
    """Parse a complete body: count, then size and bytes of each message.

    Raises:
        RemoteError: E_BAD_BODY or E_BAD_MESSAGE; the HTTP API reports them without ``E_``.
    """
    parsed = MultiPublishBody(len(body), message_size_max, body_size_max)
    bodies = parsed.parse(body, 0)
    if bodies is None:
        raise parsed.cut_short(body)
    return bodies
