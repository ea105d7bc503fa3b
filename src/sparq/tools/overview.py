"""What is going on in a cluster, from two looks at its nsqds: a row for each channel.

1. A rate is the growth of a counter between two answers of one nsqd, by the time between them. An
   nsqd that was started anew in between, or answered only once, adds nothing to it; where no nsqd
   adds anything the rate is unknown: None.
2. A channel's figures are summed over all nsqds that answered. A topic without a channel, or with
   messages that no channel has, has a row of its own, whose channel is "".
3. How many messages were finished is what sparq's nsqd says; Go's has no such counter: there it is
   what is no longer there of those that came.
4. An nsqd that answers no more keeps its last figures in the sums of what waits (`Row.gone` names
   it, `Row.stranded` counts its part), until it answers again or somebody has it forgotten; also
   when no nsqlookupd lists it any more. It adds no rate and no clients: those are disconnected.
5. A channel has been idle since the last look at which it had finished something, or at which
   nothing waited, or no rate was known.
6. What is said of a channel in a word or two is the worst of what is true:

| words | true when |
|---|---|
| `stuck` | consumers are connected, messages wait, and none was finished for `STUCK_SECONDS` |
| `no consumers` | nobody is connected to read the channel |
| `no channel` | the topic has no channel: its messages wait for the first one |
| `behind` | messages are finished, but what waits is older than `BEHIND_SECONDS`, or takes longer |
| `paused` | somebody paused it |
| `ok` | none of these |

`nsqd gone` stands there alone when no nsqd that has the channel answers any more, and after the
word when some of them do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparq.client.reasons import one_line
from sparq.protocol.names import is_valid_name

STUCK_SECONDS: Final = 10.0
"""A handler that takes five seconds a message is slow, and not stuck."""

READER_STUCK_SECONDS: Final = 120.0
"""A Spark query finishes nothing between two of its batches, which may be a minute apart."""

BEHIND_SECONDS: Final = 60.0
GONE: Final = "nsqd gone"
GONE_MAX: Final = 1000
"""nsqds that are gone whose last figures are kept, at most."""

Key = tuple[str, str]
"""Topic and channel; the topic itself has the channel ""."""


class State(NamedTuple):
    """How bad it is, from 0, and the words for it."""

    severity: int
    words: str


OK: Final = State(0, "ok")
PAUSED: Final = State(2, "paused")
BEHIND: Final = State(4, "behind")
NO_CHANNEL: Final = State(6, "no channel")
NO_CONSUMERS: Final = State(8, "no consumers")
STUCK: Final = State(10, "stuck")
ALL_GONE: Final = State(12, GONE)


@dataclass(frozen=True, slots=True)
class Counts:
    """One channel, or a topic itself, at one nsqd at one moment."""

    messages: int
    depth: int
    finished: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    is_paused: bool = False
    readers: int = 0
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What one nsqd said.

    Attributes:
        at_seconds: when, on the monotonic clock.
        start_time: when it was started, in seconds since 1970.
        counts: of its topics and channels.
        health: "OK", or what it complains of.
    """

    at_seconds: float
    start_time: int
    counts: Mapping[Key, Counts]
    health: str = "OK"


def look(stats: Mapping[str, Any], at_seconds: float) -> Look:
    """Read an nsqd's `/stats`; names that NSQ does not allow are left out.

    Raises:
        ValueError: it has another form.
    """
    try:
        counts = dict(_counts(stats["topics"] or ()))
        health = one_line(str(stats["health"]))
        return Look(at_seconds, _number(stats, "start_time"), counts, health)
    except (KeyError, TypeError) as error:
        raise ValueError(f"figures that cannot be read: {error!r}") from None


def _counts(topics: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Key, Counts]]:
    for topic in topics:
        name = topic["topic_name"]
        if not is_valid_name(name):
            continue
        paused = topic["paused"] is True
        messages, depth = _number(topic, "message_count"), _number(topic, "depth")
        yield (name, ""), Counts(messages, depth, is_paused=paused)
        for channel in topic["channels"] or ():
            if is_valid_name(channel["channel_name"]):
                yield (name, channel["channel_name"]), _channel(channel)


def _channel(channel: Mapping[str, Any]) -> Counts:
    messages, depth = _number(channel, "message_count"), _number(channel, "depth")
    in_flight, deferred = _number(channel, "in_flight_count"), _number(channel, "deferred_count")
    known = "finish_count" in channel
    return Counts(
        messages,
        depth,
        _number(channel, "finish_count") if known else messages - depth - in_flight - deferred,
        in_flight,
        deferred,
        _number(channel, "requeue_count"),
        _number(channel, "timeout_count"),
        _number(channel, "client_count"),
        channel["paused"] is True,
        # A Spark query is no client, and holds the channel only while it reads.
        int(bool(channel.get("range_reader") or channel.get("range_query"))),
        _seconds(channel, "oldest_waiting_seconds"),
    )


def _seconds(of: Mapping[str, Any], key: str) -> float | None:
    """Seconds that an nsqd may say, or not: Go's does not."""
    value = of.get(key)
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def _number(of: Mapping[str, Any], key: str) -> int:
    value = of[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{key} is no number")
    return value


@dataclass(slots=True)
class Row:
    """One channel of the cluster, or a topic itself; rates are a second, None while unknown.

    Attributes:
        readers: Spark queries that read it; they are no clients.
        oldest_seconds: age of the oldest message that waits; None where no nsqd says so.
        idle_seconds: for how long messages have waited and none was finished; None: not so.
        patience_seconds: how much of that makes a channel stuck.
        nsqds: how many nsqds answered and have it.
        gone: nsqds that have it and answer no more.
        stranded: messages that wait on them, by their last figures; part of what waits.
        has_channels: of a topic's own row, whether the topic has a channel.
    """

    topic: str
    channel: str = ""
    in_rate: float | None = None
    out_rate: float | None = None
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeue_rate: float | None = None
    timeout_rate: float | None = None
    clients: int = 0
    is_paused: bool = False
    readers: int = 0
    oldest_seconds: float | None = None
    idle_seconds: float | None = None
    patience_seconds: float = STUCK_SECONDS
    nsqds: int = 1
    gone: tuple[str, ...] = ()
    stranded: int = 0
    has_channels: bool = False

    @property
    def key(self) -> Key:
        """Topic and channel."""
        return self.topic, self.channel

    @property
    def waiting(self) -> int:
        """Messages that wait or are in flight at nsqds that answer."""
        return self.depth + self.in_flight - self.stranded

    @property
    def lag_seconds(self) -> float | None:
        """For how long what waits has waited if the rate stays (Little's law): what is there, by
        the rate at which it is finished. Infinite where none is, None while that is unknown.
        """
        if not self.waiting:
            return 0.0
        if self.out_rate is None or not self.channel:
            return None
        return self.waiting / self.out_rate if self.out_rate else math.inf

    @property
    def state(self) -> State:
        """What is to be said of it in a word."""
        if not self.nsqds:
            return ALL_GONE
        state = self._state_of_what_answers()
        if not self.gone:
            return state
        return State(state.severity + 1, GONE if state is OK else f"{state.words}, {GONE}")

    def _state_of_what_answers(self) -> State:
        if self.is_paused:
            return PAUSED
        if not self.channel:
            return OK if self.has_channels else NO_CHANNEL
        if not self.clients and not self.readers:
            return NO_CONSUMERS
        patience = READER_STUCK_SECONDS if self.readers else self.patience_seconds
        if self.waiting and self.idle_seconds is not None and self.idle_seconds >= patience:
            return STUCK
        waited = max(self.oldest_seconds or 0.0, self.lag_seconds or 0.0)
        return BEHIND if waited >= BEHIND_SECONDS and self.out_rate else OK

    def take(self, now: Counts, before: Counts | None, seconds: float) -> None:
        """Add the part of one nsqd that answered."""
        self._take_messages(now, now.oldest_seconds)
        self.nsqds += 1
        self.clients += now.clients
        self.readers += now.readers
        self.is_paused |= now.is_paused
        if before is None or seconds <= 0:
            return
        for name, counter in RATES.items() if self.channel else (("in_rate", "messages"),):
            grown = max(0, getattr(now, counter) - getattr(before, counter)) / seconds
            setattr(self, name, (getattr(self, name) or 0.0) + grown)

    def keep(self, address: str, last: Counts, seconds: float) -> None:
        """Add the part of an nsqd that is gone, as it was so many seconds ago."""
        age = last.oldest_seconds
        self._take_messages(last, None if age is None else age + seconds)
        self.gone = (*self.gone, address)
        self.stranded += last.depth + last.in_flight

    def _take_messages(self, counts: Counts, oldest_seconds: float | None) -> None:
        self.depth += counts.depth
        self.in_flight += counts.in_flight
        self.deferred += counts.deferred
        known = [age for age in (self.oldest_seconds, oldest_seconds) if age is not None]
        self.oldest_seconds = max(known, default=None)


RATES = {
    "in_rate": "messages",
    "out_rate": "finished",
    "requeue_rate": "requeued",
    "timeout_rate": "timed_out",
}
"""Each rate of a row, and the counter that it is the growth of."""


class Gone(NamedTuple):
    """What an nsqd that answers no more had, when it answered last.

    ``seconds`` is how long ago that was; the figures are sums over its channels.
    """

    seconds: float
    depth: int
    in_flight: int
    deferred: int


@dataclass(slots=True)
class Overview:
    """The cluster: its rows, by topic and channel, and what they come to.

    ``in_rate`` is that of the topics: what was published, however many channels each has.
    ``gone`` are the nsqds that answered before and do not now, by their address.
    """

    rows: list[Row] = field(default_factory=list)
    nsqds: int = 0
    topics: int = 0
    in_rate: float | None = None
    ill: dict[str, str] = field(default_factory=dict)
    gone: dict[str, Gone] = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """The sum of a figure over all rows; None where it is unknown for each of them."""
        known = [value for row in self.rows if (value := getattr(row, name)) is not None]
        return sum(known) if known else None


def overview(
    before: Mapping[str, Look],
    now: Mapping[str, Look],
    gone: Mapping[str, Look] | None = None,
    at_seconds: float = 0.0,
) -> Overview:
    """What goes on between two looks at the cluster; each look is by the nsqd's address.

    Args:
        before: the earlier looks.
        now: what answered now.
        gone: the last looks at nsqds that do not answer now.
        at_seconds: the time now, for how long those are gone.
    """
    rows: dict[Key, Row] = {}
    for address, after in now.items():
        _take(rows, before.get(address), after)
    for address, last in (gone or {}).items():
        for key, counts in last.counts.items():
            row = rows.setdefault(key, Row(*key, nsqds=0))
            row.keep(address, counts, at_seconds - last.at_seconds)
    topics = [row for row in rows.values() if not row.channel]
    rates = [row.in_rate for row in topics if row.in_rate is not None]
    return Overview(
        _worth_showing(rows),
        len(now),
        len(topics),
        sum(rates) if rates else None,
        {address: each.health for address, each in now.items() if each.health != "OK"},
        {address: gone_since(last, at_seconds) for address, last in (gone or {}).items()},
    )


def row_of(key: Key, before: Look | None, now: Look) -> Row | None:
    """A channel's row from one nsqd alone; None where that does not have it."""
    if key not in now.counts:
        return None
    rows: dict[Key, Row] = {}
    _take(rows, before, Look(now.at_seconds, now.start_time, {key: now.counts[key]}))
    return rows[key]


def _take(rows: dict[Key, Row], before: Look | None, now: Look) -> None:
    """Add one nsqd's figures to the rows."""
    if before is None or before.start_time != now.start_time:
        before = Look(now.at_seconds, now.start_time, {})
    for key, counts in now.counts.items():
        row = rows.setdefault(key, Row(*key, nsqds=0))
        row.take(counts, before.counts.get(key), now.at_seconds - before.at_seconds)


def _worth_showing(rows: dict[Key, Row]) -> list[Row]:
    """Each channel, and a topic that has none or that holds messages itself; in order."""
    read = {row.topic for row in rows.values() if row.channel}
    found = []
    for _, row in sorted(rows.items()):
        row.has_channels = not row.channel and row.topic in read
        if row.channel or row.depth or not row.has_channels:
            found.append(row)
    return found


def gone_since(last: Look, at_seconds: float) -> Gone:
    """What is to be said of an nsqd that is gone."""
    counts = last.counts.values()
    return Gone(
        at_seconds - last.at_seconds,
        sum(each.depth for each in counts),
        sum(each.in_flight for each in counts),
        sum(each.deferred for each in counts),
    )


class Part(NamedTuple):
    """One nsqd's part of a channel; ``is_gone``: by its last figures."""

    address: str
    row: Row
    is_gone: bool


class History:
    """The looks so far.

    Args:
        patience_seconds: for how long a channel may finish nothing before it is called stuck.
    """

    def __init__(self, patience_seconds: float = STUCK_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._before: dict[str, Look] = {}
        self._now: dict[str, Look] = {}
        self._gone: dict[str, Look] = {}
        self._busy_at: dict[Key, float] = {}

    def add(self, now: Mapping[str, Look], at_seconds: float) -> Overview:
        """Take what the nsqds said now; what that shows, with rates since their last answer.

        Args:
            now: each nsqd that answered, by its address.
            at_seconds: the time now, on the monotonic clock.
        """
        before = {**self._gone, **self._now}
        gone = {address: last for address, last in before.items() if address not in now}
        latest = sorted(gone, key=lambda address: gone[address].at_seconds)[-GONE_MAX:]
        self._before, self._now = before, dict(now)
        self._gone = {address: gone[address] for address in sorted(latest)}
        seen = overview(before, now, self._gone, at_seconds)
        self._note_idle(seen, at_seconds)
        return seen

    def forget_gone(self) -> None:
        """Keep no figures of nsqds that do not answer now."""
        self._gone.clear()

    def parts(self, key: Key) -> list[Part]:
        """A channel's row for each nsqd that has it, by address; those that are gone marked."""
        found = []
        for address, now in self._now.items():
            row = row_of(key, self._before.get(address), now)
            if row is not None:
                found.append(Part(address, row, False))
        for address, last in self._gone.items():
            row = row_of(key, None, last)
            if row is not None:
                found.append(Part(address, row, True))
        return sorted(found)

    def _note_idle(self, seen: Overview, at_seconds: float) -> None:
        busy_at = {}
        for row in seen.rows:
            earlier = self._busy_at.get(row.key)
            if row.out_rate is None or row.out_rate > 0 or not row.waiting or earlier is None:
                earlier = at_seconds
            busy_at[row.key] = earlier
            row.patience_seconds = self._patience_seconds
            row.idle_seconds = at_seconds - earlier or None
        self._busy_at = busy_at
