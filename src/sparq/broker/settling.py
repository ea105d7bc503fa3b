"""What an administrator has decided of a topic, until it is done: then only he is answered.

1. A decision is done when the ledger that says it is synced, and the files that it has freed are
   deleted. What cannot be written is tried again with every turn; meanwhile `reason` says why.
2. Files are freed though the disk has no space for the ledger: see `Trimming`, 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from sparq.log.log import SegmentInfo
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.topic import Topic
    from sparq.log.disk import DiskError

UNDER_WAY: Final = "not on disk yet"


class Settling:
    """The decisions on one topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._waiting = 0
        self._refusal = UNDER_WAY

    @property
    def reason(self) -> str | None:
        """Why not all is done; None: it is."""
        if self._waiting:
            return self._refusal
        return UNDER_WAY if self._topic.trimming.under_way else None

    def begin(self, now: Instant, *, frees: bool) -> None:
        """Have what is noted synced; `frees`: and what nobody needs any more deleted."""
        topic = self._topic
        finished = topic.trimming.finished(now, ends_file=True) if frees else []
        if topic.books is None:
            topic.trimming.drop(finished)
            return
        self._waiting += 1
        topic.books.when_synced(partial(self._synced, finished))

    def _synced(self, finished: Sequence[SegmentInfo], error: DiskError | None) -> None:
        self._waiting -= 1
        self._refusal = UNDER_WAY if error is None else error.reason
        topic = self._topic
        if topic.is_closed:
            return
        if finished and (error is None or error.is_full):
            topic.trimming.drop(finished)
        if error is not None and topic.books is not None:
            self._waiting += 1
            topic.books.when_synced(partial(self._synced, []))
