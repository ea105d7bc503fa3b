"""Inspection of a log: the messages in memory, the place of the others, and publish times.

Nothing here changes the log or its cache: inspection does not count as use, data read is not kept,
and data that cannot be verified is left for a channel's read to report.

1. A part (a stretch of messages without a gap) takes its messages from memory, or else from their
   place on the disk, read in a thread.
2. A part may be gone from the disk by the time it is read; `LogInspection.has` tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.log.block import Block, BlockCache
from sparq.log.disk import Disk, DiskError
from sparq.log.index import Index
from sparq.log.reading import pieces_of, read_extent
from sparq.log.segment import Extent, Segment, Stretch
from sparq.log.task import Task, TaskKind
from sparq.protocol.layout import FRAME_OVERHEAD

Indexes = NDArray[np.int64]

JOIN_BYTES: Final = 1 << 20
"""Neighbouring extents are read together up to this size."""

SINGLES_BYTES_MAX: Final = 8 << 20
"""Maximum bytes of bodies in one result, plus the body that reaches the limit."""

SEGMENTS_MAX: Final = 256
"""With more files than this, `curve` has only the first and last publish time of each."""


class LogPart(NamedTuple):
    """A stretch of messages without a gap.

    Attributes:
        place: its place on the disk.
        blocks: its messages, if they are in memory.
    """

    place: Stretch
    blocks: tuple[Block, ...]

    @property
    def first(self) -> int:
        """The index of the first message."""
        return self.place.extent.first

    @property
    def end(self) -> int:
        """The index after the last message."""
        return self.place.extent.end

    @property
    def size(self) -> int:
        """Bytes to be read from the disk for it."""
        return 0 if self.blocks else self.place.extent.size


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message.

    Attributes:
        index: its index.
        time_ns: publish time, ns since 1970.
        size: bytes of its body.
        body: the body, up to the number of bytes requested.
    """

    index: int
    time_ns: int
    size: int
    body: bytes


class Curve(NamedTuple):
    """Publish times, by stretches of the log, each of shape (n,).

    Attributes:
        firsts: the first index of each stretch.
        counts: the number of its messages.
        begins, ends: none of its messages was published before or after (ns since 1970).
        sizes: bytes that it takes on the disk.
    """

    firsts: Indexes
    counts: Indexes
    begins: Indexes
    ends: Indexes
    sizes: Indexes


def stored_at(block: Block, index: int, body_bytes: int) -> StoredMessage:
    """Return a message of a block, with at most `body_bytes` of its body."""
    start, end = block.start_of(index), block.start_of(index + 1)
    body = start + FRAME_OVERHEAD
    return StoredMessage(
        index,
        int.from_bytes(block.frames[start + 8 : start + 16], "big"),
        end - body,
        bytes(block.frames[body : min(end, body + body_bytes)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LogInspection:
    """Queries on one log; all of them are answered in the event loop."""

    disk: Disk
    index: Index
    cache: BlockCache
    owner: object

    def part(self, index: int) -> LogPart | None:
        """Return the part with this index; None: it is not stored."""
        found = self.index.locate(index)
        return None if found is None else self._part(found[0], found[0].extents[found[1]])

    def _part(self, segment: Segment, extent: Extent) -> LogPart:
        entry = self.cache.peek((self.owner, extent.first))
        return LogPart(segment.place(extent), () if entry is None else tuple(entry.blocks))

    def has(self, part: LogPart) -> bool:
        """Whether the log still has the file of a part."""
        return any(segment.path == part.place.path for segment in self.index.files)

    def parts(self, first: int, end: int, count_max: int) -> list[LogPart]:
        """List up to `count_max` parts that overlap [first, end), in order."""
        parts: list[LogPart] = []
        for segment, extent in self.index.extents_from(first):
            if extent.first >= end:
                break
            part = self._part(segment, extent)
            both = None
            if parts and not parts[-1].blocks and not part.blocks:
                both = parts[-1].place.join(part.place)
            if both is not None and both.extent.size <= JOIN_BYTES:
                parts[-1] = LogPart(both, ())
            elif len(parts) == count_max:
                break
            else:
                parts.append(part)
        return parts

    def stored_from(self, first: int, end: int, count: int) -> list[int]:
        """List the first `count` stored indexes in [first, end)."""
        found: list[int] = []
        for _, extent in self.index.extents_from(first):
            if extent.first >= end or len(found) >= count:
                break
            begin = max(first, extent.first)
            found += range(begin, min(extent.end, end, begin + count - len(found)))
        return found

    def known_time(self, index: int) -> tuple[int, bool] | None:
        """Return the publish time of a message, as far as memory has it; None: it is not stored.

        Returns:
            The time (ns since 1970), and whether it is exact; if not, no message of its extent,
            including this one, was published later.
        """
        found = self.index.locate(index)
        if found is None:
            return None
        segment, position = found
        extents = segment.extents
        entry = self.cache.peek((self.owner, extents.firsts[position]))
        for block in entry.blocks if entry is not None else ():
            if block.first <= index < block.end:
                return stored_at(block, index, 0).time_ns, True
        if index == extents.firsts[0] and segment.first_time_ns:
            return segment.first_time_ns, True
        return extents[position].time_max_ns, False

    def curve(self) -> Curve:
        """Return what the index says about publish times."""
        segments = [segment for segment in self.index.files if len(segment.extents)]
        columns: list[Indexes] = []
        for segment in segments:
            firsts, ends, _, _, sizes, times = segment.extents.rows(0, len(segment.extents))
            first_ns = segment.first_time_ns
            if len(segments) > SEGMENTS_MAX:
                last_ns, messages = segment.last_time_ns, segment.extents.messages
                row = (firsts[0], messages, first_ns, last_ns, segment.size)
                columns.append(np.array(row, np.int64).reshape(5, 1))
                continue
            latest = np.maximum.accumulate(times)
            # The index has no earliest times: an extent begins at the latest time before it or, if
            # the clock was set back since, at its own latest time.
            begins = np.minimum(np.append(first_ns or times[0], latest[:-1]), times)
            columns.append(np.array([firsts, ends - firsts, begins, times, sizes]))
        joined = np.concatenate(columns, axis=1) if columns else np.empty((5, 0), np.int64)
        return Curve(*joined)


def blocks_of(disk: Disk, part: LogPart) -> list[Block]:
    """Read a part's messages from memory or the disk; those that fail verification are omitted.

    Raises:
        DiskError: the file cannot be read; it may be gone.
    """
    if part.blocks:
        return list(part.blocks)
    data = read_extent(disk, part.place)
    return [piece.block for piece in pieces_of(data, part.place)]


@dataclass(eq=False)
class SingleMessageRead(Task):
    """A task that reads single messages.

    Attributes:
        wanted: parts, and which messages of each, ascending.
        body_bytes: maximum bytes of each body.
        found: the messages read, by index; unreadable ones are missing.
        left: messages that were not read because the bodies reached the limit.
        failed: the parts whose file could not be read, and the error.
    """

    disk: Disk
    wanted: list[tuple[LogPart, list[int]]]
    body_bytes: int
    found: dict[int, StoredMessage] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    failed: list[tuple[LogPart, DiskError]] = field(default_factory=list)
    kind = TaskKind.INSPECT

    def execute(self) -> None:
        """Read the messages."""
        room = SINGLES_BYTES_MAX
        for part, indexes in self.wanted:
            if room < 0:
                self.left.update(indexes)
                continue
            try:
                blocks = blocks_of(self.disk, part)
            except DiskError as error:
                self.failed.append((part, error))
                continue
            at = 0
            for index in indexes:
                while at < len(blocks) and blocks[at].end <= index:
                    at += 1
                if at == len(blocks) or index < blocks[at].first:
                    continue
                if room < 0:
                    self.left.update(left for left in indexes if left >= index)
                    break
                self.found[index] = stored = stored_at(blocks[at], index, self.body_bytes)
                room -= len(stored.body)


def wanted_parts(
    inspection: LogInspection, indexes: Sequence[int], bytes_max: int
) -> tuple[list[tuple[LogPart, list[int]]], int]:
    """Find the parts with these messages, up to `bytes_max` to be read, but at least one.

    Returns:
        Each part with its messages, ascending, and how many of `indexes`, from the first on, are
        covered, including those that are not stored.
    """
    wanted: dict[int, tuple[LogPart, list[int]]] = {}
    part: LogPart | None = None
    size = covered = 0
    for index in indexes:
        if part is None or not part.first <= index < part.end:
            part = inspection.part(index)
        if part is not None:
            if part.first not in wanted:
                if wanted and size + part.size > bytes_max:
                    break
                wanted[part.first] = part, []
                size += part.size
            wanted[part.first][1].append(index)
        covered += 1
    return [(part, sorted(found)) for part, found in wanted.values()], covered
