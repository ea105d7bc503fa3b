"""Queries the cluster in rounds, once for all viewers, and derives the state of each nsqd.

1. A round asks nsqlookupds for the nodes, and every node for its `/stats`, without clients. While
   there are viewers, a round runs every second, so that a publish shows within two seconds. If a
   node would have to write more than `BYTES_A_SECOND` for that, rounds are less frequent, down to
   one every two seconds. Without viewers there is one every 10 seconds, for the history. The number
   of viewers makes no difference.
2. A round ends after `ROUND_SECONDS`, or when no node has answered for `QUIET_SECONDS`. A node that
   has not answered by then keeps its last figures, and its answer counts in a later round. A node
   that was killed refuses connections at once, so the next round reports it.
3. Answers are parsed one after the other on a separate thread. `ANSWERS_AT_ONCE` answers are
   fetched at a time, so that those of 20 large nodes are not in memory together; a query that has
   waited `SLOT_SECONDS` for its turn no longer waits.
4. If there is much to parse, rounds are less frequent: parsing takes at most a third of a core.
5. `up`: it answered the last query. `silent`: a query has been without an answer for
   `SILENT_SECONDS`, or its answer was invalid. `gone`: it refused the connection, or did not answer
   within the timeout of a call. `unregistered`: it answers, but no nsqlookupd lists it.
6. Only one query of a node runs at a time; a late answer is used when it arrives.
7. A call that fails at once is repeated once: a keep-alive connection may just have been closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self, TypeAlias, TypeVar

from sparq.cluster.figures import read
from sparq.cluster.fleet import FIGURES, Fleet, Gathered, Node, given_node
from sparq.cluster.rows import NodeStats
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.detail import Detail, Details, SharedAnswer
from sparq.nsqadmin.watch.rows import ClientGroup, Lookupd, NodeState
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot, Observed, SnapshotBuilder
from sparq.protocol.names import one_line

INTERVAL_SECONDS: Final = 1.0
LARGE_SECONDS: Final = 2.0
BYTES_A_SECOND: Final = 512 << 10
"""Limit on what one nsqd writes for this: some 1,000 channels, which cost it 1/20 of a core."""

IDLE_SECONDS: Final = 10.0
VIEW_SECONDS: Final = 10.0
"""How long a viewer counts as present after its last request."""

ROUND_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 0.5
"""A node that hangs delays the figures of the others by at most this."""

LOOKUP_SECONDS: Final = 0.3
"""How long a round waits for nsqlookupds before it queries the nodes that are known already."""

CURRENT_SECONDS: Final = 0.5
"""How long a new viewer waits for newer figures than those of the last idle round."""

FIRST_SECONDS: Final = 5.0
ANSWERS_AT_ONCE: Final = 3
SLOT_SECONDS: Final = 0.5
SHARE: Final = 3.0
MIN_PAUSE_SECONDS: Final = 0.1
GONE_SECONDS: Final = 3600.0
"""A node that is gone, not listed and without waiting messages is forgotten after this time."""

GONE_MAX: Final = 100
CONFIGURED_SECONDS: Final = 10.0
"""How often configured nodes are asked for their names, which takes two more queries each."""

NAMES_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 1.5
RATE_SECONDS_MIN: Final = 0.9
"""Minimum time between two answers for a rate: over less time, a few messages would be a jump."""

QUICK_SECONDS: Final = 0.5
"""A call that took longer to fail is not repeated."""

T = TypeVar("T")

Ask: TypeAlias = Callable[[Node], Awaitable[NodeStats]]

logger = logging.getLogger(__name__)


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
        return 0 if self._stats is None else int(self._stats.sums()["waiting"])

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


class ClusterWatch:
    """Watches a cluster from `__aenter__` to `__aexit__`.

    Args:
        fleet: the cluster.
        interval_seconds: time between rounds while there are viewers.
        idle_seconds: time between rounds otherwise.

    Attributes:
        rounds: number of rounds so far.
        snapshot: the latest snapshot; None before the first round.
        history: the last hour.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.rounds = 0
        self.snapshot: ClusterSnapshot | None = None
        self._fleet = fleet
        self._interval = interval_seconds
        self._idle = idle_seconds
        self._builder = SnapshotBuilder()
        self.history = self._builder.history
        self._slots = asyncio.Semaphore(ANSWERS_AT_ONCE)
        self._nodes: dict[str, NodeWatch] = {}
        self._listing = SharedAnswer[Gathered[list[Node]]]()
        self._gathered: Gathered[list[Node]] = Gathered([])
        self._is_new = asyncio.Condition()
        self._viewed_at = -VIEW_SECONDS
        self._wake = asyncio.Event()
        self._details = Details(fleet)
        self._is_round = False
        self._topics = SharedAnswer[Gathered[list[str]]]()
        self._busy_seconds = 0.0
        self._largest_bytes = 0

    async def __aenter__(self) -> Self:
        """Start the rounds."""
        # One thread: parsing and building both change the builder's names, which therefore need no
        # lock, and two threads would only share one interpreter.
        self._reader = ThreadPoolExecutor(1, "sparq-watch")
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the rounds, and cancel running queries."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._listing.close()
        await self._topics.close()
        await asyncio.gather(*(node.stop() for node in self._nodes.values()))
        await self._details.close()
        self._reader.shutdown()

    # For viewers

    async def current(self) -> ClusterSnapshot:
        """Get a snapshot at most about `interval_seconds` old, if a round makes one soon enough."""
        self._view()
        last = self.snapshot
        if last is not None and time.time() - last.time <= self._interval + ROUND_SECONDS:
            return last
        seconds = FIRST_SECONDS if last is None else CURRENT_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.changed(0 if last is None else last.number)
        return self.snapshot or SnapshotBuilder().build([], time=time.time(), now=time.monotonic())

    async def changed(self, after: int) -> ClusterSnapshot:
        """Wait for the first snapshot with a larger number than `after`."""
        self._view()
        async with self._is_new:
            while self.snapshot is None or self.snapshot.number <= after:
                await self._is_new.wait()
                # A stream waits here between two snapshots and sends no requests: it still counts
                # as a viewer.
                self._viewed_at = time.monotonic()
            return self.snapshot

    async def fresh(self) -> ClusterSnapshot:
        """Wait for a snapshot of a round that starts now: after an action, it shows the result."""
        number = self.snapshot.number if self.snapshot else 0
        # A round that is under way may have asked a node before the action. Its snapshot does not
        # count.
        under_way = self._is_round
        self._view(at_once=True)
        return await self.changed(number + 1 if under_way else number)

    async def refresh(self, seconds: float) -> None:
        """Wait for `fresh` figures, but not longer than this: a node may hang."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.fresh()

    async def detail(self, topic: str, channel: str = "") -> Detail:
        """Get a topic or channel with its latencies and clients, fetched once for all viewers."""
        return await self._details.detail(await self.current(), topic, channel)

    async def clients(self) -> tuple[ClientGroup, ...]:
        """Get all consumers of the cluster, fetched at most every `CLIENTS_SECONDS`."""
        return await self._details.clients(await self.current())

    async def unplaced(self) -> list[str]:
        """List the topics that nsqlookupds know and no nsqd has, at most `NAMES_SECONDS` old."""
        names = await self._topics.get(self._fleet.topics, NAMES_SECONDS)
        have = self.snapshot.topics if self.snapshot is not None else None
        return [name for name in names.value if have is None or have.find(name) is None]

    def dismiss(self, address: str) -> bool:
        """Dismiss a node that is gone; returns False if there is no such node or it is not gone.

        It is shown again when it answers.
        """
        found = self._nodes.get(address)
        if found is None or not found.is_gone:
            return False
        # Kept while it is listed: the next answer of an nsqlookupd would bring it back as new.
        found.is_dismissed = True
        if not found.is_listed:
            del self._nodes[address]
        self._view(at_once=True)
        return True

    def _view(self, at_once: bool = False) -> None:
        now = time.monotonic()
        is_first = now - self._viewed_at >= VIEW_SECONDS
        self._viewed_at = now
        if is_first or at_once:
            self._wake.set()

    # Rounds

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            # Cleared before the round, not after it: a wake-up during the round starts the next one
            # at once.
            self._wake.clear()
            self._busy_seconds = 0.0
            self._largest_bytes = 0
            self._is_round = True
            try:
                await self._round()
            except Exception:  # a failure of one round must not stop the next ones
                logger.exception("a round of fetching figures failed")
            self._is_round = False
            now = time.monotonic()
            is_viewed = now - self._viewed_at < VIEW_SECONDS
            every = self._interval if is_viewed else self._idle
            every = max(every, min(LARGE_SECONDS, self._largest_bytes / BYTES_A_SECOND))
            pause = max(every, SHARE * self._busy_seconds) - (now - began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(MIN_PAUSE_SECONDS, pause)):
                    await self._wake.wait()

    async def _round(self) -> None:
        until = time.monotonic() + ROUND_SECONDS
        await self._learn()
        requests = []
        for node in self._nodes.values():
            # A node with a pending query is slow already. One that is gone and not listed is not
            # asked, because it registers when it comes back.
            if node.is_pending or (node.is_gone and not node.is_listed):
                continue
            if not node.is_listed:
                # The latest answer, which does not list this node, has replaced the addresses that
                # may be called.
                self._fleet.upstream.add_listed(self._fleet.trusted([node.node]))
            requests.append(node.start(self._ask))
        await _answered(requests, until)
        self._forget_old()
        await self._publish()

    async def _ask(self, node: Node) -> NodeStats:
        has_slot = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SLOT_SECONDS):
                has_slot = await self._slots.acquire()
        try:
            asked_at = time.monotonic()
            answer = await self._fleet.upstream.read(node.at, "/stats", **FIGURES)
            self._largest_bytes = max(self._largest_bytes, len(answer))
            return await self._in_thread(lambda: NodeStats(read(answer), asked_at))
        finally:
            if has_slot:
                self._slots.release()

    async def _in_thread(self, do: Callable[[], T]) -> T:
        """Run a function on the reader thread, and count its time."""

        def timed() -> tuple[T, float]:
            began = time.monotonic()
            return do(), time.monotonic() - began

        found, took = await asyncio.get_running_loop().run_in_executor(self._reader, timed)
        self._busy_seconds += took
        return found

    async def _publish(self) -> None:
        lookupds = self._fleet.lookupds
        shown = (node for node in self._nodes.values() if not node.is_dismissed)
        observed = [node.observed(lookupds) for node in shown]
        observed.sort(key=lambda seen: (seen.node.hostname, seen.node.address))
        errors, nodes = self._gathered.errors, self._gathered.value
        listed = tuple(
            Lookupd(at, errors.get(at, ""), tuple(sorted(n.address for n in nodes if n.is_on(at))))
            for at in lookupds
        )
        # A node registered at a forbidden address is reported under its own address.
        refused = {at: why for at, why in errors.items() if lookupds and at not in lookupds}
        snapshot = await self._in_thread(
            lambda: self._builder.build(
                observed, listed, refused, time=time.time(), now=time.monotonic()
            )
        )
        async with self._is_new:
            self.snapshot = snapshot
            self.rounds += 1
            self._is_new.notify_all()

    # Nodes

    async def _learn(self) -> None:
        """Ask for the nodes; an answer that is not there soon is used in a later round."""
        every = 0.0 if self._fleet.lookupds or not self._nodes else CONFIGURED_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOKUP_SECONDS if self._nodes else ROUND_SECONDS):
                gathered = await self._listing.get(self._fleet.nodes, every)
                if gathered is not self._gathered:
                    self._take(gathered)

    def _take(self, gathered: Gathered[list[Node]]) -> None:
        self._gathered = gathered
        # An nsqlookupd that did not answer may be the one that lists a node: then no node is
        # unlisted.
        is_all = not gathered.failed and not any(
            at in self._fleet.lookupds for at in gathered.errors
        )
        if is_all and self._fleet.lookupds:
            for node in self._nodes.values():
                node.is_listed = False
        given = [] if self._fleet.lookupds else self._given(gathered.value)
        for listed in (*gathered.value, *given):
            known = self._nodes.get(listed.address)
            if known is None:
                self._nodes[listed.address] = NodeWatch(listed)
            else:
                known.node, known.is_listed = listed, True

    def _given(self, listed: Sequence[Node]) -> list[Node]:
        """The configured nodes that have never answered, under their configured address."""
        called = {node.at for node in listed}
        for address in [a for a, known in self._nodes.items() if known.node.at in called]:
            if address not in {node.address for node in listed}:
                del self._nodes[address]  # the node has now reported its own address
        known_at = called | {known.node.at for known in self._nodes.values()}
        return [given_node(at) for at in self._fleet.nsqds if at not in known_at]

    def _forget_old(self) -> None:
        """Forget unlisted nodes gone for long without waiting messages; keep `GONE_MAX` at most."""
        gone = [node for node in self._nodes.values() if node.is_gone and not node.is_pending]
        gone.sort(key=lambda node: node.since_at)
        too_many = max(0, len(gone) - GONE_MAX)
        for place, node in enumerate(gone):
            is_old = time.time() - node.since_at > GONE_SECONDS and not node.is_listed
            if place < too_many or (is_old and not node.waiting):
                del self._nodes[node.node.address]


async def _answered(requests: Iterable[asyncio.Task[None]], until: float) -> None:
    """Wait for all nodes, until the time `until`, or until none has answered for a while.

    The while is `QUIET_SECONDS`.
    """
    left = set(requests)
    while left and (seconds := min(QUIET_SECONDS, until - time.monotonic())) > 0:
        done, left = await asyncio.wait(left, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return
