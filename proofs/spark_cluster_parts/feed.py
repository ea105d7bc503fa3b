"""Publishes the clicks in the background, at a limited rate, and holds some back for later steps.

A share of the clicks is kept for after each kill. Thus every kill hits a pipeline that has work to
do, however fast it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sparq.demo.generator import Generated, generate
from sparq.pipeline.report.audit import Hashes, read_records
from sparq.pipeline.run.publishing import publish

TOPIC = "clicks"
SLICE = 5_000
"""Number of clicks published together, before the feed checks its limits."""

CLICKS_PER_SECOND = 10_000
MORE = 40
"""`release_more` releases at most one of this many parts of all clicks."""


@cache
def clicks(count: int, seed: int) -> Generated:
    """Return a generated day; a million clicks take a minute, so all runs of a proof share them."""
    return generate(count, seed)


class Feed(threading.Thread):
    """Publishes clicks until all are acknowledged.

    Args:
        lines: the clicks.
        nsqds: TCP addresses.
        folder: gets the hashes of the clicks that were acknowledged and of those sent again.
    """

    def __init__(self, lines: Sequence[bytes], nsqds: list[str], folder: Path) -> None:
        super().__init__(name="feed", daemon=True)
        self.published = 0
        self.failure: Exception | None = None
        self._lines = lines
        self._nsqds = nsqds
        self._folder = folder
        self._allowed = 0
        self._ended = False
        self._news = threading.Condition()

    def release(self, share: float) -> None:
        """Let it publish up to this share of all clicks, from 0 to 1."""
        with self._news:
            self._allowed = max(self._allowed, round(share * len(self._lines)))
            self._news.notify()

    def release_more(self) -> None:
        """Let it publish a little more, so that some is left for later steps of a small run."""
        with self._news:
            more = min(SLICE, max(1, len(self._lines) // MORE))
            self._allowed = min(self._allowed + more, len(self._lines))
            self._news.notify()

    @property
    def is_held_back(self) -> bool:
        """Return whether it has published all that it may, and has more."""
        return self._allowed <= self.published < len(self._lines)

    @property
    def is_over(self) -> bool:
        """Return whether all clicks are acknowledged."""
        return self.published == len(self._lines)

    def end(self) -> None:
        """Stop, with the clicks published so far."""
        with self._news:
            self._ended = True
            self._news.notify()

    def written_down(self) -> tuple[Hashes, Hashes]:
        """Return the records that the audit needs."""
        return read_records(self._folder)

    def run(self) -> None:
        """Run the thread."""
        try:
            while not self.is_over and self._may_go_on():
                began = time.monotonic()
                part = self._lines[self.published : min(self.published + SLICE, self._allowed)]
                asyncio.run(publish(part, self._nsqds, TOPIC, self._folder))
                self.published += len(part)
                time.sleep(max(0.0, began + len(part) / CLICKS_PER_SECOND - time.monotonic()))
        except Exception as error:  # the thread that waits for the clicks raises it
            self.failure = error

    def _may_go_on(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or self.published < self._allowed)
            return not self._ended
