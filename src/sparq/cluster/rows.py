"""Rows of the cluster's figures: each topic and channel over the nodes that have it.

1. Counts are summed. A rate is the growth of a counter between two answers of one nsqd, divided by
   the time between them; it counts as 0 if the counter shrinks, as after the topic or channel was
   deleted and created again. An nsqd that was restarted in between, or has been looked at only
   once, adds nothing. If no nsqd adds anything, the rate is unknown: None.
2. Lags and states are those of `figures`.
3. `..._seconds` is an age or a duration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from sparq.cluster.figures import ChannelFigures, NsqdFigures, TopicFigures, channel_state, lag_of
from sparq.protocol.names import one_line

Key: TypeAlias = tuple[str, str]
"""Topic and channel; for the topic itself the channel is ""."""

ChannelState: TypeAlias = Literal["ok", "behind", "stuck", "no consumers", "paused"]
NAMES_MAX: Final = 200_000
"""Maximum number of topics and channels; 1,000 topics with 10 channels each are 11,000."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The Spark query, or another range reader, that holds a channel.

    Attributes:
        address: address of its connection, as nsqd sees it.
        query: the name that it sent; "" if it sent none.
        commit_seconds: age of its last commit; None if it has made none, or if unknown.
    """

    address: str
    query: str = ""
    commit_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """One channel over all nodes.

    Attributes:
        state: `cluster.figures` has the rules.
        depth: waiting messages, without those in flight or deferred.
        messages, requeued, timed_out: counters since each nsqd's start, summed.
        ready: the sum of its clients' RDY; None if a node is Go's nsqd, which does not report it.
        in_rate: incoming messages per second.
        out_rate: messages per second that consumers finish.
        lag_seconds: age of the oldest waiting message.
        lag_is_exact: whether all nodes reported the age; otherwise the lag is estimated as the
            messages that wait or are in flight, divided by the finish rate.
        clear_seconds: time until no message waits if rates stay the same; inf: never, because at
            least as many come in.
        growth: growth of the depth over the last minute, in messages per second.
        topic_paused: whether its topic is paused: no new messages come to the channel.
        unfinished_seconds: how long messages have waited without one being finished.
        nodes: number of nodes that have the channel.
    """

    topic: str
    channel: str
    state: ChannelState
    depth: int
    memory_depth: int
    backend_depth: int
    in_flight: int
    deferred: int
    messages: int
    requeued: int
    timed_out: int
    clients: int
    ready: int | None
    paused: bool
    topic_paused: bool
    in_rate: float | None
    out_rate: float | None
    requeue_rate: float | None
    timeout_rate: float | None
    lag_seconds: float | None
    lag_is_exact: bool
    clear_seconds: float | None
    growth: float | None
    unfinished_seconds: float
    nodes: int
    reader: Reader | None = None

    @property
    def text(self) -> str:
        """What filters search."""
        return f"{self.topic}/{self.channel}"


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic over all nodes.

    Attributes:
        depth: messages of the topic itself, which no channel has yet.
        waiting: depth of the topic and of all its channels.
        messages, message_bytes: counters since each nsqd's start, summed.
        in_rate, byte_rate: messages and bytes published per second.
        out_rate: messages finished per second, over all channels.
        lag_seconds: the lag of its slowest channel.
        nodes: number of nodes that have the topic.
    """

    topic: str
    depth: int
    memory_depth: int
    backend_depth: int
    waiting: int
    in_flight: int
    deferred: int
    messages: int
    message_bytes: int
    clients: int
    channels: int
    nodes: int
    paused: bool
    in_rate: float | None
    byte_rate: float | None
    out_rate: float | None
    lag_seconds: float | None

    @property
    def text(self) -> str:
        """What filters search."""
        return self.topic


RowT = TypeVar("RowT")


class RowTable(Sequence[RowT], Generic[RowT]):
    """Rows in the order of their keys.

    Attributes:
        keys: topic and channel of each row, in order.
    """

    def __init__(self, rows: Mapping[Key, RowT]) -> None:
        self.keys = sorted(rows)
        self._rows = rows

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys)

    def __getitem__(self, place: Any) -> Any:
        """The row at this place."""
        return self._rows[self.keys[place]]

    def find(self, topic: str, channel: str = "") -> RowT | None:
        """The row of this name; None if there is none."""
        return self._rows.get((topic, channel))


class NodeStats:
    """An nsqd's figures at one moment.

    Attributes:
        figures: its `/stats`.
        at_seconds: when they were queried, on the monotonic clock.
        rows: its topics and channels by name, without duplicates.
    """

    def __init__(self, figures: NsqdFigures, at_seconds: float) -> None:
        self.figures = figures
        self.at_seconds = at_seconds
        self.rows: dict[Key, Any] = {}
        for topic in figures.topics:
            self.rows.setdefault((topic.topic_name, ""), topic)
            for channel in topic.channels:
                self.rows.setdefault((topic.topic_name, channel.channel_name), channel)

    def seconds_since(self, base: NodeStats | None) -> float:
        """The time since an earlier answer of the same process; 0: there is none."""
        if base is None or base.figures.start_time != self.figures.start_time:
            return 0.0
        return max(0.0, self.at_seconds - base.at_seconds)


Answer: TypeAlias = tuple[NodeStats, NodeStats | None]
"""A node's figures, and the earlier ones from which its rates are computed."""

_Part: TypeAlias = tuple[Any, Any, float]
"""A topic or channel at one node, the same earlier, if known, and the seconds between them."""


class ChannelPast:
    """What rows need of the past; by default nothing is known."""

    def idle_seconds(self, _key: Key, _finished: int, _unfinished: int) -> float:
        """How long messages have been unfinished without one being finished."""
        return 0.0

    def growth(self, _key: Key, _depth: int) -> float | None:
        """Growth of a depth, in messages per second."""
        return None


def tables(
    answers: Iterable[Answer], topic: str = "", past: ChannelPast | None = None
) -> tuple[RowTable[TopicRow], RowTable[ChannelRow], int]:
    """The topics and channels of some nodes, or one topic with its channels.

    Returns:
        The tables, and the number of names beyond `NAMES_MAX`, which are left out.
    """
    parts: dict[Key, list[_Part]] = {}
    left_out = set()
    for stats, base in answers:
        seconds = stats.seconds_since(base)
        before = base.rows if base is not None and seconds else {}
        for key, own in stats.rows.items():
            if topic and key[0] != topic:
                continue
            if key not in parts and len(parts) >= NAMES_MAX:
                left_out.add(key)
                continue
            parts.setdefault(key, []).append((own, before.get(key), seconds))
    paused = {
        key[0] for key, some in parts.items() if not key[1] and any(p[0].paused for p in some)
    }
    channels = {
        key: _channel(key, some, key[0] in paused, past or ChannelPast())
        for key, some in parts.items()
        if key[1]
    }
    of_topic: dict[str, list[ChannelRow]] = {}
    for row in channels.values():
        of_topic.setdefault(row.topic, []).append(row)
    topics = {
        key: _topic(key[0], some, of_topic.get(key[0], []))
        for key, some in parts.items()
        if not key[1]
    }
    return RowTable(topics), RowTable(channels), len(left_out)


_counts_of = attrgetter(
    *("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count"),
    *("requeue_count", "timeout_count", "client_count", "ready_count", "finished"),
)
_counters_of = attrgetter("message_count", "finished", "requeue_count", "timeout_count")
_topic_counts_of = attrgetter("depth", "backend_depth", "message_count", "message_bytes")
_topic_counters_of = attrgetter("message_count", "message_bytes")


def _sums(parts: Iterable[_Part], of: Callable[[Any], tuple[int, ...]]) -> Iterator[int]:
    """The sums of figures over nodes."""
    return (max(0, sum(column)) for column in zip(*(of(own) for own, _, _ in parts), strict=True))


def _rates(parts: Iterable[_Part], of: Callable[[Any], tuple[int, ...]]) -> list[float | None]:
    """The sums of the rates of counters; None: unknown."""
    known = [
        [max(0, at - then) / seconds for at, then in zip(of(own), of(before), strict=True)]
        for own, before, seconds in parts
        if before is not None
    ]
    return [sum(column) for column in zip(*known, strict=True)] if known else [None] * 4


def _channel(key: Key, parts: list[_Part], topic_paused: bool, past: ChannelPast) -> ChannelRow:
    depth, backend, in_flight, deferred, messages, *more = _sums(parts, _counts_of)
    requeued, timed_out, clients, ready, finished = more
    in_rate, out_rate, requeue_rate, timeout_rate = _rates(parts, _counters_of)
    channels: list[ChannelFigures] = [own for own, _, _ in parts]
    unfinished = depth + in_flight
    ages = [one.oldest_waiting_seconds for one in channels]
    lag = lag_of(ages, unfinished, out_rate)
    reader = next((_reader(one) for one in channels if one.range_reader), None)
    idle = past.idle_seconds(key, finished, unfinished)
    paused = any(one.paused for one in channels)
    state: Any = channel_state(
        paused=paused,
        clients=clients,
        readers=int(reader is not None),
        unfinished=unfinished,
        idle_seconds=idle,
        lag_seconds=lag,
    )
    clear: float | None = None
    if not depth:
        clear = 0.0  # what is in flight does not wait: a channel whose consumers keep up is clear
    elif in_rate is not None and out_rate is not None:
        clear = unfinished / (out_rate - in_rate) if out_rate > in_rate else math.inf
    return ChannelRow(
        topic=key[0],
        channel=key[1],
        state=state,
        depth=depth,
        memory_depth=max(0, depth - backend),
        backend_depth=backend,
        in_flight=in_flight,
        deferred=deferred,
        messages=messages,
        requeued=requeued,
        timed_out=timed_out,
        clients=clients,
        ready=ready if all(one.finish_count >= 0 for one in channels) else None,
        paused=paused,
        topic_paused=topic_paused,
        in_rate=in_rate,
        out_rate=out_rate,
        requeue_rate=requeue_rate,
        timeout_rate=timeout_rate,
        lag_seconds=None if math.isnan(lag) else lag,
        lag_is_exact=None not in ages,
        clear_seconds=clear,
        growth=past.growth(key, depth),
        unfinished_seconds=idle,
        nodes=len(parts),
        reader=reader,
    )


def _reader(channel: ChannelFigures) -> Reader:
    age = channel.range_commit_seconds
    address, query = channel.range_reader or "", channel.range_query or ""
    return Reader(one_line(address), one_line(query), None if age is None else max(0.0, age))


def _topic(name: str, parts: list[_Part], channels: list[ChannelRow]) -> TopicRow:
    depth, backend, messages, size = _sums(parts, _topic_counts_of)
    in_rate, byte_rate, *_ = _rates(parts, _topic_counters_of)
    topics: list[TopicFigures] = [own for own, _, _ in parts]
    return TopicRow(
        topic=name,
        depth=depth,
        memory_depth=max(0, depth - backend),
        backend_depth=backend,
        waiting=depth + sum(row.depth for row in channels),
        in_flight=sum(row.in_flight for row in channels),
        deferred=sum(row.deferred for row in channels),
        messages=messages,
        message_bytes=size,
        clients=sum(row.clients for row in channels),
        channels=len(channels),
        nodes=len(parts),
        paused=any(one.paused for one in topics),
        in_rate=in_rate,
        byte_rate=byte_rate,
        out_rate=total(row.out_rate for row in channels) if channels else None,
        lag_seconds=max(
            (x for row in channels if (x := row.lag_seconds) is not None), default=None
        ),
    )


def node_sums(*answers: Answer) -> dict[str, Any]:
    """Sums over the topics and channels of a node, with the names of `TopicRow`."""
    stats, base = answers[0] if answers else (NodeStats(NsqdFigures(), 0.0), None)
    topics = {key: own for key, own in stats.rows.items() if not key[1]}
    channels = {key: own for key, own in stats.rows.items() if key[1]}
    seconds = stats.seconds_since(base)

    def rate(rows: Mapping[Key, Any], counter: str) -> float | None:
        before, of = base.rows if base is not None and seconds else {}, attrgetter(counter)
        known = [max(0, of(own) - of(before[key])) for key, own in rows.items() if key in before]
        return sum(known) / seconds if known or (seconds and not rows) else None

    return {
        "topics": len(topics),
        "channels": len(channels),
        "waiting": sum(max(0, own.depth) for own in stats.rows.values()),
        "in_flight": sum(own.in_flight_count for own in channels.values()),
        "deferred": sum(own.deferred_count for own in channels.values()),
        "clients": sum(own.client_count for own in channels.values()),
        "messages": sum(own.message_count for own in topics.values()),
        "in_rate": rate(topics, "message_count"),
        "out_rate": rate(channels, "finished"),
    }


def total(rates: Iterable[float | None]) -> float | None:
    """The sum of the known rates; None if there are rates but none is known."""
    every = [*rates]
    known = [rate for rate in every if rate is not None]
    return sum(known) if known or not every else None
