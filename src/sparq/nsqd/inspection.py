"""Inspection of messages over HTTP (docs/http.md, "Looking into a queue").

1. A request takes a snapshot of the state in memory, in the event loop; slower work, sorting and
   reading, runs in the inspection thread. Inspection takes no message and moves none.
2. Each answer is limited in messages, in bytes read and in bytes held. A thread encodes it, message
   by message, so that the event loop runs in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from sparq.broker import seeking
from sparq.daemon.http import JSON, Call, Content, HttpError, Route, topic_channel
from sparq.inspection import snapshot as snapshots
from sparq.inspection import times
from sparq.inspection.search import Search
from sparq.inspection.snapshot import UNKNOWN, ChannelSnapshot, MessagePlace, MessageState
from sparq.log.inspection import LogPart, SingleMessageRead, wanted_parts
from sparq.log.task import FunctionTask, TaskKind
from sparq.nsqd import parameters
from sparq.nsqd.parameters import shown_time, target_of
from sparq.nsqd.turns import instant
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol.dead_letters import unseal
from sparq.protocol.envelope import ENVELOPE_BYTES_MAX
from sparq.protocol.instant import rfc3339
from sparq.protocol.layout import INDEX_BITS
from sparq.protocol.messages import MessageClient, NodeMessage

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.session import V2Session
    from sparq.broker.topic import Topic
    from sparq.log.disk import DiskError
    from sparq.log.inspection import StoredMessage
    from sparq.log.task import Task
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.instant import Instant

READ_BYTES_MAX: Final = 4 << 20
"""Maximum bytes of the log read for a page of messages, or one extent if that is larger."""

SEARCHES_MAX: Final = 8
"""Maximum number of searches at a time, since each one holds the data that it searches; further
ones wait. One thread runs all of them."""

PLACE_READS_MAX: Final = 8
"""Attempts to find a place by time; one read is enough, unless its result has been dropped."""

FIRST: Final = (-(1 << 62), -1)
"""Due time and index before those of all messages."""

BYTES: Final = "application/octet-stream"


class ChannelView(NamedTuple):
    """Where an answer's messages stand on a channel at `now`, and its sessions by number."""

    now: Instant
    sessions: Mapping[int, V2Session]
    places: Mapping[int, MessagePlace[int]]

    def describe(self, message: NodeMessage, index: int) -> None:
        """Add a message's state on the channel, with details if it is in flight or deferred."""
        place, now = self.places[index], self.now
        state = MessageState(place.state)
        message.state = state.name.lower()
        message.attempts = None if place.attempts == UNKNOWN else place.attempts
        # Deadlines are monotonic, so that a change of the system's time does not move them.
        until = rfc3339(now.wall_ns - now.mono_ns + place.until_ns)
        if state is MessageState.IN_FLIGHT:
            session = self.sessions.get(place.owner)
            message.client = None if session is None else _client(session)
            message.since = rfc3339(now.wall_ns - now.mono_ns + place.since_ns)
            message.deadline = until
            message.in_flight_seconds = round((now.mono_ns - place.since_ns) / SECOND, 3)
        elif state is MessageState.DEFERRED:
            message.due = until
            message.due_seconds = round(max(0, place.until_ns - now.mono_ns) / SECOND, 3)


def _client(session: V2Session) -> MessageClient:
    texts = session.client_id, session.hostname, session.remote_address, session.user_agent
    # IDENTIFY may have half of a surrogate pair, which JSON cannot carry.
    return MessageClient(*(text.encode(errors="replace").decode() for text in texts))


class MessageQuery(NamedTuple):
    """The messages that a request asks for.

    Attributes:
        channel: the channel whose states are shown; None: no channel is named.
        body_bytes: how much of each body is shown; -1: no bodies.
        after: the numbers of the previous page's `next`; None: this is the first page.
    """

    topic: Topic
    channel: Channel | None
    limit: int
    body_bytes: int
    after: list[int] | None

    @property
    def read_bytes(self) -> int:
        """How many bytes of each body to read."""
        return body_read_bytes(self.topic, self.body_bytes)


class Inspection:
    """The inspection handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker
        self._searches = asyncio.Semaphore(SEARCHES_MAX)

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", "/channel/messages", self.channel_messages, log=False),
            Route("GET", "/topic/messages", self.topic_messages, log=False),
            Route("GET", "/message", self.message, log=False),
            Route("GET", "/topic/search", self.search, log=False),
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
        await self._nsqd.ask(lambda ticket: self._broker.inspect(topic, task, ticket))
        # Identity: a topic created again under this name has another log.
        if self._broker.topics.get(topic.name) is not topic:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if task.error is not None:
            raise HttpError(500, f"INTERNAL_ERROR: {task.error.reason}")

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
        """Return the index of a place (one of `parameters.FORMS`) in the log before `end`."""
        target = target_of(text, time.time_ns(), name)
        for _ in range(PLACE_READS_MAX):
            found = seeking.place_of(topic.stream.log, target, end)
            if isinstance(found, int):
                return found
            await self.run(topic, found)
            topic.stream.log.store(found)
        raise HttpError(503, "NOT_DONE: the log changed while it was searched: try again")

    # Requests and answers

    def _query(self, call: Call, after_count: int = 1) -> MessageQuery:
        """Read a request's parameters; `after` has that many numbers."""
        name = parameters.name_of(call, "topic")
        limit = parameters.number_of(call, "limit", parameters.LIMIT, parameters.LIMIT_MAX)
        body_bytes = parameters.body_bytes_of(call)
        after = parameters.token_of(call, after_count)
        topic = self.topic_of(name)
        return MessageQuery(topic, self.channel_of(topic, call), limit, body_bytes, after)

    async def _view(
        self,
        query: MessageQuery,
        indexes: Sequence[int],
        snapshot: ChannelSnapshot | None = None,
    ) -> ChannelView | None:
        """Return the messages' states on the channel; None if no channel is named."""
        channel = query.channel
        if channel is None:
            return None
        taken = snapshot or snapshots.take(channel, instant())
        places: dict[int, MessagePlace[int]] = {}

        def look_up() -> None:
            columns = [one.tolist() for one in taken.places(np.array(indexes, np.int64))]
            places.update((row[0], MessagePlace(*row)) for row in zip(*columns, strict=True))

        await self.run(query.topic, FunctionTask(look_up, TaskKind.INSPECT))
        return ChannelView(taken.now, dict(channel.sessions), places)

    def _shown(self, query: MessageQuery, view: ChannelView | None, stored: StoredMessage) -> bytes:
        """Encode a message as JSON; any thread may do it."""
        size, body = stored.size, stored.body
        letter: Mapping[str, str] = {}
        if query.topic.stream.has_letters:
            letter, body = unseal(stored.body)
            size -= len(stored.body) - len(body)
            body = body[: max(0, query.body_bytes)]
        message = NodeMessage(
            id=id_of(stored.index, self._broker.node_id),
            index=str(stored.index),
            time=rfc3339(stored.time_ns),
            timestamp=str(stored.time_ns),
            size=size,
            letter=letter or UNSET,
        )
        if query.body_bytes >= 0:
            message.set_body(body)
        if view is not None:
            view.describe(message, stored.index)
        return msgspec.json.encode(message)

    async def _page(
        self,
        query: MessageQuery,
        head: dict[str, Any],
        found: Sequence[StoredMessage],
        view: ChannelView | None,
        tail: dict[str, Any],
    ) -> Content:
        """Build an answer with a list of messages between `head` and `tail`."""

        def encode() -> bytes:
            messages = [msgspec.Raw(self._shown(query, view, stored)) for stored in found]
            return msgspec.json.encode({**head, "messages": messages, **tail})

        return Content(await asyncio.to_thread(encode), JSON)

    # A channel's messages

    async def channel_messages(self, call: Call) -> Content:
        """Return a page of messages that wait, are in flight, or are deferred."""
        topic_channel(call)
        states = MessageState.WAITING, MessageState.IN_FLIGHT, MessageState.DEFERRED
        state = parameters.state_of(call, MessageState.WAITING, *states)
        query = self._query(call, 2)
        topic, channel = query.topic, query.channel
        assert channel is not None
        assert state is not None
        totals = (channel.depth(), channel.in_flight.count, channel.deferred_count())
        snapshot = snapshots.take(channel, instant())
        after = FIRST if query.after is None else (query.after[0], query.after[1])
        fresh: list[int] = []
        # Read here, in the event loop: the channel changes while the thread sorts.
        if state is MessageState.WAITING:
            fresh = snapshots.fresh_after(channel, after[1], query.limit)
        held: list[int] = []
        choose = partial(snapshot.page, state, after, query.limit)
        await self.run(topic, FunctionTask(lambda: held.extend(choose()), TaskKind.INSPECT))
        indexes = sorted({*fresh, *held})[: query.limit] if fresh else held
        found, covered = await self.read(topic, indexes, query.read_bytes)
        view = await self._view(query, indexes, snapshot)
        assert view is not None
        following = None
        if not covered == len(indexes) < query.limit:
            last = indexes[covered - 1]
            due_ns = view.places[last].until_ns if state is MessageState.DEFERRED else 0
            following = f"{due_ns}.{last}"
        shown = [found[index] for index in indexes[:covered] if index in found]
        names = {"topic": topic.name, "channel": channel.name, "state": state.name.lower()}
        head = {**names, "total": totals[state]}
        tail = {"next": following, "unreadable": covered - len(shown)}
        return await self._page(query, head, shown, view, tail)

    # A topic's messages

    async def topic_messages(self, call: Call) -> Content:
        """Return a page of the log from a place on."""
        query = self._query(call)
        topic, log = query.topic, query.topic.stream.log
        end = log.written_end
        if query.after is None:
            first = await self.index_at(topic, call.query.get("from", "earliest"), "FROM", end)
        else:
            first = query.after[0]
        indexes = log.inspection.stored_from(first, end, query.limit)
        found, covered = await self.read(topic, indexes, query.read_bytes)
        shown = [found[index] for index in indexes[:covered] if index in found]
        view = await self._view(query, [stored.index for stored in shown])
        is_all = covered == len(indexes) < query.limit
        # The next page begins after the last place examined, even if that could not be read.
        following = max(first, end) if is_all else indexes[covered - 1] + 1
        tail = {"next": str(following), "unreadable": covered - len(shown), **_ends(topic)}
        tail["older_are_gone"] = first <= log.first_index and log.first_ordinal > 0
        return await self._page(query, {"topic": topic.name}, shown, view, tail)

    async def message(self, call: Call) -> Content:
        """Return one message by its id."""
        parameters.name_of(call, "topic")
        text, raw = call.argument("id"), call.flag("raw", False)
        query = self._query(call)
        topic, log = query.topic, query.topic.stream.log
        index = parameters.index_of(text, log.node_id)
        if index is None:
            raise HttpError(404, "MESSAGE_NOT_FOUND: the id belongs to another node or topic")
        found: dict[int, StoredMessage] = {}
        if index < log.written_end:
            whole = body_read_bytes(topic, self._broker.limits.max_body_size)
            found, _ = await self.read(topic, [index], whole if raw else query.read_bytes)
        if index not in found:
            kept = next((segment for segment in log.segments() if segment.messages), None)
            why = "the log is empty"
            if kept is not None:
                begin = shown_time(kept.first_time_ns)
                why = f"the log begins with index {log.first_index}, published at {begin}"
            raise HttpError(404, f"MESSAGE_NOT_FOUND: {why}")
        if raw:
            body = found[index].body
            is_opened = topic.stream.has_letters and not call.flag("envelope", False)
            return Content(unseal(body)[1] if is_opened else body, BYTES)
        view = await self._view(query, [index])
        return Content(await asyncio.to_thread(self._shown, query, view, found[index]), JSON)

    # Search

    async def search(self, call: Call) -> Content:
        """Search messages until `limit` are found or the time budget is used up."""
        parameters.name_of(call, "topic")
        criteria = parameters.criteria_of(call)
        budget_ms = parameters.number_of(
            call, "budget_ms", parameters.BUDGET_MS, parameters.BUDGET_MS_MAX
        )
        query = self._query(call, 3)
        topic, log = query.topic, query.topic.stream.log
        if query.after is None:
            # Where the search begins, where it continues, and where it ends (indexes).
            readable = log.written_end
            texts = call.query.get("from", "earliest"), call.query.get("to", "latest")
            first = position = await self.index_at(topic, texts[0], "FROM", readable)
            end = await self.index_at(topic, texts[1], "TO", readable)
        else:
            first, position, end = query.after
        snapshot = None
        if query.channel is not None:
            snapshot = snapshots.take(query.channel, instant())
        search = Search(
            *(log.inspection, criteria, position, end, time.perf_counter),
            *(snapshot, query.limit, query.read_bytes),
        )
        if snapshot is not None:
            await self.run(topic, FunctionTask(search.prepare, TaskKind.INSPECT))
        async with self._searches:
            await self._search_for(topic, search, budget_ms * MILLISECOND / SECOND)
        view = await self._view(query, [stored.index for stored in search.found], snapshot)
        begin, now, last = map(log.ordinal_at, (first, search.position, search.end))
        done = search.position >= search.end
        tail = {
            "scanned": search.scanned,
            "scanned_bytes": search.scanned_bytes,
            "unsearched": search.unsearched,
            "progress": 1.0 if done or last <= begin else round((now - begin) / (last - begin), 4),
            "next": None if done else f"{first}.{search.position}.{search.end}",
            "done": done,
            **_ends(topic),
        }
        return await self._page(query, {"topic": topic.name}, search.found, view, tail)

    async def _search_for(self, topic: Topic, search: Search, seconds: float) -> None:
        """Search step by step for `seconds`, or longer until at least one message is searched."""
        first, until = search.position, time.perf_counter() + seconds
        while search.begin_step():
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
        channel, log = self.channel_of(topic, call), topic.stream.log
        answer: dict[str, Any] = {"topic": name, "from": None, "to": None, **_ends(topic)}
        answer["buckets"] = []
        columns = times.columns_of(log.inspection, count)
        if columns is not None:
            await self.run(topic, columns)
            edges = [shown_time(edge) for edge in columns.edges.tolist()]
            counts, indexes = columns.counts.tolist(), map(str, columns.indexes.tolist())
            answer |= {"from": edges[0], "to": edges[-1]}
            answer["buckets"] = [
                {"time": edge, "count": messages, "index": index}
                for edge, messages, index in zip(edges[:-1], counts, indexes, strict=True)
            ]
        if channel is not None:
            # When the first message that the cursor has not passed was published.
            first, found = log.next_stored(channel.cursor), None
            if first < log.written_end:
                read, _ = await self.read(topic, [first], 0)
                found = read[first].time_ns if first in read else None
            answer["cursor_time"] = shown_time(found)
        return answer


def id_of(index: int, node_id: int) -> str:
    """Return a message's id as consumers see it."""
    return f"{node_id << INDEX_BITS | index:016x}"


def body_read_bytes(topic: Topic, body_bytes: int) -> int:
    """Return how many bytes of each body to read; a dead letter has its history before the body."""
    return max(0, body_bytes) + (ENVELOPE_BYTES_MAX if topic.stream.has_letters else 0)


def check_failed(topic: Topic, failed: list[tuple[LogPart, DiskError]]) -> None:
    """Raise HttpError 500 if a read failed, unless its part of the log was deleted meanwhile."""
    for part, error in failed:
        if topic.stream.log.inspection.has(part):
            raise HttpError(500, f"INTERNAL_ERROR: {error.reason}")


def _ends(topic: Topic) -> dict[str, Any]:
    log = topic.stream.log
    return {"first_index": str(log.first_index), "end_index": str(log.written_end)}
