"""Finds batches in a file's bytes, verifies them, and reads them: for the cache, or for a client.

1. A batch is believed where its header's checksum holds for this place of this file. After bytes
   that are none, the next such place is looked for (places are multiples of 8). So damage costs
   what it touches: the batches before and after it are found.
2. What is handed out has been verified, header and payload, since it was read. What cannot be
   verified is reported with its indexes; but where an index file said what should be there, the
   segment's own headers are asked first.
3. `BlockRead` and `RangeRead` are made in the loop from a copy of the index and run in a reader's
   thread, while the loop may drop the same extents or mark damage: `Log.store` looks again.
4. A page that cannot be read counts as zeros (see `disk.read_bytes`); the checksums tell which
   batches that costs.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from sparq.log.block import Block, merge
from sparq.log.disk import PAGE_BYTES, Buffer, Disk, DiskError, File, read_bytes
from sparq.log.extents import BatchKey, Extent, Extents, Stretch, runs_of
from sparq.log.task import TaskKind
from sparq.protocol import batch
from sparq.protocol.batch import ALIGNMENT, HEADER_SIZE, MAGIC, Header

CHUNK_BYTES: Final = 1 << 20
SKIP_BYTES: Final = 64 << 10
"""Behind a batch of this size only the next header is read, not a chunk."""


class Damage(NamedTuple):
    """Stored messages that cannot be read any more.

    Attributes:
        first, end: their indexes are in [first, end).
        messages: how many there are; 0 where that is unknown.
        path, offset, size_bytes: the bytes in question.
        reason: what is wrong with them.
    """

    first: int
    end: int
    messages: int
    path: str
    offset: int
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}, bytes {self.offset} to {self.offset + self.size_bytes}, "
            f"indexes {self.first} to {self.end}, {self.messages} messages lost"
        )


def read_header(buffer: Buffer, at: int, file_offset: int, key: BatchKey) -> Header | None:
    """The header at `at`, if it is one for this place of the file; else None."""
    header = batch.parse_header(buffer, at)
    if (
        header is None
        or header.log_id_short != key.log_id_short
        or not batch.check_header(buffer, at, file_offset, key.salt)
    ):
        return None
    return header


def find_header(buffer: bytes, at: int, base: int, key: BatchKey) -> int:
    """The first place from `at` on with a header; -1 if there is none.

    Args:
        buffer: a part of the file.
        at: a position in the buffer.
        base: the buffer's offset in the file, a multiple of 8.
        key: the file's.
    """
    while (at := buffer.find(MAGIC, at)) >= 0:
        if at % ALIGNMENT == 0 and read_header(buffer, at, base + at, key) is not None:
            return at
        at += 1
    return -1


class Found(NamedTuple):
    """A batch, or what lies before the next one: header None."""

    offset: int
    size: int
    header: Header | None


def headers(file: File, start: int, size: int, key: BatchKey) -> Iterator[Found]:
    """The batches of a file by their headers, and the stretches between them that are none.

    Args:
        file: the file.
        start: where the first batch begins.
        size: the file's size. A batch that goes beyond it is none.
        key: the file's.
    """
    at, base, chunk, length = start, start, b"", CHUNK_BYTES
    while at + HEADER_SIZE <= size:
        if at + HEADER_SIZE > base + len(chunk):
            base, chunk = at, read_bytes(file, min(length, size - at), at)
        header = read_header(chunk, at - base, at, key)
        if header is None and batch.parse_header(chunk, at - base) is not None:
            # A later version's header is longer and may be cut off by the chunk.
            base, chunk = at, read_bytes(file, min(CHUNK_BYTES, size - at), at)
            header = read_header(chunk, 0, at, key)
        if header is None or at + header.total_size > size:
            found = _resync(file, at + ALIGNMENT, size, key)
            yield Found(at, found - at, None)
            at = found
            continue
        yield Found(at, header.total_size, header)
        at += header.total_size
        length = CHUNK_BYTES if header.total_size < SKIP_BYTES else PAGE_BYTES
    if at < size:
        yield Found(at, size - at, None)


def _resync(file: File, at: int, size: int, key: BatchKey) -> int:
    """Where the next batch begins; `size` if there is none."""
    while at + HEADER_SIZE <= size:
        chunk = read_bytes(file, min(CHUNK_BYTES, size - at), at)
        found = find_header(chunk, 0, at, key)
        if found >= 0:
            return at + found
        # A header may begin in this chunk and end in the next.
        at += max(ALIGNMENT, (len(chunk) - HEADER_SIZE) // ALIGNMENT * ALIGNMENT)
    return size


class Piece(NamedTuple):
    """A verified part of an extent."""

    extent: Extent
    block: Block


def verified(data: bytes, place: Stretch) -> Iterator[tuple[int, Header]]:
    """The batches of an extent's bytes that are whole, as (position in `data`, header)."""
    base = place.extent.offset
    at = 0
    while at + batch.HEADER_SIZE <= len(data):
        header = read_header(data, at, base + at, place.key)
        if header is None:
            at = find_header(data, at + batch.ALIGNMENT, base, place.key)
            if at < 0:
                return
            continue
        if header.first_index >= place.extent.end:
            return
        if header.readable and batch.check_payload(data, at, header):
            yield at, header
        at += header.total_size


def read_extent(disk: Disk, place: Stretch) -> bytes:
    """The extent's bytes.

    Raises:
        DiskError: the file cannot be opened or read at all.
    """
    file = disk.open(place.path)
    try:
        return read_bytes(file, place.extent.size, place.extent.offset)
    finally:
        file.close()


def pieces_of(data: bytes, place: Stretch) -> list[Piece]:
    """The extent's verified messages: one piece, or more where damage or size parts them."""
    pieces: list[Piece] = []
    run: list[tuple[int, Header]] = []
    for at, header in verified(data, place):
        if run and not _follows(run, at, header):
            pieces.append(_piece(data, place, run))
            run = []
        run.append((at, header))
    if run:
        pieces.append(_piece(data, place, run))
    return pieces


def _follows(run: list[tuple[int, Header]], at: int, header: Header) -> bool:
    last_at, last = run[-1]
    return at == last_at + last.total_size and header.first_index == last.end_index


def _piece(data: bytes, place: Stretch, run: list[tuple[int, Header]]) -> Piece:
    """One piece of batches that follow each other."""
    first_at, first = run[0]
    last_at, last = run[-1]
    end = min(last.end_index, place.extent.end)
    extent = Extent(
        first.first_index,
        end,
        first.ordinal,
        place.extent.offset + first_at,
        last_at + last.total_size - first_at,
        place.extent.time_max_ns,
    )
    if len(run) == 1:
        return Piece(extent, _block(data, first_at, first))
    return Piece(extent, _join(data, run))


def _block(data: bytes, at: int, header: Header) -> Block:
    stored = batch.decode(data, at, header)
    return Block(header.first_index, header.messages, stored.ends, stored.frames, header.ordinal)


def _join(data: bytes, run: list[tuple[int, Header]]) -> Block:
    """One block of several batches; where each holds one message, without arrays in between."""
    if any(header.messages > 1 for _, header in run):
        return merge([_block(data, at, header) for at, header in run])
    first = run[0][1]
    sizes = np.array([header.frames_size for _, header in run], np.int64)
    starts = [at + header.header_size + 4 for at, header in run]
    frames = b"".join(
        [data[at : at + size] for at, size in zip(starts, sizes.tolist(), strict=True)]
    )
    ends = np.cumsum(sizes).astype(np.uint32)
    return Block(first.first_index, len(run), ends, frames, first.ordinal)


def damage_of(place: Stretch, pieces: list[Piece]) -> list[Damage]:
    """What of the extent is in none of the pieces."""
    found: list[Damage] = []
    extent = place.extent
    index, offset = extent.first, extent.offset
    edges = [(piece.extent.first, piece.extent.offset, piece.extent) for piece in pieces]
    for first, starts, piece in [*edges, (extent.end, extent.offset + extent.size, None)]:
        if first > index:
            reason = "damaged batch"
            size = starts - offset
            found.append(Damage(index, first, first - index, place.path, offset, size, reason))
        if piece is not None:
            index, offset = piece.end, piece.offset + piece.size
    return found


class Rescan(NamedTuple):
    """What the headers of a segment's batches say.

    Attributes:
        extents: where its messages are.
        damage: what of it cannot be read.
    """

    extents: Extents
    damage: list[Damage]


class BlockRead:
    """Reads one extent for the cache. Taken over by `Log.store`."""

    kind: Final = TaskKind.READ
    __slots__ = ("_disk", "_scan", "damage", "error", "pieces", "place", "scanned", "token")

    def __init__(
        self,
        disk: Disk,
        place: Stretch | None,
        token: object,
        scan: Callable[[], Rescan] | None = None,
    ) -> None:
        self._disk = disk
        self._scan = scan
        """Reads the segment's headers, of which an index file has told so far."""
        self.scanned: Rescan | None = None
        """What that came to."""
        self.place = place
        self.token = token
        """The segment it lies in, for the log to know again."""
        self.error: DiskError | None = None
        self.pieces: list[Piece] = []
        self.damage: list[Damage] = []

    @property
    def blocks(self) -> list[Block]:
        """What was read."""
        return [piece.block for piece in self.pieces]

    def run(self) -> None:
        """Read and verify."""
        if self.place is None:
            return
        try:
            data = read_extent(self._disk, self.place)
        except DiskError as error:
            self.error = error
            return
        self.pieces = pieces_of(data, self.place)
        self.damage = damage_of(self.place, self.pieces)
        if self.damage and self._scan is not None:
            try:
                self.scanned = self._scan()
            except DiskError as error:
                self.error = error


class RangeRead:
    """Reads the stored batches that overlap [first, end), verified, for a range reader.

    Attributes:
        batches: whole batches one after the other, in as few buffers as there are gaps.
        next_index: where to go on; `end` when done.
        lost: messages in [first, next_index) that cannot be read.
    """

    kind: Final = TaskKind.READ
    __slots__ = (
        "_disk",
        "_end_ordinal",
        "_first_ordinal",
        "_max_bytes",
        "_places",
        "batches",
        "end",
        "error",
        "first",
        "lost",
        "next_index",
    )

    def __init__(
        self,
        disk: Disk,
        places: list[Stretch],
        first: tuple[int, int],
        end: tuple[int, int],
        max_bytes: int,
    ) -> None:
        """Prepare.

        Args:
            disk: the disk.
            places: the extents that overlap the range, in order; may stop short of its end.
            first: the range's first index, and the messages before it in the log.
            end: likewise where `places` end.
            max_bytes: stop before the batch that would go beyond it, but for the first.
        """
        self._disk = disk
        self._places = places
        self._max_bytes = max_bytes
        self.first, self._first_ordinal = first
        self.end, self._end_ordinal = end
        self.error: DiskError | None = None
        self.batches: list[memoryview] = []
        self.next_index = self.end
        self.lost = 0

    def run(self) -> None:
        """Read, verify, and count what is missing."""
        room = self._max_bytes
        present = 0
        try:
            for place in runs_of(self._places):
                data = read_extent(self._disk, place)
                taken, room, stopped = self._take(data, place, room)
                present += taken
                if stopped is not None:
                    self.next_index, self._end_ordinal = stopped
                    break
        except DiskError as error:
            self.error = error
            self.batches = []
            return
        self.lost = self._end_ordinal - self._first_ordinal - present

    def _take(
        self, data: bytes, place: Stretch, room: int
    ) -> tuple[int, int, tuple[int, int] | None]:
        """Take an extent's batches.

        Returns:
            Messages in the range taken, room left, and where it stopped for want of room.
        """
        view = memoryview(data)
        present, run_start, run_end = 0, 0, 0
        stopped: tuple[int, int] | None = None
        for at, header in verified(data, place):
            if header.end_index <= self.first or header.first_index >= self.end:
                continue
            if header.total_size > room and (self.batches or run_end):
                stopped = (header.first_index, header.ordinal)
                break
            if at != run_end:
                self._add(view[run_start:run_end])
                run_start = at
            run_end = at + header.total_size
            room -= header.total_size
            present += min(header.end_index, self.end) - max(header.first_index, self.first)
        self._add(view[run_start:run_end])
        return present, room, stopped

    def _add(self, batches: memoryview) -> None:
        if len(batches):
            self.batches.append(batches)
