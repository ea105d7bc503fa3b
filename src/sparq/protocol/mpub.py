"""The body of an MPUB, walked while it arrives: count, then size and bytes of each message.

1. Nothing is allocated for a size before it was checked, and a step costs what has newly arrived.
2. NSQ compares the declared body size with nothing. Here the messages may not exceed the largest
   body allowed, or one MPUB could ask for a million times the largest message.
3. Runs of one size are found by looking at all their sizes at once; other messages are walked one
   by one. Both give the same answer.
"""

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import VECTOR_MIN, Bodies, Run, joined

SCALAR_STEP: Final = 256
"""Messages walked singly before the next look for a run of one size."""
RUN_MAX: Final = 4096
"""The longest run of one size looked at in one go: bounds what a wrong guess costs."""
CRUMBS_MAX: Final = 1024

_SIZE: Final = struct.Struct(">i")
_MESSAGE_MIN: Final = 5


class Walk:
    """Where one MPUB body was found to have its messages so far.

    Positions are those of the buffer given to `advance`; `rebase` moves them when the caller
    moves what it holds.

    Attributes:
        at: how far the buffer is walked.
        need: up to where the buffer must reach for the next step.
        done: all messages are there.
    """

    def __init__(self, at: int, message_size_max: int, body_size_max: int) -> None:
        self.at = at
        self.need = at + 4
        self.done = False
        self._count = -1
        self._seen = 0
        self._end_max = at + body_size_max
        self._message_size_max = message_size_max
        self._body_size_max = body_size_max
        self._ends: list[Run] = []
        self._joined = 0
        self._start = at

    def advance(self, data: bytes | bytearray) -> bool:
        """Walks what has arrived.

        Returns:
            Whether all messages are there.

        Raises:
            RemoteError: the count or a size is not allowed.
        """
        if self._count < 0 and not self._take_count(data):
            return False
        while self._seen < self._count:
            ends: Run | None = self._equal_run(data)
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
        """Remembers what a step found: as one run with the one before it, where it goes on.

        A body that comes byte by byte makes a step of every message: such crumbs are joined, or
        they would take twenty times the memory of what they tell.
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
        # NSQ's bound: the count's own 4 bytes, and at least a size and one byte for each message.
        if not 0 < count <= (self._body_size_max - 4) // _MESSAGE_MIN:
            raise RemoteError("E_BAD_BODY", f"MPUB invalid message count {count}")
        self._count = count
        self.at = self._start = self.at + 4
        self.need = self.at + 4
        return True

    def _equal_run(self, data: bytes | bytearray) -> range | None:
        """The ends of a run of messages of one size here; None where there is no long one."""
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
        # A look at the last of the first few saves the array for messages of many sizes.
        if _SIZE.unpack_from(data, at + (VECTOR_MIN - 1) * width)[0] != size:
            return None
        equal = np.ndarray((count,), ">i4", data, at, (width,)) == size
        found = count if equal.all() else int(equal.argmin())
        if found < VECTOR_MIN:
            return None
        return range(at + width, at + found * width + 1, width)

    def _few_more(self, data: bytes | bytearray, width: int, count: int) -> range | None:
        """At most so many messages that go on with the run before them; None: not one does.

        The end of a chunk is seldom the end of an MPUB: one of a single size shall stay one run.
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
        """The ends of the next messages that are there in full.

        Steps first and checks all the sizes afterwards: that halves the time. A wrong size leads
        astray, though never far, and what was found behind it is dropped.
        """
        ends = [self.at]
        append, unpack_from, at = ends.append, _SIZE.unpack_from, self.at
        try:
            for _ in range(min(self._count - self._seen, SCALAR_STEP)):
                at += unpack_from(data, at)[0] + 4
                append(at)
        except struct.error:
            pass  # no room for a size where the last step led
        bounds = np.array(ends, np.int64)
        # As unsigned numbers the sizes below 1 are larger than any: one comparison tells.
        fitting = (bounds[1:] - bounds[:-1] - 5).view(np.uint64) < self._message_size_max
        fitting &= bounds[1:] <= min(len(data), self._end_max)
        sound = len(fitting) if fitting.all() else int(fitting.argmin())
        if sound == 0:
            self._stop_at(data)
        return bounds[1 : sound + 1]

    def _stop_at(self, data: bytes | bytearray) -> None:
        """The next message is not there in full, or is not allowed."""
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
        """The next step needs the buffer to reach `need`, which may be more than is allowed."""
        if need > self._end_max:
            size = need - self._end_max + self._body_size_max
            raise RemoteError("E_BAD_BODY", f"MPUB body too big {size} > {self._body_size_max}")
        self.need = need

    def rebase(self, shift: int) -> None:
        """The caller dropped the first `shift` bytes of the buffer."""
        self.at -= shift
        self.need -= shift
        self._start -= shift
        self._end_max -= shift
        self._ends = [_shifted(ends, shift) for ends in self._ends]

    def bodies(self, buffer: bytes | bytearray) -> Bodies:
        """The messages, once all are there, in a buffer that nobody changes."""
        first = self._ends[0]
        if len(self._ends) == 1 and isinstance(first, range):
            size = first.step - 4
            return Bodies.even(buffer, _moved(first, -size), size)
        ends = joined(self._ends)
        starts = np.empty_like(ends)
        starts[0] = self._start + 4
        np.add(ends[:-1], 4, out=starts[1:])
        # From bytes single bodies are cut out faster than from a bytearray.
        return Bodies(bytes(buffer), starts, ends - starts)

    def cut_short(self, size: int) -> RemoteError:
        """What to say when no more follows and the buffer has `size` bytes."""
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


def walk_whole(body: bytes, message_size_max: int, body_size_max: int) -> Bodies:
    """The messages of a body that is there in full: count, then size and bytes of each.

    Raises:
        RemoteError: E_BAD_BODY or E_BAD_MESSAGE; HTTP says them without ``E_``.
    """
    walk = Walk(0, message_size_max, body_size_max)
    if not walk.advance(body):
        raise walk.cut_short(len(body))
    return walk.bodies(body)
