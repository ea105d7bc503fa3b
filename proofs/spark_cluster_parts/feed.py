"""The clicks, published in the background, at a pace, and held back for what is still to happen.

A share of the clicks is kept for after each kill. So all kills meet a pipeline that has work to do,
however fast it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sparq.demo.generator import Generated, generate
from sparq.pipeline.audit import PublisherRecords
from sparq.pipeline.publisher import publish, read_hashes

TOPIC = "clicks"
SLICE = 5_000
"""Clicks that are published at a time: they go out together, then the feed looks up."""

CLICKS_PER_SECOND = 10_000


@cache
def clicks(count: int, seed: int) -> Generated:
    """A generated day; it takes a minute for a million, so all runs of a proof share it."""
    return generate(count, seed)


class Feed(threading.Thread):
    """Publishes clicks until all are acknowledged.

    Args:
        lines: the clicks.
        nsqds: TCP addresses.
        folder: gets the hashes of what was acknowledged and of what was sent again.
    """

    def __init__(self, lines: Sequence[bytes], nsqds: list[str], folder: Path) -> None:
        super().__init__(name="feed", daemon=True)
        self.published = 0
        self.failure: Exception | None = None
        self._lines = lines
        self._nsqds = nsqds
        self._files = folder / "acknowledged", folder / "resent"
        self._allowed = 0
        self._ended = False
        self._news = threading.Condition()

    def release(self, share: float) -> None:
        """Let it publish up to this share of all clicks, from 0 to 1."""
        with self._news:
            self._allowed = max(self._allowed, round(share * len(self._lines)))
            self._news.notify()

    def release_more(self) -> None:
        """Let it publish one slice more."""
        with self._news:
            self._allowed = min(self._allowed + SLICE, len(self._lines))
            self._news.notify()

    @property
    def is_held_back(self) -> bool:
        """Whether it has published all that it may, and has more."""
        return self._allowed <= self.published < len(self._lines)

    @property
    def is_over(self) -> bool:
        """Whether all clicks are acknowledged."""
        return self.published == len(self._lines)

    def end(self) -> None:
        """Stop, with whatever is published by now."""
        with self._news:
            self._ended = True
            self._news.notify()

    def written_down(self) -> PublisherRecords:
        """What the audit asks for."""
        acknowledged, resent = self._files
        return PublisherRecords(read_hashes(acknowledged), read_hashes(resent))

    def run(self) -> None:
        """The thread."""
        try:
            while not self.is_over and self._may_go_on():
                began = time.monotonic()
                part = self._lines[self.published : min(self.published + SLICE, self._allowed)]
                asyncio.run(self._publish(part))
                self.published += len(part)
                time.sleep(max(0.0, began + len(part) / CLICKS_PER_SECOND - time.monotonic()))
        except Exception as error:  # whoever waits for the clicks raises it
            self.failure = error

    async def _publish(self, part: Sequence[bytes]) -> None:
        acknowledged, resent = self._files
        await publish(part, self._nsqds, TOPIC, acknowledged=acknowledged, resent=resent)

    def _may_go_on(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or self.published < self._allowed)
            return not self._ended
