"""Parses the body of an MPUB while it arrives: count, then size and bytes of each message.

1. A size is checked before memory is allocated for it. The cost of a step is proportional to the
   bytes that are new.
2. NSQ does not check the declared body size against the messages. Here the messages together may
   not exceed the largest allowed body; otherwise one MPUB could ask for a million times the largest
   message.
3. Runs of one size are found by comparing all their sizes at once; other messages are parsed one
   by one. Both give the same result.
"""

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import VECTOR_MIN, BodySlices, Run, joined

SCALAR_STEP: Final = 256
"""Messages parsed one by one before the next check for a run of one size."""
RUN_MAX: Final = 4096
"""Maximum messages compared at once in a run of one size: limits the cost of a wrong guess."""
CRUMBS_MAX: Final = 1024

_SIZE: Final = struct.Struct(">i")
_MESSAGE_MIN: Final = 5


class MpubProgress:
    """The progress through one MPUB body: the positions of the messages found so far.

    Positions refer to the buffer passed to `advance`; `rebase` shifts them when the caller drops
    the start of the buffer.

    Attributes:
        at: position up to which the buffer is parsed.
        need: the buffer must reach up to here for the next step.
        done: all messages have been found.
    """

    def __init__(self, at: int, message_size_max: int, body_size_max: int) -> None:
        self.at = at
        self.need = at + 4
        self.done = False
        self._count = -1
        self._seen = 0
        # From the limit, not from the declared size, which NSQ ignores (rule 2).
        self._end_max = at + body_size_max
        self._message_size_max = message_size_max
        self._body_size_max = body_size_max
        self._ends: list[Run] = []
        self._joined = 0
        self._start = at

    def advance(self, data: bytes | bytearray) -> bool:
        """Parse the bytes that have arrived.

        Returns:
            Whether all messages have been found.

        Raises:
            RemoteError: the count or a size is not allowed.
        """
        if self._count < 0 and not self._take_count(data):
            return False
        while self._seen < self._count:
            ends: Run | None = self._equal_run(data)
            # Up to SCALAR_STEP messages before the next search for a run: a vain search has a cost.
            if ends is None:
                ends = self._singly(data)
            if not len(ends):
                return False
            self._keep(ends)
            self._seen += len(ends)
            self.at = int(ends[-1])
        self.done = True
        return True

    def _keep(self, ends: Run) -> None:
        """Store the ends that a step found, merged with the previous run if they continue it.

        If a body arrives byte by byte, every message is a step of its own: such small pieces are
        joined; otherwise they would take twenty times the memory of their content.
        """
        last = self._ends[-1] if self._ends else None
        if isinstance(last, range) and isinstance(ends, range) and last.step == ends.step:
            self._ends[-1] = range(last.start, ends.stop, last.step)
            return
        self._ends.append(ends)
        if len(self._ends) - self._joined >= CRUMBS_MAX:
            self._ends[self._joined :] = [joined(self._ends[self._joined :])]
            self._joined += 1

    def _take_count(self, data: bytes | bytearray) -> bool:
        if len(data) < self.need:
            return False
        (count,) = _SIZE.unpack_from(data, self.at)
        # NSQ's bound: 4 bytes for the count itself, and at least a size and one byte per message.
        if not 0 < count <= (self._body_size_max - 4) // _MESSAGE_MIN:
            raise RemoteError("E_BAD_BODY", f"MPUB invalid message count {count}")
        self._count = count
        self.at = self._start = self.at + 4
        self.need = self.at + 4
        return True

    def _equal_run(self, data: bytes | bytearray) -> range | None:
        """The ends of a run of messages of one size at `at`; None if there is no long run."""
        at = self.at
        if len(data) < at + 4:
            return None
        (size,) = _SIZE.unpack_from(data, at)
        width = 4 + size
        if not 0 < size <= self._message_size_max:
            return None
        fitting = (min(len(data), self._end_max) - at) // width
        count = min(fitting, self._count - self._seen, RUN_MAX)
        if count < VECTOR_MIN:
            return self._few_more(data, width, count)
        # Checking message VECTOR_MIN first avoids the array for messages of different sizes.
        if _SIZE.unpack_from(data, at + (VECTOR_MIN - 1) * width)[0] != size:
            return None
        equal = np.ndarray((count,), ">i4", data, at, (width,)) == size
        found = count if equal.all() else int(equal.argmin())
        if found < VECTOR_MIN:
            return None
        return range(at + width, at + found * width + 1, width)

    def _few_more(self, data: bytes | bytearray, width: int, count: int) -> range | None:
        """The ends of at most `count` messages that continue the previous run; None: none does.

        A chunk seldom ends where an MPUB ends: an MPUB of one message size must stay one run.
        """
        last = self._ends[-1] if self._ends else None
        if not isinstance(last, range) or last.step != width or not count:
            return None
        size = width - 4
        found = 1
        while found < count and _SIZE.unpack_from(data, self.at + found * width)[0] == size:
            found += 1
        return range(self.at + width, self.at + found * width + 1, width)

    def _singly(self, data: bytes | bytearray) -> NDArray[np.int64]:
        """Return where each of the next complete messages ends, reading size after size.

        It steps through the messages first and checks all sizes afterwards: half the time. A
        wrong size leads to wrong positions for a few steps; everything found after it is dropped.
        """
        ends = [self.at]
        append, unpack_from, at = ends.append, _SIZE.unpack_from, self.at
        try:
            for _ in range(min(self._count - self._seen, SCALAR_STEP)):
                at += unpack_from(data, at)[0] + 4
                append(at)  # a negative size leads backwards: harmless, and dropped below
        except struct.error:
            pass  # the last step ended where there is no complete size
        bounds = np.array(ends, np.int64)
        # As unsigned numbers, sizes below 1 exceed every limit: one comparison covers both bounds.
        fitting = (bounds[1:] - bounds[:-1] - 5).view(np.uint64) < self._message_size_max
        fitting &= bounds[1:] <= min(len(data), self._end_max)
        sound = len(fitting) if fitting.all() else int(fitting.argmin())
        if sound == 0:
            self._stop_at(data)
        return bounds[1 : sound + 1]

    def _stop_at(self, data: bytes | bytearray) -> None:
        """Handle a next message that is incomplete: set `need`, or raise if it is not allowed."""
        self._wait_for(self.at + 4)
        if len(data) < self.need:
            return
        (size,) = _SIZE.unpack_from(data, self.at)
        if size <= 0:
            text = f"MPUB invalid message({self._seen}) body size {size}"
            raise RemoteError("E_BAD_MESSAGE", text)
        if size > self._message_size_max:
            text = f"MPUB message too big {size} > {self._message_size_max}"
            raise RemoteError("E_BAD_MESSAGE", text)
        self._wait_for(self.at + 4 + size)

    def _wait_for(self, need: int) -> None:
        """Set the position that the buffer must reach; raises RemoteError beyond the limit."""
        if need > self._end_max:
            size = need - self._end_max + self._body_size_max
            raise RemoteError("E_BAD_BODY", f"MPUB body too big {size} > {self._body_size_max}")
        self.need = need

    def rebase(self, shift: int) -> None:
        """Shift all positions after the caller dropped the first `shift` bytes of the buffer."""
        self.at -= shift
        self.need -= shift
        self._start -= shift
        self._end_max -= shift
        self._ends = [_shifted(ends, shift) for ends in self._ends]

    def bodies(self, buffer: bytes | bytearray) -> BodySlices:
        """The messages, once all are complete; `buffer` must not change afterwards."""
        first = self._ends[0]
        if len(self._ends) == 1 and isinstance(first, range):
            size = first.step - 4
            return BodySlices.even(buffer, _moved(first, -size), size)
        ends = joined(self._ends)
        starts = np.empty_like(ends)
        starts[0] = self._start + 4
        np.add(ends[:-1], 4, out=starts[1:])
        # Slicing single bodies from bytes is faster than from a bytearray.
        return BodySlices(bytes(buffer), starts, ends - starts)

    def cut_short(self, size: int) -> RemoteError:
        """The error for a body that ends early, with `size` bytes in the buffer."""
        if self._count < 0:
            return RemoteError("E_BAD_BODY", "MPUB failed to read message count")
        if size - self.at < 4:
            text = f"MPUB failed to read message({self._seen}) body size"
            return RemoteError("E_BAD_MESSAGE", text)
        return RemoteError("E_BAD_MESSAGE", "MPUB failed to read message body")


def _moved(ends: range, by: int) -> range:
    return range(ends.start + by, ends.stop + by, ends.step)


def _shifted(ends: Run, shift: int) -> Run:
    return _moved(ends, -shift) if isinstance(ends, range) else ends - shift


def parse_body(body: bytes, message_size_max: int, body_size_max: int) -> BodySlices:
    """Parse a complete body: count, then size and bytes of each message.

    Raises:
        RemoteError: E_BAD_BODY or E_BAD_MESSAGE; the HTTP API reports them without ``E_``.
    """
    walk = MpubProgress(0, message_size_max, body_size_max)
    if not walk.advance(body):
        raise walk.cut_short(len(body))
    return walk.bodies(body)
