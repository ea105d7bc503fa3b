"""Redrives all dead letters that wait in a channel to their original channels, nsqd by nsqd.

1. Only dead letters that wait at the start are redriven: a message that fails again meanwhile
   becomes a new letter and is not redriven in a loop.
2. Dead letters that an nsqd refuses stay, are counted by reason, and are skipped.
3. A rate limits how many are redriven per second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from sparq.cluster.actions import IDS_MAX
from sparq.cluster.figures import SelectionResult, checked
from sparq.cluster.fleet import Fleet, Node
from sparq.cluster.upstream import UpstreamError

STEP: Final = "/message/redrive"
ROUNDS_A_SECOND: Final = 10
"""Maximum requests per second to an nsqd when there is a rate: spreads the letters evenly."""


@dataclass(slots=True)
class RedriveProgress:
    """The progress at one nsqd.

    Attributes:
        total: number of dead letters to redrive.
        done: number redriven so far.
        refused: number refused, by reason.
        error: why the run ended early; "": no error.
    """

    total: int
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    error: str = ""

    @property
    def left(self) -> int:
        """Number of letters not processed yet."""
        return max(0, self.total - self.done - self.refused.total())


async def redrive(
    fleet: Fleet, node: Node, query: dict[str, str], total: int, rate: float
) -> AsyncIterator[RedriveProgress]:
    """Redrive the dead letters that wait at one nsqd; yields the progress after each request.

    Args:
        fleet: the cluster.
        node: the nsqd.
        query: topic and channel, and optionally `to_all`.
        total: maximum number of letters.
        rate: letters per second; 0: no limit.
    """
    progress = RedriveProgress(total)
    began, after = time.monotonic(), None
    most = IDS_MAX if not rate else min(IDS_MAX, max(1, int(rate / ROUNDS_A_SECOND)))
    while progress.left:
        some = {"count": str(min(most, progress.left))} | ({"after": after} if after else {})
        try:
            answer = await fleet.post(node, STEP, b"", **query, **some)
            told = checked(answer or {}, SelectionResult)
        except (UpstreamError, ValueError) as error:
            progress.error = getattr(error, "reason", str(error))
            yield progress
            return
        progress.done += len(told.done)
        progress.refused.update(one.why for one in told.refused)
        # An nsqd that names a next place without any letter would be asked forever.
        after = told.next if told.done or told.refused else None
        yield progress
        if after is None:
            return
        if rate:
            processed = progress.done + progress.refused.total()
            # Counted from the start: a fixed pause after each request would add to the time that
            # the request takes, and the rate would not be reached.
            await asyncio.sleep(max(0.0, began + processed / rate - time.monotonic()))
