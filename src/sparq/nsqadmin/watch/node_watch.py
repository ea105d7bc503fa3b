"""One nsqd over time: asked again and again, its last figures, and what state it is in.

1. `up`: it answered the last question. `silent`: a question has had no answer for `SILENT_SECONDS`,
   or an answer that is none. `gone`: it refuses, or did not answer in the time that a call has.
   `unregistered`: it answers, but no nsqlookupd lists it.
2. One question is under way at a time; a slow answer is taken when it comes.
3. A call that fails at once is made a second time: a kept connection may have ended just then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from sparq.client.reasons import one_line
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.look import Counters, Look, counters
from sparq.nsqadmin.watch.picture import Observed
from sparq.nsqadmin.watch.rows import NodeState

SILENT_SECONDS: Final = 1.5
RATE_SECONDS_MIN: Final = 0.9
"""Looks that are closer together make no rate: a few messages more would be a jump."""

QUICK_SECONDS: Final = 0.5
"""A failure that took longer is not repeated at once."""

Ask: TypeAlias = Callable[[Node], Awaitable[Look]]


class NodeWatch:
    """What is known of one nsqd.

    Attributes:
        node: as it was listed the last time.
        is_listed: whether an nsqlookupd lists it, or it was configured.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_listed = True
        self._task: asyncio.Task[None] | None = None
        self._look: Look | None = None
        self._base: Counters | None = None
        self._asked_at = 0.0
        self._answered_at: float | None = None
        self._error = ""
        self._is_gone = False
        self._state: NodeState = "silent"
        self._since_at = time.time()

    @property
    def is_pending(self) -> bool:
        """Whether a question is under way."""
        return self._task is not None and not self._task.done()

    @property
    def is_gone(self) -> bool:
        """Whether the last question found nobody there."""
        return self._is_gone

    @property
    def waiting(self) -> int:
        """Messages that wait there, as far as is known."""
        return 0 if self._look is None else int(self._look.column("depth").sum())

    @property
    def since_at(self) -> float:
        """Since when it is in its state, seconds since 1970."""
        return self._since_at

    def start(self, ask: Ask) -> asyncio.Task[None]:
        """Ask; no question may be under way."""
        self._asked_at = time.monotonic()
        self._task = asyncio.create_task(self._question(ask))
        return self._task

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _question(self, ask: Ask) -> None:
        try:
            look = await self._asked_twice(ask)
        except UpstreamError as error:
            self._error, self._is_gone = error.reason, error.status == 0
        except ValueError as error:
            self._error, self._is_gone = one_line(str(error)), False
        else:
            self._answered(look)

    async def _asked_twice(self, ask: Ask) -> Look:
        try:
            return await ask(self.node)
        except UpstreamError as error:
            if error.status or time.monotonic() - self._asked_at > QUICK_SECONDS:
                raise
        return await ask(self.node)

    def _answered(self, look: Look) -> None:
        last = self._look
        if last is not None and look.at_seconds - last.at_seconds >= RATE_SECONDS_MIN:
            self._base = counters(last)
        self._look, self._answered_at = look, time.time()
        self._error, self._is_gone = "", False

    def observed(self, lookupds: Sequence[str]) -> Observed:
        """It as it is now; `lookupds` are the nsqlookupds that are asked."""
        state = self._state_now()
        if state != self._state:
            self._state, self._since_at = state, time.time()
        heard = (self.node.remote_addresses or ()) if self.is_listed else ()
        return Observed(
            node=self.node,
            state=state,
            since_at=self._since_at,
            answered_at=self._answered_at,
            error=self._error,
            lookupds=_listing(lookupds, heard),
            look=self._look,
            base=None if state == "gone" else self._base,
        )

    def _state_now(self) -> NodeState:
        if self._is_gone:
            return "gone"
        is_late = self.is_pending and time.monotonic() - self._asked_at > SILENT_SECONDS
        if self._error or is_late or self._look is None:
            return "silent"
        return "up" if self.is_listed else "unregistered"


def _listing(lookupds: Sequence[str], heard: Sequence[str]) -> tuple[str, ...]:
    """The nsqlookupds that have listed a node as `nsqlookupd/peer`."""
    return tuple(at for at in lookupds if any(each.startswith(f"{at}/") for each in heard))
