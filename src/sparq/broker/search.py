"""Looks for messages in a log, part by part, for as long as whoever asks lets it.

The loop says which parts come next (`next_step`), a thread looks into them (`Step.run`), and asks
after each small piece of work whether it may go on. Then the next step follows, or the answer: so a
search of millions of messages is many steps of milliseconds, and nobody waits behind it.

1. A part is searched as raw bytes first; only where something is found it is verified and taken
   apart. Where a channel's state is asked for, parts without a candidate are not even read.
2. `position` is how far the search has come: every match before it has been told. It moves with
   each step, but for one that is stopped before its first message.
3. What cannot be read, or is too large to be parsed, matches nothing and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker import json_path
from sparq.broker.picture import UNKNOWN, Picture, State
from sparq.log.disk import DiskError
from sparq.log.looking import Looking, Part, Stored, stored_at
from sparq.log.reading import pieces_of, read_extent
from sparq.log.task import TaskKind
from sparq.protocol.frames import FRAME_OVERHEAD
from sparq.protocol.patterns import Patience, TooLong

if TYPE_CHECKING:
    from sparq.broker.json_path import JsonFilter
    from sparq.log.block import Block
    from sparq.protocol.patterns import Pattern

Indexes = NDArray[np.int64]
Going = Callable[[], bool]
"""Asked after each piece of work; False: stop here."""

COMPARED: Final[dict[str, Callable[[Indexes, int], NDArray[np.bool_]]]] = {
    ">=": np.greater_equal,
    "<=": np.less_equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    "=": np.equal,
}
PARTS_MAX: Final = 16
"""Parts of one step: at most 16 MiB, or 1 MiB of what is in memory."""

FOUND_BYTES_MAX: Final = 8 << 20
"""An answer holds at most this much of bodies."""

LOOKS: Final = 32
"""After so many messages `going` is asked."""

PATTERN_STEPS_MAX: Final = 400_000
"""So much a pattern may cost with one body, about a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a message must have; what is not given is not asked for.

    Attributes:
        text: bytes of its body.
        json: a condition on its body.
        regex: a pattern that matches somewhere in its body.
        attempts: an operator of `COMPARED`, and a number.
        state: where it is on the channel.
    """

    text: bytes = b""
    json: JsonFilter | None = None
    regex: Pattern | None = None
    attempts: tuple[str, int] | None = None
    state: State | None = None

    def has_needle(self, data: bytes) -> bool:
        """Whether these raw bytes may hold a body that matches."""
        if self.text not in data:
            return False
        condition = self.json
        return condition is None or condition.needle() in data or json_path.ESCAPE in data

    def wants(self, states: NDArray[np.uint8], attempts: Indexes) -> NDArray[np.bool_]:
        """Which of these states and attempts match."""
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
        position: where it is; `end`: where it ends.
        picture: the channel, where a state or attempts are asked for.
        limit: how many messages are wanted; `body_bytes`: how much of each body.
        found: the matches, ascending.
        scanned, scanned_bytes: messages that were looked at, and the bytes of their frames.
        unsearched: those of them that could not be looked into.
        failed: parts whose file could not be read, and why.
    """

    looking: Looking
    criteria: Criteria
    position: int
    end: int
    picture: Picture | None = None
    limit: int = 50
    body_bytes: int = 65_536
    found: list[Stored] = field(default_factory=list)
    found_bytes: int = 0
    scanned: int = 0
    scanned_bytes: int = 0
    unsearched: int = 0
    failed: list[tuple[Part, DiskError]] = field(default_factory=list)
    candidates: Indexes | None = None

    @property
    def is_full(self) -> bool:
        """Whether the answer has all that it may."""
        return len(self.found) >= self.limit or self.found_bytes >= FOUND_BYTES_MAX

    @property
    def is_over(self) -> bool:
        """Whether no step is needed any more."""
        return self.is_full or self.position >= self.end

    def prepare(self) -> None:
        """Find the candidates, where only messages known one by one may match; in a thread."""
        picture, criteria = self.picture, self.criteria
        if picture is None:
            return
        flying, deferred = picture.in_flight.indexes, picture.deferred
        if criteria.state is State.IN_FLIGHT:
            self.candidates = flying
        elif criteria.state is State.DEFERRED:
            self.candidates = deferred.indexes
        elif criteria.attempts is not None and not criteria.wants(*_fresh()).any():
            known = np.concatenate((flying, deferred.indexes, picture.again[0]))
            self.candidates = np.sort(known)
        elif criteria.state is State.WAITING:
            lowest = picture.again[0][:1].tolist()
            self.position = max(self.position, min([picture.cursor, *lowest]))

    def next_step(self, going: Going) -> Step | None:
        """What comes next; None: nothing is left, the search is over."""
        if self.candidates is None:
            parts = self.looking.parts(self.position, self.end, PARTS_MAX)
        else:
            parts = list(self._parts_of(self.candidates))
        if not parts:
            self.position = self.end
            return None
        return Step(self, parts, going)

    def _parts_of(self, candidates: Indexes) -> Iterator[Part]:
        at = int(np.searchsorted(candidates, self.position))
        for _ in range(PARTS_MAX):
            part = None
            while part is None:
                if at >= len(candidates) or candidates[at] >= self.end:
                    return
                part = self.looking.part(int(candidates[at]))
                at += 1
            yield part
            at = int(np.searchsorted(candidates, part.end))


def _fresh() -> tuple[NDArray[np.uint8], Indexes]:
    """A message that nobody had yet, as columns."""
    return np.array([State.WAITING], np.uint8), np.zeros(1, np.int64)


@dataclass(eq=False)
class Step:
    """Work: looks into some parts."""

    search: Search
    parts: list[Part]
    going: Going
    kind: TaskKind = TaskKind.INSPECT
    error: DiskError | None = None

    def run(self) -> None:
        """Look, until told to stop."""
        for part in self.parts:
            if not self._look(part) or not self.going():
                return

    def _look(self, part: Part) -> bool:
        """Look into a part; False: stop, `position` is within it or at its end."""
        search = self.search
        first = max(search.position, part.first)
        end = min(part.end, search.end)
        blocks: Iterable[Block] = part.blocks
        if not part.blocks:
            try:
                data = read_extent(search.looking.disk, part.place)
            except DiskError as error:
                search.failed.append((part, error))
                search.position = end
                return True
            if not search.criteria.has_needle(data):
                search.scanned += end - first
                search.scanned_bytes += len(data)
                search.position = end
                return True
            blocks = [piece.block for piece in pieces_of(data, part.place)]
        for block in blocks:
            if block.end > search.position and not self._look_into(block):
                return False
        read = sum(max(0, min(block.end, end) - max(block.first, first)) for block in blocks)
        search.unsearched += end - first - read
        search.position = end
        return not search.is_full

    def _look_into(self, block: Block) -> bool:
        """Look into a block; False: stop, `position` is behind the last message looked at."""
        search = self.search
        first = max(search.position, block.first)
        end = min(block.end, search.end)
        # A view would be searched byte by byte.
        frames = block.frames if isinstance(block.frames, bytes) else bytes(block.frames)
        ends = [0, *block.ends.tolist()]
        went_on, position = True, end
        looks = LOOKS if search.criteria.regex is None else 1
        for count, index in enumerate(self._candidates(block, frames, first, end), 1):
            at = index - block.first
            if self._matches(frames, ends[at] + FRAME_OVERHEAD, ends[at + 1]):
                stored = stored_at(block, index, search.body_bytes)
                search.found.append(stored)
                search.found_bytes += len(stored.body)
            if search.is_full or (count % looks == 0 and not self.going()):
                position, went_on = index + 1, False
                break
        search.scanned += position - first
        search.scanned_bytes += ends[position - block.first] - ends[first - block.first]
        search.position = position
        return went_on

    def _candidates(self, block: Block, frames: bytes, first: int, end: int) -> Iterable[int]:
        """The indexes in [first, end) that may match by text and state."""
        picture, criteria = self.search.picture, self.search.criteria
        text = criteria.text
        if not text and criteria.json is not None and json_path.ESCAPE not in frames:
            text = criteria.json.value_needle()
        if picture is None or (criteria.state is None and criteria.attempts is None):
            return text_hits(block, frames, first, end, text) if text else range(first, end)
        indexes = np.arange(first, end)
        chosen: list[int] = indexes[criteria.wants(*picture.states(indexes))].tolist()
        if not text:
            return chosen
        hits = set(text_hits(block, frames, first, end, text))
        return [index for index in chosen if index in hits]

    def _matches(self, frames: bytes, start: int, end: int) -> bool:
        """Whether the body at [start, end) is as JSON and pattern want it."""
        condition, pattern = self.search.criteria.json, self.search.criteria.regex
        if condition is None and pattern is None:
            return True
        if end - start > json_path.BODY_BYTES_MAX:
            self.search.unsearched += 1
            return False
        body = frames[start:end]
        if condition is not None and not condition.matches(body):
            return False
        return pattern is None or self._is_like(pattern, body)

    def _is_like(self, pattern: Pattern, body: bytes) -> bool:
        """Whether a pattern, which is about ASCII, matches somewhere."""
        try:
            return pattern.search(body.decode("latin-1"), Patience(PATTERN_STEPS_MAX))
        except TooLong:
            self.search.unsearched += 1
            return False


def text_hits(block: Block, frames: bytes, first: int, end: int, text: bytes) -> Iterator[int]:
    """The messages of [first, end) whose bodies contain some bytes; `frames` are the block's."""
    ends = block.ends
    at, stop = block.start_of(first), block.start_of(end)
    while (hit := frames.find(text, at, stop)) >= 0:
        position = int(ends.searchsorted(hit, "right"))
        index, frame_end = block.first + position, int(ends[position])
        body = block.start_of(index) + FRAME_OVERHEAD
        if hit < body:  # in what stands before a body: an id, a time
            at = body
            continue
        if hit + len(text) <= frame_end:
            yield index
        at = frame_end
