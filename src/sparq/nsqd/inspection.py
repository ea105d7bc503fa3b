"""Inspection of messages over HTTP (docs/http.md, "Looking into a queue").

1. A request takes a snapshot of the state in memory, in the event loop; slower work, sorting and
   reading, runs in the inspection thread. Inspection takes no message and moves none.
2. Each answer is limited in messages, in bytes read and in bytes held. An answer is built in
   pieces, and the event loop runs in between. For a large answer, the inspection thread encodes
   the bodies as JSON and joins the pieces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sparq.broker import seeking
from sparq.daemon.http import JSON, Call, Content, HttpError, Route, topic_channel
from sparq.inspection import snapshot as snapshots
from sparq.inspection import times
from sparq.inspection.search import Search
from sparq.inspection.snapshot import ChannelSnapshot, MessageState, StateDetails
from sparq.log.inspection import Computation, LogPart, SingleMessageRead, wanted_parts
from sparq.nsqd import parameters
from sparq.nsqd.message_json import (
    Pieces,
    bodies_of,
    document_of,
    message_of,
    pieces_of,
    state_json,
    unsealed,
)
from sparq.nsqd.seeking import shown_time, target_of
from sparq.nsqd.stats_format import encoded
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol.dead_letters import unseal
from sparq.protocol.envelope import ENVELOPE_BYTES_MAX

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.topic import Topic
    from sparq.log.disk import DiskError
    from sparq.log.inspection import StoredMessage
    from sparq.log.task import Task
    from sparq.nsqd.server import Nsqd

READ_BYTES_MAX: Final = 4 << 20
"""Maximum bytes of the log read for a page of messages, or one extent if that is larger."""

STEP_SECONDS: Final = 0.004
"""A search runs in steps of about this length; other requests are served in between."""

SEARCHES_MAX: Final = 8
"""Maximum number of searches at a time, since each one holds the data that it searches; further
ones wait. One thread runs all of them."""

ASIDE_BYTES: Final = 64 << 10
"""Above this size, data is processed in the inspection thread."""

PLACE_READS_MAX: Final = 8
"""Attempts to find a place by time; one read is enough, unless its result has been dropped."""

BYTES: Final = "application/octet-stream"

T = TypeVar("T")
Seen = tuple["Channel", "ChannelSnapshot", dict[int, "StateDetails"]]
"""A channel, a snapshot of it, and the messages' states in the snapshot, by index."""


class SearchBudget:
    """The time budget of a search step; it starts with the first call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    def __call__(self) -> bool:
        """Whether the step may continue."""
        now = time.perf_counter()
        if self._until is None:
            self._until = now + self._seconds
        return now < self._until


class Inspection:
    """The inspection handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker
        self._searches = asyncio.Semaphore(SEARCHES_MAX)

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", "/channel/messages", self.channel_messages, log=False, private=True),
            Route("GET", "/topic/messages", self.topic_messages, log=False, private=True),
            Route("GET", "/message", self.message, log=False, private=True),
            Route("GET", "/topic/search", self.search, log=False, private=True),
            Route("GET", "/topic/times", self.times, log=False),
        ]

    # Also used by other modules

    def topic_of(self, name: str) -> Topic:
        """Return a topic by its name.

        Raises:
            HttpError: 404, it does not exist.
        """
        topic = self._broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def channel_of(self, topic: Topic, call: Call) -> Channel | None:
        """Return the channel that a request names; None: it names none.

        Raises:
            HttpError: 404, it does not exist; 400, it is not a legal name.
        """
        if "channel" not in call.query:
            return None
        channel = topic.channels.get(parameters.name_of(call, "channel"))
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    async def run(self, topic: Topic, task: Task) -> None:
        """Run a task for a topic in the inspection thread.

        Raises:
            HttpError: 404, the topic was deleted meanwhile; 500, the disk failed; 503, nsqd stops.
        """
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        await self._nsqd.inspect(topic, task)
        # Identity: a topic created again under this name has another log.
        if self._broker.topics.get(topic.name) is not topic:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if task.error is not None:
            raise HttpError(500, f"INTERNAL_ERROR: {task.error.reason}")

    async def compute(self, topic: Topic, call: Callable[[], None]) -> None:
        """Run a function in the inspection thread."""
        await self.run(topic, Computation(call))

    async def read(
        self, topic: Topic, indexes: Sequence[int], body_bytes: int
    ) -> tuple[dict[int, StoredMessage], int]:
        """Read messages; return those found by index, and how many of `indexes` were processed."""
        inspection = topic.stream.log.inspection
        wanted, covered = wanted_parts(inspection, indexes, READ_BYTES_MAX)
        if not wanted:
            return {}, covered
        read = SingleMessageRead(inspection.disk, wanted, max(0, body_bytes))
        await self.run(topic, read)
        check_failed(topic, read.failed)
        if read.left:
            covered = next(at for at, index in enumerate(indexes) if index in read.left)
        return read.found, covered

    async def index_at(self, topic: Topic, text: str, name: str, end: int) -> int:
        """Return the index of a place (one of `seeking.FORMS`) in the log before `end`."""
        target = target_of(text, time.time_ns(), name)
        for _ in range(PLACE_READS_MAX):
            found = seeking.place_of(topic.stream.log, target, end)
            if isinstance(found, int):
                return found
            await self.run(topic, found)
            topic.stream.log.store(found)
        raise HttpError(503, "NOT_DONE: the log changed while it was searched: try again")

    # A channel's messages

    async def channel_messages(self, call: Call) -> Content:
        """Return a page of messages that wait, are in flight, or are deferred."""
        topic_name, _ = topic_channel(call)
        states = MessageState.WAITING, MessageState.IN_FLIGHT, MessageState.DEFERRED
        state = parameters.state_of(call, MessageState.WAITING, *states)
        limit = parameters.number_of(call, "limit", parameters.LIMIT, parameters.LIMIT_MAX)
        body_bytes = parameters.body_bytes_of(call)
        after = parameters.token_of(call, 2)
        topic = self.topic_of(topic_name)
        channel = self.channel_of(topic, call)
        assert channel is not None
        assert state is not None
        totals = (channel.depth(), channel.in_flight.count, channel.deferred_count())
        snapshot = snapshots.take(channel, self._nsqd.runner.now())
        page = ChannelPage(channel, snapshot, state, after, limit)
        await self.compute(topic, page.fill)
        found, covered = await self.read(topic, page.indexes, body_read_bytes(topic, body_bytes))
        head = {
            "topic": topic.name,
            "channel": channel.name,
            "state": state.name.lower(),
            "total": totals[state],
        }
        shown = [found[index] for index in page.indexes[:covered] if index in found]
        seen = channel, snapshot, page.standings
        tail = {"next": page.token(covered), "unreadable": page.lost(found, covered)}
        messages = await self._messages(topic, shown, seen, body_bytes)
        return await self._document(topic, head, messages, tail)

    async def _document(
        self, topic: Topic, head: dict[str, Any], messages: Iterator[Pieces], tail: dict[str, Any]
    ) -> Content:
        """Build an answer with a list of messages between `head` and `tail`."""
        pieces = await encoded(document_of(head, messages, tail))
        size = sum(map(len, pieces))
        return Content(await self._in_thread_if_large(topic, size, lambda: b"".join(pieces)), JSON)

    async def _messages(
        self, topic: Topic, found: Sequence[StoredMessage], seen: Seen | None, body_bytes: int
    ) -> Iterator[Pieces]:
        """Yield messages as JSON, one by one; with `seen`, including their state on a channel."""
        bodies: dict[int, bytes] = {}
        histories: dict[int, Mapping[str, str]] = {}
        if topic.stream.has_letters:
            opened = [unsealed(stored, body_bytes) for stored in found]
            histories = {stored.index: fields for stored, fields in opened if fields}
            found = [stored for stored, _ in opened]
        if body_bytes >= 0:
            size = sum(len(stored.body) for stored in found)
            bodies = await self._in_thread_if_large(topic, size, lambda: bodies_of(found))

        def message(stored: StoredMessage) -> Pieces:
            standing = None if seen is None else seen[2][stored.index]
            behind: dict[str, Any] = {}
            if seen is not None and standing is not None:
                behind = state_json(standing, seen[0], seen[1].now)
            if stored.index in histories:
                behind["letter"] = histories[stored.index]
            head = message_of(stored, topic.stream.log.node_id, standing)
            return pieces_of(head, bodies.get(stored.index), behind)

        return map(message, found)

    async def _in_thread_if_large(self, topic: Topic, size: int, call: Callable[[], T]) -> T:
        """Return the result of `call`; for `size` above `ASIDE_BYTES` it runs in the thread."""
        if size <= ASIDE_BYTES:
            return call()
        made: list[T] = []
        await self.compute(topic, lambda: made.append(call()))
        return made[0]

    async def _seen(
        self, topic: Topic, channel: Channel | None, indexes: Sequence[int]
    ) -> Seen | None:
        """Return the messages' states on a channel; None if no channel is named."""
        if channel is None:
            return None
        snapshot = snapshots.take(channel, self._nsqd.runner.now())
        standings: dict[int, StateDetails] = {}
        await self.compute(topic, lambda: standings.update(snapshot.state_details(indexes)))
        return channel, snapshot, standings

    # A topic's messages

    async def topic_messages(self, call: Call) -> Content:
        """Return a page of the log from a place on."""
        name = parameters.name_of(call, "topic")
        limit = parameters.number_of(call, "limit", parameters.LIMIT, parameters.LIMIT_MAX)
        body_bytes = parameters.body_bytes_of(call)
        after = parameters.token_of(call, 1)
        topic = self.topic_of(name)
        channel = self.channel_of(topic, call)
        stream, log = topic.stream, topic.stream.log
        end = stream.log.written_end
        if after is None:
            first = await self.index_at(topic, call.query.get("from", "earliest"), "FROM", end)
        else:
            first = after[0]
        indexes = log.inspection.stored_from(first, end, limit)
        found, covered = await self.read(topic, indexes, body_read_bytes(topic, body_bytes))
        shown = [found[index] for index in indexes[:covered] if index in found]
        seen = await self._seen(topic, channel, [stored.index for stored in shown])
        is_all = covered == len(indexes) < limit
        # The next page begins after the last place examined, even if that could not be read.
        following = max(first, end) if is_all else indexes[covered - 1] + 1
        tail = {"next": str(following), "unreadable": covered - len(shown), **_ends(topic)}
        tail["older_are_gone"] = first <= log.first_index and log.first_ordinal > 0
        messages = await self._messages(topic, shown, seen, body_bytes)
        return await self._document(topic, {"topic": topic.name}, messages, tail)

    async def message(self, call: Call) -> Content:
        """Return one message by its id."""
        name, text = parameters.name_of(call, "topic"), call.argument("id")
        body_bytes = parameters.body_bytes_of(call)
        raw = call.flag("raw", False)
        topic = self.topic_of(name)
        channel = self.channel_of(topic, call)
        index = parameters.index_of(text, topic.stream.log.node_id)
        if index is None:
            raise HttpError(404, "MESSAGE_NOT_FOUND: the id belongs to another node or topic")
        found: dict[int, StoredMessage] = {}
        if index < topic.stream.log.written_end:
            size = body_read_bytes(topic, self._broker.limits.max_body_size if raw else body_bytes)
            found, _ = await self.read(topic, [index], size)
        if index not in found:
            raise HttpError(404, f"MESSAGE_NOT_FOUND: {_reach(topic)}")
        if raw:
            body = found[index].body
            is_opened = topic.stream.has_letters and not call.flag("envelope", False)
            return Content(unseal(body)[1] if is_opened else body, BYTES)
        seen = await self._seen(topic, channel, [index])
        (message,) = await self._messages(topic, [found[index]], seen, body_bytes)
        return Content(b"".join(await encoded(message)), JSON)

    # Search

    async def search(self, call: Call) -> Content:
        """Search messages until `limit` are found or the time budget is used up."""
        name = parameters.name_of(call, "topic")
        criteria = parameters.criteria_of(call)
        limit = parameters.number_of(call, "limit", parameters.LIMIT, parameters.LIMIT_MAX)
        body_bytes = parameters.body_bytes_of(call)
        budget_ms = parameters.number_of(
            call, "budget_ms", parameters.BUDGET_MS, parameters.BUDGET_MS_MAX
        )
        after = parameters.token_of(call, 3)
        topic = self.topic_of(name)
        channel = self.channel_of(topic, call)
        first, position, end = after or await self._range(topic, call)
        snapshot = None if channel is None else snapshots.take(channel, self._nsqd.runner.now())
        inspection = topic.stream.log.inspection
        search = Search(
            inspection, criteria, position, end, snapshot, limit, body_read_bytes(topic, body_bytes)
        )
        if snapshot is not None:
            await self.compute(topic, search.prepare)
        async with self._searches:
            await self._search_for(topic, search, budget_ms * MILLISECOND / SECOND)
        seen = None
        if channel is not None and snapshot is not None:
            standings: dict[int, StateDetails] = {}
            indexes = [stored.index for stored in search.found]
            await self.compute(topic, lambda: standings.update(snapshot.state_details(indexes)))
            seen = channel, snapshot, standings
        messages = await self._messages(topic, search.found, seen, body_bytes)
        tail = _outcome(topic, search, first)
        return await self._document(topic, {"topic": name}, messages, tail)

    async def _range(self, topic: Topic, call: Call) -> tuple[int, int, int]:
        """Return where a search begins, where it continues, and where it ends (indexes)."""
        readable = topic.stream.log.written_end
        query = call.query
        first = await self.index_at(topic, query.get("from", "earliest"), "FROM", readable)
        end = await self.index_at(topic, query.get("to", "latest"), "TO", readable)
        return first, first, end

    async def _search_for(self, topic: Topic, search: Search, seconds: float) -> None:
        """Search step by step for `seconds`, or longer until at least one message is searched."""
        first, until = search.position, time.perf_counter() + seconds
        while search.begin_step(SearchBudget(STEP_SECONDS)):
            await self.run(topic, search)
            check_failed(topic, search.failed)
            if time.perf_counter() >= until and search.position > first:
                break

    # Times

    async def times(self, call: Call) -> dict[str, Any]:
        """Return how many messages were published in each interval of time."""
        name = parameters.name_of(call, "topic")
        count = parameters.number_of(call, "buckets", parameters.BUCKETS, parameters.BUCKETS_MAX)
        topic = self.topic_of(name)
        channel = self.channel_of(topic, call)
        answer: dict[str, Any] = {"topic": name, "from": None, "to": None, **_ends(topic)}
        answer["buckets"] = []
        columns = times.columns_of(topic.stream.log.inspection, count)
        if columns is not None:
            await self.run(topic, columns)
            edges, counts = columns.edges.tolist(), columns.counts.tolist()
            answer |= {"from": shown_time(edges[0]), "to": shown_time(edges[-1])}
            answer["buckets"] = [
                {"time": shown_time(edge), "count": messages, "index": str(index)}
                for edge, messages, index in zip(
                    edges[:-1], counts, columns.indexes.tolist(), strict=True
                )
            ]
        if channel is not None:
            answer["cursor_time"] = shown_time(await self._time_at(topic, channel.cursor))
        return answer

    async def _time_at(self, topic: Topic, index: int) -> int | None:
        """Return when the first message from an index on was published (ns since 1970), or None."""
        log = topic.stream.log
        first = log.next_stored(index)
        if first >= topic.stream.log.written_end:
            return None
        found, _ = await self.read(topic, [first], 0)
        return found[first].time_ns if first in found else None


def body_read_bytes(topic: Topic, body_bytes: int) -> int:
    """Return how many bytes of each body to read; a dead letter has its history before the body."""
    return max(0, body_bytes) + (ENVELOPE_BYTES_MAX if topic.stream.has_letters else 0)


class ChannelPage:
    """A page of a channel's messages.

    Attributes:
        indexes: the messages, in the page's order.
        standings: their states on the channel, by index.
    """

    def __init__(
        self,
        channel: Channel,
        snapshot: ChannelSnapshot,
        state: MessageState,
        after: list[int] | None,
        limit: int,
    ) -> None:
        """`after`: (key, index) of the last message of the previous page, as in its `next`."""
        self.indexes: list[int] = []
        self.standings: dict[int, StateDetails] = {}
        self._snapshot, self._state, self._limit = snapshot, state, limit
        self._after = (-(1 << 62), -1) if after is None else (after[0], after[1])
        self._fresh: list[int] = []
        # Read here, in the event loop: the channel changes while `fill` runs in the thread.
        if state is MessageState.WAITING:
            self._fresh = snapshots.fresh_after(channel, self._after[1], limit)

    def fill(self) -> None:
        """Find the messages; runs in the inspection thread."""
        snapshot, after, limit = self._snapshot, self._after, self._limit
        if self._state is MessageState.WAITING:
            again = snapshot.again_after(after[1], limit).tolist()
            self.indexes = sorted({*self._fresh, *again})[:limit]
        elif self._state is MessageState.IN_FLIGHT:
            flying = snapshot.in_flight.indexes
            low = int(flying.searchsorted(after[1], "right"))
            self.indexes = flying[low : low + limit].tolist()
        else:
            self.indexes = snapshot.due_after(after, limit)[0].tolist()
        self.standings = snapshot.state_details(self.indexes)

    def token(self, covered: int) -> str | None:
        """Return where the next page begins; None: this is the last page."""
        if covered == len(self.indexes) < self._limit:
            return None
        last = self.indexes[covered - 1]
        return f"{self.standings[last].due_ns}.{last}"

    def lost(self, found: dict[int, StoredMessage], covered: int) -> int:
        """Return how many of the messages could not be read."""
        return sum(index not in found for index in self.indexes[:covered])


def check_failed(topic: Topic, failed: list[tuple[LogPart, DiskError]]) -> None:
    """Raise HttpError 500 if a read failed, unless its part of the log was deleted meanwhile."""
    for part, error in failed:
        if topic.stream.log.inspection.has(part):
            raise HttpError(500, f"INTERNAL_ERROR: {error.reason}")


def _ends(topic: Topic) -> dict[str, Any]:
    stream = topic.stream
    return {"first_index": str(stream.log.first_index), "end_index": str(stream.log.written_end)}


def _reach(topic: Topic) -> str:
    """Return the oldest index of the log and its time, as part of an error text."""
    log = topic.stream.log
    kept = [segment for segment in log.segments() if segment.messages]
    if not kept:
        return "the log is empty"
    begin = shown_time(kept[0].first_time_ns)
    return f"the log begins with index {log.first_index}, published at {begin}"


def _outcome(topic: Topic, search: Search, first: int) -> dict[str, Any]:
    """Return the members of a search's answer that follow the messages."""
    log = topic.stream.log
    begin, now, end = map(log.ordinal_at, (first, search.position, search.end))
    done = search.position >= search.end
    return {
        "scanned": search.scanned,
        "scanned_bytes": search.scanned_bytes,
        "unsearched": search.unsearched,
        "progress": 1.0 if done or end <= begin else round((now - begin) / (end - begin), 4),
        "next": None if done else f"{first}.{search.position}.{search.end}",
        "done": done,
        **_ends(topic),
    }
