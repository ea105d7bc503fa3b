"""Rows of the cluster's figures: each topic and channel over the nodes that have it.

1. Counts are summed. A rate is the growth of a counter between two answers of one nsqd, divided by
   the time between them; it counts as 0 if the counter shrinks, as after the topic or channel was
   deleted and created again. An nsqd that was restarted in between, or has been looked at only
   once, adds nothing. If no nsqd adds anything, the rate is unknown: None.
2. Lags and states are those of `figures`.
3. `..._seconds` is an age or a duration.
4. Lists of rows are filtered, sorted and paged here (`page_of`). A column has the name of a row's
   field; a `-` in front reverses the order. Unknown figures are last in both orders, and equal
   rows stay in the order of the list. A filter is a text that the row's `text` must contain; upper
   and lower case do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from msgspec import Struct, structs

from sparq.cluster.figures import (
    STATES,
    ChannelFigures,
    NsqdFigures,
    channel_state,
    lag_of,
)
from sparq.protocol.names import one_line

Key: TypeAlias = tuple[str, str]
"""Topic and channel; for the topic itself the channel is ""."""

ChannelState: TypeAlias = Literal["ok", "behind", "stuck", "no consumers", "paused"]
NAMES_MAX: Final = 200_000
"""Maximum number of topics and channels; 1,000 topics with 10 channels each are 11,000."""


class Row(Struct, gc=False, forbid_unknown_fields=True):
    """A line of a list; filters search its `text`."""


class Reader(Row):
    """The Spark query, or another range reader, that holds a channel.

    Attributes:
        address: address of its connection, as nsqd sees it.
        query: the name that it sent; "" if it sent none.
        commit_seconds: age of its last commit; None if it has made none, or if unknown.
    """

    address: str
    query: str
    commit_seconds: float | None


class ChannelRow(Row):
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
    reader: Reader | None

    @property
    def text(self) -> str:
        """What filters search."""
        return f"{self.topic}/{self.channel}"


class TopicRow(Row):
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


class RowTable(list[RowT]):
    """Rows in the order of their keys.

    Attributes:
        keys: topic and channel of each row, in order.
    """

    def __init__(self, rows: Mapping[Key, RowT]) -> None:
        self.keys = sorted(rows)
        self._rows = rows
        super().__init__(map(rows.__getitem__, self.keys))

    def find(self, topic: str, channel: str = "") -> RowT | None:
        """The row of this name; None if there is none."""
        return self._rows.get((topic, channel))


COUNTS: Final = {
    "messages": "message_count",
    "finished": "finished",
    "requeued": "requeue_count",
    "timed_out": "timeout_count",
    "message_bytes": "message_bytes",
    "depth": "depth",
    "backend_depth": "backend_depth",
    "in_flight": "in_flight_count",
    "deferred": "deferred_count",
    "clients": "client_count",
    "ready": "ready_count",
    "paused": "paused",
}
"""Figures of rows that are sums, and the figures that are summed; the first ones are counters."""

RATES: Final = ("in_rate", "out_rate", "requeue_rate", "timeout_rate", "byte_rate")
"""The rates of these counters."""

COUNT_MAX: Final = 1 << 53
"""Larger figures are cut, so that no sum overflows."""


class NameList:
    """The topics and channels of an answer. Equal answers share one: they are many, and large.

    Attributes:
        rows: their places in the answer; of a name that a node reports twice, the last one.
        keys: their names.
        places: each topic's places in `keys`.
        is_topic: for each key whether it is a topic's.
    """

    def __init__(self, told: tuple[Key, ...]) -> None:
        rows = {key: row for row, key in enumerate(told)}
        self.keys = [*rows]
        self.rows = np.array([*rows.values()], np.int64)
        self.places: dict[str, list[int]] = {}
        for at, key in enumerate(self.keys):
            self.places.setdefault(key[0], []).append(at)
        self.is_topic = np.array([not key[1] for key in self.keys], np.bool_)


_lists: WeakValueDictionary[tuple[Key, ...], NameList] = WeakValueDictionary()


class NodeStats:
    """An nsqd's figures at one moment, as columns: 20 nodes of 10,000 channels are 25 MB.

    Attributes:
        figures: its `/stats`, without topics.
        at_seconds: when they were queried, on the monotonic clock.
        names: its topics and channels.
        counts: for each of them its `COUNTS`.
        oldest: for each of them the age of its oldest waiting message; nan: unknown, as at Go's
            nsqd.
        readers: the range readers that hold channels.
    """

    def __init__(self, figures: NsqdFigures, at_seconds: float) -> None:
        self.figures = structs.replace(figures, listed=None)
        self.at_seconds = at_seconds
        topics = figures.topics
        channels = [channel for topic in topics for channel in topic.channels]
        told = (
            *((topic.topic_name, "") for topic in topics),
            *((topic.topic_name, each.channel_name) for topic in topics for each in topic.channels),
        )
        self.names = names = _lists.get(told) or _lists.setdefault(told, NameList(told))
        rows = map(attrgetter(*COUNTS.values()), chain(topics, channels))
        flat = np.fromiter(chain.from_iterable(rows), np.int64, len(told) * len(COUNTS))
        self.counts = np.clip(flat.reshape(-1, len(COUNTS))[names.rows], 0, COUNT_MAX)
        ages = [0.0] * len(topics) + [channel.oldest_waiting_seconds for channel in channels]
        self.oldest = np.array(ages, np.float64)[names.rows]
        self._rates: tuple[float | None, Any] | None = None
        self.readers = {
            key: _reader(one)
            for key, one in zip(told[len(topics) :], channels, strict=True)
            if one.range_reader
        }

    @property
    def was_drained(self) -> bool:
        """Whether it was draining and had nothing left: if it is gone, that is as intended."""
        sums = self.sums()
        left = sums["waiting"] + sums["in_flight"] + sums["deferred"]
        return self.figures.draining and not left

    def sums(self, base: NodeStats | None = None) -> dict[str, Any]:
        """Sums over its topics and channels, named as in rows."""
        return _sums(self.counts, self.rates(base), self.names.is_topic)

    def rates(self, base: NodeStats | None) -> Any:
        """For each name its `RATES` since an earlier answer; nan: unknown."""
        # Not the base itself, which would keep all earlier answers.
        since = None if base is None else base.at_seconds
        if self._rates is None or self._rates[0] != since:
            self._rates = since, self._rates_since(base)
        return self._rates[1]

    def _rates_since(self, base: NodeStats | None) -> Any:
        rates = np.full((len(self.counts), len(RATES)), math.nan)
        seconds = 0.0 if base is None else self.at_seconds - base.at_seconds
        # A restarted nsqd counts from 0.
        if base is None or base.figures.start_time != self.figures.start_time or seconds <= 0:
            return rates
        here: Any = slice(None)
        before: Any = here
        if base.names is not self.names:
            known = {key: at for at, key in enumerate(base.names.keys)}
            before = np.array([known.get(key, -1) for key in self.names.keys], np.int64)
            here = np.flatnonzero(before >= 0)
            before = before[here]
        grown = self.counts[here, : len(RATES)] - base.counts[before, : len(RATES)]
        rates[here] = np.maximum(grown, 0) / seconds
        return rates


Answer: TypeAlias = tuple[NodeStats, NodeStats | None]
"""A node's figures, and the earlier ones from which its rates are computed."""


class ChannelPast:
    """What rows need of earlier rows; a new one knows nothing."""

    def __init__(self) -> None:
        self._moved: dict[Key, tuple[int, float]] = {}
        self._moved_before: dict[Key, tuple[int, float]] = {}
        self._at = 0.0

    def begin(self, at_seconds: float) -> None:
        """Begin the rows of this time, on the monotonic clock."""
        self._at, self._moved_before, self._moved = at_seconds, self._moved, {}

    def idle_seconds(self, key: Key, finished: int, unfinished: int) -> float:
        """How long messages have been unfinished without one being finished."""
        before, moved_at = self._moved_before.get(key, (-1, self._at))
        # The sum falls if an nsqd that has the channel is gone: that is no progress.
        if finished > before or not unfinished:
            moved_at = self._at
        self._moved[key] = finished, moved_at
        return self._at - moved_at

    def growth(self, _key: Key, _depth: int) -> float | None:
        """Growth of a depth, in messages per second; None: unknown."""
        return None


class Tables(NamedTuple):
    """The topics and channels of some nodes.

    Attributes:
        sums: their sums, named as in rows.
        left_out: the number of names beyond `NAMES_MAX`.
    """

    topics: RowTable[TopicRow]
    channels: RowTable[ChannelRow]
    sums: dict[str, Any]
    left_out: int


def tables(answers: Iterable[Answer], topic: str = "", past: ChannelPast | None = None) -> Tables:
    """The rows of some nodes' topics and channels, or of one topic with its channels."""
    keys: dict[Key, int] = {}
    numbered: dict[NameList, Any] = {}
    parts = []
    for stats, base in answers:
        names = stats.names
        if names not in numbered:
            here = names.places.get(topic, ()) if topic else range(len(names.keys))
            numbers = [keys.setdefault(names.keys[at], len(keys)) for at in here]
            both = np.array([here, numbers], np.int64)
            numbered[names] = both[:, both[1] < NAMES_MAX]
        parts.append((stats, stats.rates(base), *numbered[names]))
    size = min(len(keys), NAMES_MAX)
    counts, nodes = np.zeros((size, len(COUNTS)), np.int64), np.zeros(size, np.int64)
    rates, oldest = np.full((size, len(RATES)), math.nan), np.zeros(size)
    gos = np.zeros(size, np.bool_)
    readers: dict[Key, Reader] = {}
    for stats, grown, here, there in parts:
        counts[there] += stats.counts[here]
        nodes[there] += 1
        oldest[there] = np.maximum(oldest[there], stats.oldest[here])  # unknown at one: unknown
        sums = np.nan_to_num(rates[there]) + grown[here]
        rates[there] = np.where(np.isnan(sums), rates[there], sums)
        gos[there] |= stats.figures.sparq_version is None
        readers = stats.readers | readers
    ages = [None if math.isnan(age) else age for age in oldest.tolist()]
    columns = counts.tolist(), _known(rates), nodes.tolist(), ages, gos.tolist()
    rows = list(zip(keys, *columns, strict=False))
    paused = {key[0] for key, count, *_ in rows if not key[1] and count[-1]}
    past = past or ChannelPast()
    channels = {
        key: _channel(key, figures, readers.get(key), key[0] in paused, past)
        for key, *figures in rows
        if key[1]
    }
    of_topic: dict[str, list[ChannelRow]] = {}
    for row in channels.values():
        of_topic.setdefault(row.topic, []).append(row)
    topics = {
        key: _topic(key[0], count, rate, number, of_topic.get(key[0], []))
        for key, count, rate, number, *_ in rows
        if not key[1]
    }
    is_topic = np.array([not key[1] for key, *_ in rows], np.bool_)
    left_out = len(keys) - size
    return Tables(RowTable(topics), RowTable(channels), _sums(counts, rates, is_topic), left_out)


def _known(rates: Any) -> list[list[float | None]]:
    """Rates as lists; None: unknown."""
    return [[None if math.isnan(rate) else rate for rate in row] for row in rates.tolist()]


def _channel(
    key: Key, figures: list[Any], reader: Reader | None, topic_paused: bool, past: ChannelPast
) -> ChannelRow:
    counts, rates, nodes, age, is_go = figures
    messages, finished, requeued, timed_out, _, depth, backend, *others = counts
    in_flight, deferred, clients, ready, paused = others
    in_rate, out_rate, requeue_rate, timeout_rate, _ = rates
    unfinished = depth + in_flight
    lag = lag_of(age, unfinished, out_rate)
    idle = past.idle_seconds(key, finished, unfinished)
    state: Any = channel_state(
        paused=bool(paused),
        clients=clients,
        has_reader=reader is not None,
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
        ready=None if is_go else ready,
        paused=bool(paused),
        topic_paused=topic_paused,
        in_rate=in_rate,
        out_rate=out_rate,
        requeue_rate=requeue_rate,
        timeout_rate=timeout_rate,
        lag_seconds=None if math.isnan(lag) else lag,
        lag_is_exact=age is not None,
        clear_seconds=clear,
        growth=past.growth(key, depth),
        unfinished_seconds=idle,
        nodes=nodes,
        reader=reader,
    )


def _reader(channel: ChannelFigures) -> Reader:
    age = channel.range_commit_seconds
    address, query = channel.range_reader or "", channel.range_query or ""
    return Reader(one_line(address), one_line(query), None if age is None else max(0.0, age))


def _topic(
    name: str,
    counts: list[int],
    rates: list[float | None],
    nodes: int,
    channels: Sequence[ChannelRow],
) -> TopicRow:
    messages, _, _, _, size, depth, backend, *_, paused = counts
    lags = [row.lag_seconds for row in channels if row.lag_seconds is not None]
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
        nodes=nodes,
        paused=bool(paused),
        in_rate=rates[0],
        byte_rate=rates[-1],
        out_rate=total(row.out_rate for row in channels) if channels else None,
        lag_seconds=max(lags, default=None),
    )


def _sums(counts: Any, rates: Any, is_topic: Any) -> dict[str, Any]:
    """Sums over topics and channels, named as in rows; unknown rates are left out of a sum.

    Args:
        counts, rates: `COUNTS` and `RATES` by row.
        is_topic: which rows are topics.
    """

    def of(rows: Any) -> dict[str, Any]:
        sums = dict(zip(COUNTS, counts[rows].sum(axis=0).tolist(), strict=True))
        for name, column in zip(RATES, rates[rows].T, strict=True):
            known = column[~np.isnan(column)]
            sums[name] = float(known.sum()) if len(known) or not len(column) else None
        return sums

    topics, channels = of(is_topic), of(~is_topic)
    return {
        "topics": int(is_topic.sum()),
        "channels": int((~is_topic).sum()),
        "waiting": topics["depth"] + channels["depth"],
        **{name: topics[name] for name in ("messages", "in_rate", "byte_rate")},
        **{name: channels[name] for name in ("in_flight", "deferred", "clients", "out_rate")},
        **{name: channels[name] for name in ("requeue_rate", "timeout_rate")},
    }


def total(rates: Iterable[float | None]) -> float | None:
    """The sum of the known rates; None if there are rates but none is known."""
    every = [*rates]
    known = [rate for rate in every if rate is not None]
    return sum(known) if known or not every else None


# Lists

LIMIT_MAX: Final = 1000
LIMIT: Final = 50
BY_NAME: Final = "name"


class ListPage(NamedTuple, Generic[RowT]):
    """A page of a list.

    Attributes:
        total: number of rows that match the filter.
        offset, limit: the requested part of them.
    """

    rows: tuple[RowT, ...]
    total: int
    offset: int
    limit: int


def page_of(
    rows: Sequence[RowT], *, offset: int = 0, limit: int = LIMIT, **wanted: str
) -> ListPage[RowT]:
    """Get a page of a list: `limit` rows after the first `offset`; `wanted`: as in `in_order`.

    Raises:
        ValueError: the column or state does not exist.
    """
    found = in_order(rows, **wanted)
    return ListPage(tuple(found[offset : offset + limit]), len(found), offset, limit)


def in_order(
    rows: Sequence[RowT], *, sort: str = BY_NAME, filter: str = "", topic: str = "", state: str = ""
) -> list[RowT]:
    """All rows that match a filter, sorted.

    Args:
        rows: rows with a `text` that filters search.
        sort: a field of the rows, or `name` for the order that they have; with `-` in front, the
            largest first.
        filter: only rows whose text contains this.
        topic, state: only channels of this topic, in this state.

    Raises:
        ValueError: the column or state does not exist.
    """
    name, descends, wanted = sort.removeprefix("-"), sort.startswith("-"), filter.lower()
    if name != BY_NAME and rows and not hasattr(rows[0], name):
        fields = sorted(getattr(rows[0], "__struct_fields__", ()))
        raise ValueError(f"sort must be one of {', '.join((BY_NAME, *fields))}")
    if state and state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}")
    every: list[Any] = [
        row
        for row in list[Any](rows)
        if (not state or row.state == state)
        and (not topic or row.topic == topic)
        and (not wanted or wanted in row.text.lower())
    ]
    if name == BY_NAME:
        return every[::-1] if descends else every

    def place(row: Any) -> Any:
        value = getattr(row, name)
        if isinstance(value, tuple):
            return len(value)  # a column of lists is sorted by their length
        # Worse states come later.
        return STATES.index(value) if name == "state" and value in STATES else value

    known = [row for row in every if getattr(row, name) is not None]
    unknown = [row for row in every if getattr(row, name) is None]
    return sorted(known, key=place, reverse=descends) + unknown
