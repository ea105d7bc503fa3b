"""Reads the messages of one data file of Go's nsqd, including those around damage.

A record, big-endian, as go-diskqueue writes it; a file is a sequence of records::

    offset  size  field
         0     4  length of everything after it, 26 + body
         4     8  timestamp, ns since 1970
        12     2  attempts so far
        14    16  message id, hex digits
        30     -  body

There is no checksum, so whole records are recognised by their shape:

1. A record counts if its length is valid and something confirms where it ends: the file's end, the
   stored write position, nothing but zeros from there on, or the head of another record (a
   plausible timestamp and 16 hex digits, or a chain of valid lengths).
2. After bytes that do not count, reading continues at the next place with a record. Damage costs
   the records that it touches, and also the record before a damaged head: that record may have lost
   its end, and a partial message is never delivered.
3. If a length leads exactly to a later record's head, the records between may be in its record's
   body, or the length may be damaged. It counts as damaged if those records lead to the same place,
   are no older than this one, and one byte makes the difference between the lengths. (Records in a
   body that a client published are older than the message.)
4. Memory is bounded by the largest record, at most `LENGTH_MAX`, plus one chunk.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.log.disk import File, read_bytes
from sparq.protocol.frames import BodySlices

LENGTH_SIZE: Final = 4
FIXED_SIZE: Final = 26
"""Timestamp, attempts and id: the lowest valid length."""
HEAD_SIZE: Final = LENGTH_SIZE + FIXED_SIZE
ID_AT: Final = 14
LENGTH_MAX: Final = (64 << 20) + FIXED_SIZE
"""More than any `--max-msg-size` with which NSQ is run."""
CHUNK_BYTES: Final = 1 << 20
CHAIN: Final = 3
"""Number of consecutive valid lengths that confirm a place without the shape of a head."""

_LENGTH: Final = struct.Struct(">i")
_IS_HEX: Final = np.zeros(256, np.bool_)
_IS_HEX[list(b"0123456789abcdef")] = True
_DIGITS: Final = np.arange(ID_AT, HEAD_SIZE)
_STAMP: Final = np.arange(8)
_ATTEMPTS: Final = np.arange(8, 10)
_DAYS: Final = range(0x10, 0x20)
"""First bytes of timestamps from 2006 to 2043; no text contains these bytes."""
_WRONG_CLOCK: Final = 0x08
"""No text contains bytes up to this one, either: timestamps before July 1990, of an unset clock."""

Offsets = NDArray[np.int64]


class GoRecords(NamedTuple):
    """Messages that follow each other.

    Attributes:
        data: the bytes that hold them.
        starts: where each message begins in `data`, after its length.
        sizes: their sizes in bytes, 26 + body.
    """

    data: bytes
    starts: Offsets
    sizes: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    def bodies(self) -> BodySlices:
        """Return the bodies, without copying them."""
        return BodySlices(self.data, self.starts + FIXED_SIZE, self.sizes - FIXED_SIZE)

    def timestamps(self) -> NDArray[np.int64]:
        """Return the publish times, ns since 1970."""
        return self._numbers(_STAMP, ">i8")

    def attempts(self) -> NDArray[np.int64]:
        """Return how often each has been delivered."""
        return self._numbers(_ATTEMPTS, ">u2")

    def _numbers(self, places: Offsets, form: str) -> NDArray[np.int64]:
        """Gather a field byte by byte: records differ in size, so no view with a stride does it."""
        cells = np.frombuffer(self.data, np.uint8)
        found: NDArray[np.int64] = cells[self.starts[:, None] + places].view(form).ravel()
        return found.astype(np.int64)

    def part(self, first: int, end: int) -> "GoRecords":
        """Return the records [first, end)."""
        return GoRecords(self.data, self.starts[first:end], self.sizes[first:end])


class BadBytes(NamedTuple):
    """Bytes of a file that are not a whole record."""

    path: str
    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.size} bytes at {self.offset}: {self.reason}"


def read_records(
    file: File, start: int, size: int, written: int = -1
) -> Iterator[GoRecords | BadBytes]:
    """Yield the contents of a data file from `start` on, in order.

    Args:
        file: the file.
        start: where reading begins: the stored read position, or 0.
        size: the file's size.
        written: the stored write position, if it is in this file: a record ended there.

    Raises:
        DiskError: the file cannot be read; single unreadable pages count as zeros instead.
    """
    if start >= size:
        return
    reader = _FileWindow(file, size, written, start)
    at = start
    while at < size:
        run = reader.run(at)
        if run is not None:
            yield run
            at = reader.base + int(run.starts[-1] + run.sizes[-1])
            continue
        found = reader.step(at)
        yield found
        at = reader.next_at


class _FileWindow:
    """A window on the file, moved as needed.

    Attributes:
        base: the window's offset in the file.
        data: the window.
        next_at: the offset after the last step.
    """

    def __init__(self, file: File, size: int, written: int, start: int) -> None:
        self._file = file
        self._size = size
        self._written = written
        self.base = 0
        self.data = b""
        self.next_at = 0
        self._slow_until = 0
        self._slow_bytes = 1
        self._is_stamp = np.zeros(256, np.bool_)
        self._is_stamp[list(_DAYS)] = True
        # Timestamps of a clock that was never set count if the first record has one.
        self._show(start, HEAD_SIZE)
        first = self.data[start - self.base + LENGTH_SIZE : start - self.base + LENGTH_SIZE + 1]
        if first and first[0] <= _WRONG_CLOCK:
            self._is_stamp[first[0]] = True

    # Fast path: a whole chunk at once, if nothing in it is in doubt

    def run(self, at: int) -> GoRecords | None:
        """Return the records from here to the end of a chunk; None: `step` reads the first one."""
        # After a failure the fast path waits for twice as many bytes as the last time. Otherwise it
        # would scan a chunk in vain for each record of a damaged region.
        if at < self._slow_until:
            return None
        # A new chunk is read when less than a quarter is left: asking for a whole one would read
        # nearly all of it again for each run.
        self._show(at, CHUNK_BYTES // 4)
        heads = np.array(self._chain(at - self.base), np.int64)
        # A record is confirmed by the head after it, so the last head with the shape is not.
        shaped = self._have_shape(heads[heads + HEAD_SIZE <= len(self.data)])
        count = int(np.argmin(shaped)) - 1 if not shaped.all() else len(shaped) - 1
        if self.base + int(heads[-1]) == self._size and shaped.all():
            count = len(heads) - 1
        if count > 0:
            count = self._count_before_damage(heads[: count + 1])
        if count < 1:
            self._slow_until = at + self._slow_bytes
            self._slow_bytes = min(2 * self._slow_bytes, CHUNK_BYTES)
            return None
        self._slow_bytes = 1
        return GoRecords(self.data, heads[:count] + LENGTH_SIZE, np.diff(heads[: count + 1]) - 4)

    def _count_before_damage(self, heads: Offsets) -> int:
        """Count the records before the first one whose length is damaged and includes others."""
        first, end = int(heads[0]), int(heads[-1])
        inner = self._heads_within(first, end)
        owners = np.searchsorted(heads, inner, "right") - 1
        owners = owners[inner - heads[owners] >= HEAD_SIZE]
        base = self.base
        for owner in np.unique(owners).tolist():
            if self._included(base + int(heads[owner]), base + int(heads[owner + 1])) is not None:
                return int(owner)
        return len(heads) - 1

    def _chain(self, at: int) -> list[int]:
        """List where records begin according to their lengths, and where the last one ends."""
        data, size, unpack = self.data, len(self.data), _LENGTH.unpack_from
        # A loop, not NumPy: only the length before says where a record begins.
        starts = [at]
        while at + HEAD_SIZE <= size:
            length = unpack(data, at)[0]
            at += LENGTH_SIZE + length
            if not FIXED_SIZE <= length <= LENGTH_MAX or at > size:
                break
            starts.append(at)
        return starts

    def _have_shape(self, heads: Offsets) -> NDArray[np.bool_]:
        """Tell which of these places of the window have a plausible timestamp and 16 hex digits."""
        cells = np.frombuffer(self.data, np.uint8)
        digits = _IS_HEX[cells[heads[:, None] + _DIGITS]].all(axis=1)
        shaped: NDArray[np.bool_] = digits & self._is_stamp[cells[heads + LENGTH_SIZE]]
        return shaped

    def _heads_within(self, first: int, end: int) -> Offsets:
        """Find the places in the window's [first, end) that have the shape of a record's head."""
        last = min(end, len(self.data) - HEAD_SIZE + 1)
        if last <= first:
            return np.empty(0, np.int64)
        cells = np.frombuffer(self.data, np.uint8)
        stamps = cells[first + LENGTH_SIZE : last + LENGTH_SIZE]
        heads = np.flatnonzero(self._is_stamp[stamps]) + first
        # Checking two digits excludes most of the rest before all sixteen are checked.
        heads = heads[_IS_HEX[cells[heads + ID_AT]] & _IS_HEX[cells[heads + HEAD_SIZE - 1]]]
        return heads[self._have_shape(heads)]

    # Slow path: record by record

    def step(self, at: int) -> GoRecords | BadBytes:
        """Return the record at `at`, or the unreadable bytes up to the next; set `next_at`."""
        length = self._length(at)
        end = at + LENGTH_SIZE + length
        fits = FIXED_SIZE <= length <= LENGTH_MAX and end <= self._size
        if fits and self._is_confirmed(end):
            included = self._included(at, end)
            if included is None:
                self.next_at = end
                self._show(at, end - at)
                start = at - self.base + LENGTH_SIZE
                return GoRecords(self.data, np.array([start]), np.array([length]))
            self.next_at = included
            return self._bad(at, "its length field points past the next record")
        # No record begins within another's head, but a place in it may look like a head, too: the
        # rest of its id, followed by hex digits in the body.
        found = self._find(at + HEAD_SIZE if self._is_head(at) else at + 1)
        self.next_at = self._size if found is None else found
        if found is None and length >= FIXED_SIZE and end > self._size:
            return self._bad(at, "truncated, or its length field is damaged")
        if fits:
            return self._bad(at, "no record starts where its length field points")
        return self._bad(at, "no record starts here")

    def _bad(self, at: int, reason: str) -> BadBytes:
        return BadBytes(self._file.path, at, self.next_at - at, reason)

    def _length(self, at: int) -> int:
        """Return the length field here; 0 at the file's end."""
        self._show(at, LENGTH_SIZE)
        where = at - self.base
        if at + LENGTH_SIZE > self._size:
            return 0
        length: int = _LENGTH.unpack_from(self.data, where)[0]
        return length

    def _is_head(self, at: int) -> bool:
        """Whether the bytes here have the shape of a record's head."""
        if at + HEAD_SIZE > self._size:
            return False
        self._show(at, HEAD_SIZE)
        return bool(self._have_shape(np.array([at - self.base]))[0])

    def _is_confirmed(self, at: int, depth: int = 1) -> bool:
        """Whether it is plausible that a record ends here."""
        if at in (self._size, self._written) or self._is_head(at) or self._is_blank(at):
            return True
        if at + HEAD_SIZE > self._size:
            return self._may_be_torn_head(at)
        length = self._length(at)
        end = at + LENGTH_SIZE + length
        if not FIXED_SIZE <= length <= LENGTH_MAX or end > self._size:
            return False
        return depth == CHAIN or self._is_confirmed(end, depth + 1)

    def _is_blank(self, at: int) -> bool:
        """Whether the rest of the window is zeros: space that a crash left without its bytes."""
        self._show(at, CHUNK_BYTES)
        # The first bytes nearly always decide, without a look at the whole window.
        return not any(self.data[at - self.base : at - self.base + HEAD_SIZE]) and not any(
            self.data[at - self.base :]
        )

    def _may_be_torn_head(self, at: int) -> bool:
        """Whether the file's last bytes, fewer than a head, may be the beginning of one."""
        self._show(at, self._size - at)
        rest = self.data[at - self.base :]
        length = int.from_bytes(rest[:LENGTH_SIZE].ljust(LENGTH_SIZE, b"\0"), "big")
        if length > LENGTH_MAX or (len(rest) >= LENGTH_SIZE and length < FIXED_SIZE):
            return False
        return len(rest) <= LENGTH_SIZE or bool(self._is_stamp[rest[LENGTH_SIZE]])

    def _included(self, at: int, end: int) -> int | None:
        """Find the record in this one's body from which records lead exactly to its end."""
        self._show(at, end - at)
        base = self.base
        own = end - at - LENGTH_SIZE
        heads = self._heads_within(at - base + HEAD_SIZE, end - base - HEAD_SIZE + 1)
        stamp = self._stamp(at - base)
        for head in heads.tolist():
            shorter = head + base - at - LENGTH_SIZE
            difference = own ^ shorter
            if (
                # Changing a single byte turns one length into the other.
                any(difference & ~(0xFF << shift) == 0 for shift in (0, 8, 16, 24))
                and self._stamp(head) >= stamp
                and self._leads_to(head, end - base)
            ):
                return int(head + base)
        return None

    def _stamp(self, head: int) -> bytes:
        """Return the timestamp of this head in the window; its bytes compare as the number does."""
        return self.data[head + LENGTH_SIZE : head + LENGTH_SIZE + 8]

    def _leads_to(self, head: int, end: int) -> bool:
        """Whether the records in the window from this head on end exactly at `end`."""
        while head + HEAD_SIZE <= end:
            length = _LENGTH.unpack_from(self.data, head)[0]
            if length < FIXED_SIZE or not self._have_shape(np.array([head]))[0]:
                return False
            head += LENGTH_SIZE + length
        return head == end

    def _find(self, at: int) -> int | None:
        """Find the next place with a record that counts; None: there is none."""
        while at + HEAD_SIZE <= self._size:
            self._show(at, CHUNK_BYTES)
            base, first, end = self.base, at - self.base, len(self.data) - HEAD_SIZE + 1
            for head in self._heads_within(first, end).tolist():
                place = base + head
                length = self._length(place)
                behind = place + LENGTH_SIZE + length
                fits = FIXED_SIZE <= length <= LENGTH_MAX and behind <= self._size
                if fits and self._is_confirmed(behind):
                    return int(place)
            # The last bytes, too few for a head, are searched again with the next window.
            at = base + end
        return None

    def _show(self, at: int, size: int) -> None:
        """Load at least `size` bytes from `at` on into the window, or all up to the file's end."""
        wanted = min(size, self._size - at)
        if self.base <= at and at + wanted <= self.base + len(self.data):
            return
        self.base = at
        self.data = read_bytes(self._file, min(max(size, CHUNK_BYTES), self._size - at), at)
