"""Syncs the files of topics whose commits have shared a sync, so that old journals can go.

1. It begins when a journal has ended: it was followed by the next, or has failed. All commits that
   went to it have been taken over by then, since they are in the order in which they ran.
2. A few files at a time, each in the thread that commits: no publish waits behind more than those.
3. A topic with a commit in flight syncs its file with the next one. Whose file cannot be synced is
   tried again; until all are done their journal stays, and no third one is begun.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sparq.broker.options import MILLISECOND_NS, NEVER
from sparq.broker.topic import Topic
from sparq.broker.turn import Turn
from sparq.log.journal import Cleaning, Journal
from sparq.protocol.instant import Instant

AT_A_TIME: Final = 8
"""Files whose sync is under way."""
RETRY_NS: Final = 50 * MILLISECOND_NS


class Synced(NamedTuple):
    """What goes on when a topic's file was synced."""

    checkpoints: Checkpoints
    topic: Topic

    def finish(self, turn: Turn, now: Instant) -> None:
        """The next file's turn."""
        self.checkpoints.synced(self.topic, turn, now)


class Checkpoints:
    """The checkpoints of one broker's journal.

    Attributes:
        ended: no commit goes to the journals up to this number any more.
        due_ns: when (mono ns) those are tried again that could not be done; NEVER: there are none.
    """

    def __init__(self, journal: Journal, topics: dict[str, Topic]) -> None:
        self.ended = 0
        self.due_ns = NEVER
        self._journal = journal
        self._topics = topics
        self._limit = 0
        self._waiting: list[Topic] = []
        self._again: list[Topic] = []
        self._under_way = 0

    def begin(self, ended: int, turn: Turn, now: Instant) -> None:
        """The journals up to this number are to go."""
        self.ended = ended
        if self._limit or ended <= self._journal.cleaned:
            return
        self._limit = ended
        self._waiting = [topic for topic in self._topics.values() if self._concerns(topic)]
        self._go_on(turn, now)

    def on_time(self, turn: Turn, now: Instant) -> None:
        """Try those again that could not be done."""
        self.due_ns = NEVER
        self._waiting, self._again = self._again, []
        self._go_on(turn, now)

    def is_clean(self) -> bool:
        """Whether what any journal holds is in synced files, too."""
        return not any(topic.stream.log.unsynced.journal for topic in self._topics.values())

    def _concerns(self, topic: Topic) -> bool:
        return not topic.is_closed and 0 < topic.stream.log.unsynced.journal <= self._limit

    def _go_on(self, turn: Turn, now: Instant) -> None:
        while self._waiting and self._under_way < AT_A_TIME:
            topic = self._waiting.pop()
            if not self._concerns(topic):
                continue
            commit = topic.stream.log.sync_task()
            if commit is None:
                self._again.append(topic)
                continue
            self._under_way += 1
            turn.submit(commit, topic, Synced(self, topic))
        if self._under_way or self._waiting:
            return
        if self._again:
            self.due_ns = now.mono_ns + RETRY_NS
            return
        cleaning = Cleaning(self._journal, self._limit)
        self._limit = 0
        turn.submit(cleaning, None, self)

    def synced(self, topic: Topic, turn: Turn, now: Instant) -> None:
        """A topic's file was synced, or could not be."""
        self._under_way -= 1
        if self._concerns(topic):
            self._again.append(topic)
        self._go_on(turn, now)

    def finish(self, turn: Turn, now: Instant) -> None:
        """The journals are deleted; others may have ended meanwhile."""
        self.begin(self.ended, turn, now)
