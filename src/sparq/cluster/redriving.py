"""All dead letters that wait in a channel go back to where they came from, nsqd by nsqd.

1. Those are sent back that wait when it begins: a letter that fails again meanwhile, and is a new
   letter, is not sent back in circles.
2. What an nsqd refuses stays, is counted by its reason, and is passed over.
3. With a rate, as many are sent back in each second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster.actions import IDS_MAX
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError

STEP: Final = "/message/redrive"
ROUNDS_A_SECOND: Final = 10
"""So often at most is an nsqd asked where there is a rate: its letters go evenly."""


@dataclass(slots=True)
class Progress:
    """How far it has come at one nsqd.

    Attributes:
        total: letters that waited, as far as they are to be sent back.
        done: letters that were sent back.
        refused: how many were not, by the reason.
        error: why it has ended early; "": it has not.
    """

    total: int
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    error: str = ""

    @property
    def left(self) -> int:
        """Letters that were not looked at."""
        return max(0, self.total - self.done - self.refused.total())


async def redrive(
    fleet: Fleet, node: Node, query: dict[str, str], total: int, rate: float
) -> AsyncIterator[Progress]:
    """Send back what waits at one nsqd; yields after each step.

    Args:
        fleet: the cluster.
        node: where.
        query: topic and channel, and `to_all`.
        total: how many at most.
        rate: letters a second; 0: no limit.
    """
    progress = Progress(total)
    began, after = time.monotonic(), None
    most = IDS_MAX if not rate else min(IDS_MAX, max(1, int(rate / ROUNDS_A_SECOND)))
    while progress.left:
        some = {"count": str(min(most, progress.left))} | ({"after": after} if after else {})
        try:
            answer = await fleet.post(node, STEP, b"", **query, **some)
        except UpstreamError as error:
            progress.error = error.reason
            yield progress
            return
        after = _take(progress, answer)
        yield progress
        if after is None:
            return
        if rate:
            looked_at = progress.done + progress.refused.total()
            await asyncio.sleep(max(0.0, began + looked_at / rate - time.monotonic()))


def _take(progress: Progress, answer: Any) -> str | None:
    """Count what an answer tells; where the next step begins, None: nothing more waits."""
    told = answer if isinstance(answer, dict) else {}
    done = [one for one in told.get("done") or () if isinstance(one, str)]
    refused = [one for one in told.get("refused") or () if isinstance(one, dict)]
    progress.done += len(done)
    progress.refused.update(str(one.get("why", ""))[:200] for one in refused)
    following = told.get("next")
    return following if isinstance(following, str) and (done or refused) else None
