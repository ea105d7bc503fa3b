"""Watches one nsqd: queries it repeatedly, keeps its last figures, and derives its state.

1. `up`: it answered the last query. `silent`: a query has been without an answer for
   `SILENT_SECONDS`, or its answer was invalid. `gone`: it refused the connection, or did not answer
   within the timeout of a call. `unregistered`: it answers, but no nsqlookupd lists it.
2. Only one query runs at a time; a late answer is used when it arrives.
3. A call that fails at once is repeated once: a keep-alive connection may just have been closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from sparq.cluster.nodes import Node
from sparq.cluster.rows import NodeStats, node_sums
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.rows import NodeState
from sparq.nsqadmin.watch.snapshot import Observed
from sparq.protocol.names import one_line

SILENT_SECONDS: Final = 1.5
RATE_SECONDS_MIN: Final = 0.9
"""Minimum time between two answers for a rate: over less time, a few messages would be a jump."""

QUICK_SECONDS: Final = 0.5
"""A call that took longer to fail is not repeated."""

Ask: TypeAlias = Callable[[Node], Awaitable[NodeStats]]


class NodeWatch:
    """The state and the last figures of one nsqd.

    Attributes:
        node: as it was last listed.
        is_listed: whether an nsqlookupd lists it, or it was configured.
        is_gone: whether the last query got no HTTP answer.
        is_dismissed: whether a user has dismissed it since then: it is not shown.
        since_at: when its current state began, seconds since 1970.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_listed = True
        self._task: asyncio.Task[None] | None = None
        self._stats: NodeStats | None = None
        self._base: NodeStats | None = None
        self._asked_at = 0.0
        self._answered_at: float | None = None
        self._error = ""
        self.is_gone = self.is_dismissed = False
        self._state: NodeState = "silent"
        self.since_at = time.time()

    @property
    def is_pending(self) -> bool:
        """Whether a query is running."""
        return self._task is not None and not self._task.done()

    @property
    def waiting(self) -> int:
        """Number of waiting messages, from the last figures."""
        return 0 if self._stats is None else int(node_sums((self._stats, None))["waiting"])

    def start(self, ask: Ask) -> asyncio.Task[None]:
        """Start a query; no other query may be running."""
        self._asked_at = time.monotonic()
        self._task = asyncio.create_task(self._query(ask))
        return self._task

    async def stop(self) -> None:
        """Cancel a running query."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _query(self, ask: Ask) -> None:
        try:
            try:
                stats = await ask(self.node)
            except UpstreamError as error:
                if error.status or time.monotonic() - self._asked_at > QUICK_SECONDS:
                    raise
                stats = await ask(self.node)
        except UpstreamError as error:
            self._error, self.is_gone = error.reason, error.status == 0
            return
        except ValueError as error:
            self._error, self.is_gone = one_line(str(error)), False
            return
        last = self._stats
        if last is not None and stats.at_seconds - last.at_seconds >= RATE_SECONDS_MIN:
            self._base = last
        self._stats, self._answered_at = stats, time.time()
        self._error, self.is_gone, self.is_dismissed = "", False, False

    def observed(self, lookupds: Sequence[str]) -> Observed:
        """The node's current state; `lookupds` are the addresses of the nsqlookupds in use."""
        is_late = self.is_pending and time.monotonic() - self._asked_at > SILENT_SECONDS
        state: NodeState = "up" if self.is_listed else "unregistered"
        if self.is_gone:
            state = "gone"
        elif self._error or is_late or self._stats is None:
            state = "silent"
        if state != self._state:
            self._state, self.since_at = state, time.time()
        return Observed(
            node=self.node,
            state=state,
            since_at=self.since_at,
            answered_at=self._answered_at,
            error=self._error,
            lookupds=tuple(at for at in lookupds if self.is_listed and self.node.is_on(at)),
            stats=self._stats,
            base=None if state == "gone" else self._base,
        )
