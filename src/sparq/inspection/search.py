"""Searches a log for messages, part by part, for as long as the caller lets it.

The event loop chooses the next parts (`begin_step`). A thread searches them (`run`), and asks after
each small piece of work whether it may go on. Then the next step follows, or the answer. So a
search of millions of messages consists of many steps of milliseconds, and does not block other
requests.

A piece of work is bounded in bytes and in messages, whatever a batch holds, and so is each call in
it that lets no other thread run (reads from the disk do let them run): the event loop needs the
interpreter several times for each delivery, and would wait for the end of such a call each time.

1. A part is searched as raw bytes first; only if something is found, it is verified and decoded. If
   a channel's state is a criterion, parts without a candidate are not even read.
2. `position` is how far the search has come: every match before it has been reported. A step that
   is stopped within a part goes on there in the same search; a new search that begins in the
   middle of a part reads it again.
3. A message that cannot be read, or is too large to be parsed, does not match and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sparq.inspection import json_path
from sparq.inspection.snapshot import UNKNOWN, ChannelSnapshot, MessageState, Places
from sparq.log.block import Block
from sparq.log.disk import DiskError
from sparq.log.inspection import LogInspection, LogPart, StoredMessage, stored_at
from sparq.log.reading import pieces_of, read_extent
from sparq.log.task import Task, TaskKind
from sparq.protocol.dead_letters import unseal
from sparq.protocol.layout import FRAME_OVERHEAD

if TYPE_CHECKING:
    from sparq.inspection.json_path import JsonFilter


WINDOW_BYTES: Final = 64 << 10
"""Maximum bytes that one call searches: an eighth of a millisecond at worst."""

Indexes = NDArray[np.int64]
COMPARED: Final[dict[str, Callable[[Indexes, int], NDArray[np.bool_]]]] = {
    ">=": np.greater_equal,
    "<=": np.less_equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    "=": np.equal,
}
PARTS_MAX: Final = 16
"""Parts of one step: at most 16 MiB, or 1 MiB of parts in memory."""

FOUND_BYTES_MAX: Final = 8 << 20
"""An answer takes no further match once it has this many bytes of bodies."""

STEP_SECONDS: Final = 0.004
"""Length of a step; other requests are served in between."""

STEP_MESSAGES: Final = 32
"""The clock is read after this many messages, ..."""

STEP_BYTES: Final = 16 << 10
"""... or after this many bytes of messages: parsing them takes a third of a millisecond."""

PATTERN_STEPS_MAX: Final = 20_000_000
"""Maximum of a pattern's instructions times a body's bytes: at worst, RE2 takes a second for it."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The conditions on a message; those not given always hold.

    Attributes:
        text: bytes of its body.
        json: a condition on its body.
        regex: a pattern that matches somewhere in its body (google-re2's, over bytes).
        attempts: an operator of `COMPARED`, and a number.
        state: its state on the channel.
    """

    text: bytes = b""
    json: JsonFilter | None = None
    regex: Any = None
    attempts: tuple[str, int] | None = None
    state: MessageState | None = None

    def needle_in(self, data: bytes) -> bytes:
        """A text that the matching bodies in this data contain; b"": unknown."""
        needle = self.text or (self.json.needle() if self.json is not None else b"")
        is_escaped = needle != self.text and holds(data, json_path.ESCAPE)
        return b"" if is_escaped else needle

    def wants(self, places: Places) -> NDArray[np.bool_]:
        """Tell which of these places match."""
        wanted = np.ones(len(places.state), np.bool_)
        if self.state is not None:
            wanted &= places.state == self.state
        if self.attempts is not None:
            operator, number = self.attempts
            attempts = places.attempts
            wanted &= COMPARED[operator](attempts, number) & (attempts != UNKNOWN)
        return wanted


@dataclass(eq=False)
class Search(Task):
    """One request's search; also the task of its next step, which continues it for a while.

    Attributes:
        position: the index where it is; `end`: where it ends.
        clock: the time in seconds; a step reads it after each piece of work.
        snapshot: a snapshot of the channel, if a state or attempts are a criterion.
        limit: maximum number of matches; `body_bytes`: maximum bytes of each body.
        found: the matches, ascending.
        scanned, scanned_bytes: the number of messages searched, and the bytes of their frames.
        unsearched: the number of those that could not be searched.
        failed: parts whose file could not be read, and the error.
        candidates: the messages that may match, if only those are searched.
        work: the work that a step has left to the next one; yields after each piece.
    """

    inspection: LogInspection
    criteria: Criteria
    position: int
    end: int
    clock: Callable[[], float]
    snapshot: ChannelSnapshot | None = None
    limit: int = 50
    body_bytes: int = 65_536
    found: list[StoredMessage] = field(default_factory=list)
    found_bytes: int = 0
    scanned: int = 0
    scanned_bytes: int = 0
    unsearched: int = 0
    failed: list[tuple[LogPart, DiskError]] = field(default_factory=list)
    candidates: Indexes | None = None
    work: Iterator[None] | None = None
    kind = TaskKind.INSPECT

    @property
    def is_full(self) -> bool:
        """Whether the answer has reached one of its limits."""
        return len(self.found) >= self.limit or self.found_bytes >= FOUND_BYTES_MAX

    def prepare(self) -> None:
        """Find the candidates, if only certain messages can match; runs in a thread."""
        snapshot, criteria = self.snapshot, self.criteria
        if snapshot is None:
            return
        if criteria.state in (MessageState.IN_FLIGHT, MessageState.DEFERRED):
            self.candidates = snapshot.held_in(criteria.state).message
        elif criteria.attempts is not None and not COMPARED[criteria.attempts[0]](
            np.zeros(1, np.int64), criteria.attempts[1]
        ):
            # Messages that were never delivered do not match; of finished ones it is unknown.
            self.candidates = snapshot.held.message
        elif criteria.state is MessageState.WAITING:
            # Waiting messages are ahead of the cursor, or wait for another delivery.
            lowest = snapshot.held_in(MessageState.WAITING).message[:1].tolist()
            self.position = max(self.position, min([snapshot.cursor, *lowest]))

    def begin_step(self) -> bool:
        """Choose the parts of the next step; False: done."""
        if self.is_full or self.position >= self.end:
            return False
        if self.work is None:
            if self.candidates is None:
                parts = self.inspection.parts(self.position, self.end, PARTS_MAX)
            else:
                parts = self._parts_of(self.candidates)
            if not parts:
                self.position = self.end
                return False
            self.work = self._search_parts(parts)
        return True

    def run(self) -> None:
        """Search until the step's parts are done, or for `STEP_SECONDS`."""
        assert self.work is not None
        until = self.clock() + STEP_SECONDS
        for _ in self.work:
            if self.clock() >= until:
                return
        self.work = None

    def _parts_of(self, candidates: Indexes) -> list[LogPart]:
        """The next parts that have candidates."""
        parts: list[LogPart] = []
        at = int(np.searchsorted(candidates, self.position))
        while len(parts) < PARTS_MAX and at < len(candidates) and candidates[at] < self.end:
            part = self.inspection.part(int(candidates[at]))
            if part is not None:
                parts.append(part)
            at = at + 1 if part is None else int(np.searchsorted(candidates, part.end))
        return parts

    def _search_parts(self, parts: Sequence[LogPart]) -> Iterator[None]:
        for part in parts:
            yield from self._search_part(part)
            if self.is_full:
                return
            yield

    def _search_part(self, part: LogPart) -> Iterator[None]:
        first, end = max(self.position, part.first), min(part.end, self.end)
        blocks: Sequence[Block] = part.blocks
        if not blocks:
            try:
                data = read_extent(self.inspection.disk, part.place)
            except DiskError as error:
                self.failed.append((part, error))
                self.position = end
                return
            yield
            needle = self.criteria.needle_in(data)
            if needle and not holds(data, needle):
                self.scanned += end - first
                self.scanned_bytes += len(data)
                self.position = end
                return
            yield
            blocks = [piece.block for piece in pieces_of(data, part.place)]
            yield
        for chunk in chunks(blocks, first, end):
            yield from self._search_chunk(chunk)
            if self.is_full:
                return
        read = sum(max(0, min(block.end, end) - max(block.first, first)) for block in blocks)
        self.unsearched += end - first - read
        self.position = end

    def _search_chunk(self, chunk: Block) -> Iterator[None]:
        """Search a chunk; when it stops, `position` is after the last message searched."""
        frames = bytes(chunk.frames)
        ends = [0, *chunk.ends.tolist()]
        # A pattern may take long on a single body (PATTERN_STEPS_MAX).
        step_messages = STEP_MESSAGES if self.criteria.regex is None else 1
        first, since = chunk.first, 0

        def note(end: int) -> None:
            """Note that the messages from `first` to `end` were searched."""
            self.scanned += end - first
            self.scanned_bytes += ends[end - chunk.first] - ends[first - chunk.first]
            self.position = end

        for count, index in enumerate(self._candidates(chunk, frames), 1):
            start, stop = ends[index - chunk.first], ends[index - chunk.first + 1]
            since += stop - start
            if self._matches(frames[start + FRAME_OVERHEAD : stop]):
                stored = stored_at(chunk, index, self.body_bytes)
                self.found.append(stored)
                self.found_bytes += len(stored.body)
            if self.is_full or count % step_messages == 0 or since >= STEP_BYTES:
                note(index + 1)
                if self.is_full:
                    return
                first, since = index + 1, 0
                yield
        note(chunk.end)
        yield

    def _candidates(self, chunk: Block, frames: bytes) -> Iterable[int]:
        """Return the indexes of a chunk's messages that may match by text and state."""
        snapshot, criteria = self.snapshot, self.criteria
        text = criteria.needle_in(frames)
        hits = text_hits(chunk, frames, text) if text else range(chunk.first, chunk.end)
        if snapshot is None or (criteria.state is None and criteria.attempts is None):
            return hits
        indexes = np.array([*hits], np.int64)
        chosen: list[int] = indexes[criteria.wants(snapshot.places(indexes))].tolist()
        return chosen

    def _matches(self, stored: bytes) -> bool:
        """Whether a stored body matches the JSON condition and the pattern."""
        condition, pattern = self.criteria.json, self.criteria.regex
        if condition is None and pattern is None:
            return True
        if len(stored) > json_path.PARSED_BYTES_MAX:
            self.unsearched += 1
            return False
        _, body = unseal(stored)
        if condition is not None and not condition.matches(body):
            return False
        if pattern is None:
            return True
        if pattern.programsize * len(body) > PATTERN_STEPS_MAX:
            self.unsearched += 1
            return False
        return pattern.search(body) is not None


def place_of(data: bytes, needle: bytes, start: int, end: int) -> int:
    """Return where a needle first begins within [start, end) of the data; -1: nowhere.

    Windows overlap, so that a needle is whole in one of them wherever it is.
    """
    # A search in one call kept the interpreter for 3 ms.
    for low in range(start, end, WINDOW_BYTES):
        at = data.find(needle, low, min(low + WINDOW_BYTES + len(needle) - 1, end))
        if at >= 0:
            return at
    return -1


def holds(data: bytes, needle: bytes) -> bool:
    """Whether data contains a needle."""
    # Backslashes are rare, and a search for a single character is much faster.
    is_escape = needle == json_path.ESCAPE
    start = place_of(data, needle[:1], 0, len(data)) if is_escape else 0
    return start >= 0 and place_of(data, needle, start, len(data)) >= 0


def chunks(blocks: Iterable[Block], first: int, end: int) -> Iterator[Block]:
    """Yield the messages of [first, end) in blocks of one window, or of one message."""
    for block in blocks:
        index, stop = max(first, block.first), min(end, block.end)
        while index < stop:
            start = block.start_of(index)
            fit = int(block.ends.searchsorted(start + WINDOW_BYTES, "right"))
            behind = min(max(index + 1, block.first + fit), stop)
            frames = block.slice(index, behind)
            ends = block.ends_within(index, behind)
            yield Block(index, behind - index, ends, frames, block.ordinal + index - block.first)
            index = behind


def text_hits(chunk: Block, frames: bytes, text: bytes) -> Iterator[int]:
    """Yield the indexes of a chunk's messages whose bodies contain `text`."""
    ends, at = chunk.ends, 0
    while (hit := place_of(frames, text, at, len(frames))) >= 0:
        position = int(ends.searchsorted(hit, "right"))
        index, frame_end = chunk.first + position, int(ends[position])
        body = chunk.start_of(index) + FRAME_OVERHEAD
        if hit < body:  # in a frame's head: an id or a time
            at = body
            continue
        # A hit that reaches into the next frame is none; a later one in this body would, too.
        if hit + len(text) <= frame_end:
            yield index
        at = frame_end
