"""Searches a log for messages, part by part, for as long as the caller lets it.

The event loop chooses the next parts (`next_step`). A thread searches them (`Step.run`), and asks
after each small piece of work whether it may go on. Then the next step follows, or the answer. So a
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

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sparq.inspection import json_path
from sparq.inspection.snapshot import UNKNOWN, ChannelSnapshot, MessageState
from sparq.log.block import Block, Buffer
from sparq.log.disk import DiskError
from sparq.log.inspection import LogInspection, LogPart, StoredMessage, stored_at
from sparq.log.reading import pieces_of, read_extent
from sparq.log.task import TaskKind
from sparq.protocol.dead_letters import unseal
from sparq.protocol.layout import FRAME_OVERHEAD

if TYPE_CHECKING:
    from sparq.inspection.json_path import JsonFilter


WINDOW_BYTES: Final = 64 << 10
"""Maximum bytes that one call searches: an eighth of a millisecond at worst."""


def windows(start: int, end: int, needle_size: int) -> Iterator[tuple[int, int]]:
    """Yield the windows of [start, end).

    Neighbours overlap, so that a needle of this size is whole in one of them wherever it is.
    """
    # A search in one call kept the interpreter for 3 ms.
    for low in range(start, end, WINDOW_BYTES):
        yield low, min(low + WINDOW_BYTES + max(0, needle_size - 1), end)


def place_of(data: Buffer, needle: bytes, start: int, end: int) -> int:
    """Return where a needle first begins within [start, end) of the data; -1: nowhere."""
    for low, high in windows(start, end, len(needle)):
        if isinstance(data, bytes):
            at = data.find(needle, low, high)
        else:
            # A view has no `find`; a copy of this size takes microseconds.
            at = bytes(data[low:high]).find(needle)
            at += low if at >= 0 else 0
        if at >= 0:
            return at
    return -1


Indexes = NDArray[np.int64]
Going = Callable[[], bool]
"""Called after each piece of work; False: stop here."""

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

STEP_MESSAGES: Final = 32
"""`going` is called after this many messages, ..."""

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

    def needles(self) -> list[tuple[bytes, ...]]:
        """Return groups of needles; data with a match holds at least one of each group."""
        found: list[tuple[bytes, ...]] = [(self.text,)] if self.text else []
        if self.json is not None and self.json.needle():
            found.append((self.json.needle(), json_path.ESCAPE))
        return found

    def wants(self, states: NDArray[np.uint8], attempts: Indexes) -> NDArray[np.bool_]:
        """Tell which of these states and attempts match."""
        wanted = np.ones(len(states), np.bool_)
        if self.state is not None:
            wanted &= states == self.state
        if self.attempts is not None:
            operator, number = self.attempts
            wanted &= COMPARED[operator](attempts, number) & (attempts != UNKNOWN)
        return wanted


@dataclass(eq=False)
class Search:
    """One request's search.

    Attributes:
        position: the index where it is; `end`: where it ends.
        snapshot: a snapshot of the channel, if a state or attempts are a criterion.
        limit: maximum number of matches; `body_bytes`: maximum bytes of each body.
        found: the matches, ascending.
        scanned, scanned_bytes: the number of messages searched, and the bytes of their frames.
        unsearched: the number of those that could not be searched.
        failed: parts whose file could not be read, and the error.
        candidates: the messages that may match, if only those are searched.
        work: the work that a step has left to the next one.
    """

    inspection: LogInspection
    criteria: Criteria
    position: int
    end: int
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

    @property
    def is_full(self) -> bool:
        """Whether the answer has reached one of its limits."""
        return len(self.found) >= self.limit or self.found_bytes >= FOUND_BYTES_MAX

    @property
    def is_over(self) -> bool:
        """Whether no further step is needed."""
        return self.is_full or self.position >= self.end

    def prepare(self) -> None:
        """Find the candidates, if only certain messages can match; runs in a thread."""
        snapshot, criteria = self.snapshot, self.criteria
        if snapshot is None:
            return
        flying, deferred = snapshot.in_flight.indexes, snapshot.deferred
        if criteria.state is MessageState.IN_FLIGHT:
            self.candidates = flying
        elif criteria.state is MessageState.DEFERRED:
            self.candidates = deferred.indexes
        elif criteria.attempts is not None and not criteria.wants(*_fresh()).any():
            # Fresh messages do not match, and the attempts of finished ones are unknown.
            known = np.concatenate((flying, deferred.indexes, snapshot.again[0]))
            self.candidates = np.sort(known)
        elif criteria.state is MessageState.WAITING:
            # Waiting messages are ahead of the cursor, or wait for another delivery.
            lowest = snapshot.again[0][:1].tolist()
            self.position = max(self.position, min([snapshot.cursor, *lowest]))

    def next_step(self, going: Going) -> Step | None:
        """Return the next step; None: nothing is left, the search is over."""
        if self.work is not None:
            return Step(self, self.work, going)
        if self.candidates is None:
            parts = self.inspection.parts(self.position, self.end, PARTS_MAX)
        else:
            parts = list(self._parts_of(self.candidates))
        if not parts:
            self.position = self.end
            return None
        self.work = PartSearch(self).into(parts)
        return Step(self, self.work, going)

    def _parts_of(self, candidates: Indexes) -> Iterator[LogPart]:
        at = int(np.searchsorted(candidates, self.position))
        for _ in range(PARTS_MAX):
            part = None
            while part is None:
                if at >= len(candidates) or candidates[at] >= self.end:
                    return
                part = self.inspection.part(int(candidates[at]))
                at += 1
            yield part
            at = int(np.searchsorted(candidates, part.end))


def _fresh() -> tuple[NDArray[np.uint8], Indexes]:
    """Return state and attempts of a message that was never delivered, as columns."""
    return np.array([MessageState.WAITING], np.uint8), np.zeros(1, np.int64)


@dataclass(eq=False)
class Step:
    """Work that continues a search for a while."""

    search: Search
    work: Iterator[None]
    going: Going
    kind: TaskKind = TaskKind.INSPECT
    error: DiskError | None = None

    def run(self) -> None:
        """Search until done, or until `going` returns False."""
        for _ in self.work:
            if not self.going():
                return
        self.search.work = None


class PartSearch:
    """Searches parts. Methods that return an iterator yield after each piece of work."""

    def __init__(self, search: Search) -> None:
        self.search = search

    def into(self, parts: Sequence[LogPart]) -> Iterator[None]:
        """Search these parts, until the search is full."""
        for part in parts:
            yield from self._into_part(part)
            if self.search.is_full:
                return
            yield

    def _into_part(self, part: LogPart) -> Iterator[None]:
        search = self.search
        first = max(search.position, part.first)
        end = min(part.end, search.end)
        blocks: Sequence[Block] = part.blocks
        if not part.blocks:
            try:
                data = read_extent(search.inspection.disk, part.place)
            except DiskError as error:
                search.failed.append((part, error))
                search.position = end
                return
            yield
            if not (yield from self._has_needles(data)):
                search.scanned += end - first
                search.scanned_bytes += len(data)
                search.position = end
                return
            blocks = [piece.block for piece in pieces_of(data, part.place)]
            yield
        for chunk in chunks(blocks, first, end):
            yield from self._into_chunk(chunk)
            if search.is_full:
                return
        read = sum(max(0, min(block.end, end) - max(block.first, first)) for block in blocks)
        search.unsearched += end - first - read
        search.position = end

    def _has_needles(self, data: bytes) -> Generator[None, None, bool]:
        """Whether these raw bytes may hold a matching body."""
        missing = self.search.criteria.needles()
        if not missing:
            return True
        longest = max(len(needle) for choice in missing for needle in choice)
        for low, high in windows(0, len(data), longest):
            missing = [
                choice
                for choice in missing
                if not any(_holds(data, needle, low, high) for needle in choice)
            ]
            if not missing:
                return True
            yield
        return False

    def _into_chunk(self, chunk: Block) -> Iterator[None]:
        """Search a chunk; when it stops, `position` is after the last message searched."""
        search = self.search
        ends = [0, *chunk.ends.tolist()]
        # A pattern may take long on a single body (PATTERN_STEPS_MAX).
        step_messages = STEP_MESSAGES if search.criteria.regex is None else 1
        first, since = chunk.first, 0
        for count, index in enumerate(self._candidates(chunk), 1):
            at = index - chunk.first
            since += ends[at + 1] - ends[at]
            if self._matches(chunk.frames, ends[at] + FRAME_OVERHEAD, ends[at + 1]):
                stored = stored_at(chunk, index, search.body_bytes)
                search.found.append(stored)
                search.found_bytes += len(stored.body)
            if search.is_full or count % step_messages == 0 or since >= STEP_BYTES:
                self._passed(chunk, first, index + 1)
                if search.is_full:
                    return
                first, since = index + 1, 0
                yield
        self._passed(chunk, first, chunk.end)
        yield

    def _passed(self, chunk: Block, first: int, end: int) -> None:
        """Note that [first, end) of a chunk was searched."""
        self.search.scanned += end - first
        self.search.scanned_bytes += chunk.start_of(end) - chunk.start_of(first)
        self.search.position = end

    def _candidates(self, chunk: Block) -> Iterable[int]:
        """Return the indexes of a chunk's messages that may match by text and state."""
        snapshot, criteria = self.search.snapshot, self.search.criteria
        text = criteria.text
        if not text and criteria.json is not None and criteria.json.value_needle():
            is_plain = not _holds(chunk.frames, json_path.ESCAPE, 0, len(chunk.frames))
            text = criteria.json.value_needle() if is_plain else b""
        if snapshot is None or (criteria.state is None and criteria.attempts is None):
            return text_hits(chunk, text) if text else range(chunk.first, chunk.end)
        indexes = np.arange(chunk.first, chunk.end)
        chosen: list[int] = indexes[criteria.wants(*snapshot.states(indexes))].tolist()
        if not text:
            return chosen
        hits = set(text_hits(chunk, text))
        return [index for index in chosen if index in hits]

    def _matches(self, frames: Buffer, start: int, end: int) -> bool:
        """Whether the body at [start, end) matches the JSON condition and the pattern."""
        condition, pattern = self.search.criteria.json, self.search.criteria.regex
        if condition is None and pattern is None:
            return True
        if end - start > json_path.PARSED_BYTES_MAX:
            self.search.unsearched += 1
            return False
        _, body = unseal(bytes(frames[start:end]))
        if condition is not None and not condition.matches(body):
            return False
        if pattern is None:
            return True
        if pattern.programsize * len(body) > PATTERN_STEPS_MAX:
            self.search.unsearched += 1
            return False
        return pattern.search(body) is not None


def _holds(data: Buffer, needle: bytes, start: int, end: int) -> bool:
    """Whether [start, end) of the data contains a needle."""
    if needle == json_path.ESCAPE:
        # Backslashes are rare, and a search for a single character is much faster.
        start = place_of(data, needle[:1], start, end)
    return start >= 0 and place_of(data, needle, start, end) >= 0


def chunks(blocks: Iterable[Block], first: int, end: int) -> Iterator[Block]:
    """Yield the messages of [first, end) in blocks of one window, or of one message."""
    for block in blocks:
        index, stop = max(first, block.first), min(end, block.end)
        while index < stop:
            start = block.start_of(index)
            fit = int(block.ends.searchsorted(start + WINDOW_BYTES, "right"))
            behind = min(max(index + 1, block.first + fit), stop)
            frames: Buffer = block.slice(index, behind)
            if len(frames) <= WINDOW_BYTES:
                frames = bytes(frames)  # a view would be searched byte by byte
            ends = block.ends_within(index, behind)
            yield Block(index, behind - index, ends, frames, block.ordinal + index - block.first)
            index = behind


def text_hits(chunk: Block, text: bytes) -> Iterator[int]:
    """Yield the indexes of a chunk's messages whose bodies contain `text`."""
    ends, frames = chunk.ends, chunk.frames
    at, stop = 0, len(frames)
    while (hit := place_of(frames, text, at, stop)) >= 0:
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
