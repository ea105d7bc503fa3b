"""Reads stored batches and verifies them: for the cache, and raw for range readers.

Both works are made in the loop from a copy of the index and run in a reader's thread, while the
loop may drop or damage-mark the same extents: `Log.store` looks again.

1. What is handed out has been verified, header and payload, since it was read.
2. What cannot be verified is reported with its indexes, and costs only itself; but where an index
   file told what should be there, the segment's own headers are asked first.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from sparq.log.block import Block, merge
from sparq.log.disk import Disk, DiskError
from sparq.log.extents import Extent
from sparq.log.scan import BatchKey, Damage, find_header, read_bytes, read_header
from sparq.log.task import TaskKind
from sparq.protocol import batch
from sparq.protocol.batch import Header

if TYPE_CHECKING:
    from sparq.log.recovery import Recovered


class Place(NamedTuple):
    """An extent and the file it lies in."""

    path: str
    key: BatchKey
    extent: Extent


def runs_of(places: Sequence[Place]) -> Iterator[Place]:
    """The same places, those joined that follow each other without a gap: each is read at once."""
    run: Place | None = None
    for place in places:
        if run is not None and place.path == run.path and _touch(run.extent, place.extent):
            extent = run.extent._replace(
                end=place.extent.end,
                size=run.extent.size + place.extent.size,
                time_max_ns=max(run.extent.time_max_ns, place.extent.time_max_ns),
            )
            run = run._replace(extent=extent)
            continue
        if run is not None:
            yield run
        run = place
    if run is not None:
        yield run


def _touch(left: Extent, right: Extent) -> bool:
    return (
        left.offset + left.size == right.offset
        and left.end == right.first
        and left.end_ordinal == right.ordinal
    )


class Piece(NamedTuple):
    """A verified part of an extent."""

    extent: Extent
    block: Block


def verified(data: bytes, place: Place) -> Iterator[tuple[int, Header]]:
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


def read_extent(disk: Disk, place: Place) -> bytes:
    """The extent's bytes.

    Raises:
        DiskError: the file cannot be opened or read at all.
    """
    file = disk.open(place.path)
    try:
        return read_bytes(file, place.extent.size, place.extent.offset)
    finally:
        file.close()


def pieces_of(data: bytes, place: Place) -> list[Piece]:
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


def _piece(data: bytes, place: Place, run: list[tuple[int, Header]]) -> Piece:
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


def damage_of(place: Place, pieces: list[Piece]) -> list[Damage]:
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


class BlockRead:
    """Reads one extent for the cache. Taken over by `Log.store`."""

    kind: Final = TaskKind.READ
    __slots__ = ("_disk", "_scan", "damage", "error", "pieces", "place", "scanned", "token")

    def __init__(
        self,
        disk: Disk,
        place: Place | None,
        token: object,
        scan: Callable[[], "Recovered"] | None = None,
    ) -> None:
        self._disk = disk
        self._scan = scan
        """Reads the segment's headers, of which an index file has told so far."""
        self.scanned: Recovered | None = None
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
        places: list[Place],
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
        self, data: bytes, place: Place, room: int
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
