"""The state of a cluster from two samples of its nsqds: a row for each channel.

1. A rate is the growth of a counter between two responses of one nsqd, divided by the time between
   them. An nsqd that was restarted in between, or answered only once, adds nothing to it; if no
   nsqd adds anything, the rate is unknown: None.
2. A channel's figures are summed over all nsqds that answered. A topic without a channel, or with
   messages that are in no channel, has a row of its own, whose channel is "".
3. sparq's nsqd reports how many messages were finished. Go's has no such counter: there it is the
   number of messages received minus those still there.
4. The last figures of an nsqd that no longer answers stay in the sums of waiting messages
   (`OverviewRow.gone` names it, `OverviewRow.stranded` counts its part), until it answers again or
   the user removes it; also if no nsqlookupd lists it any more. It adds no rate and no clients:
   those are disconnected.
5. A channel has been idle since the last sample in which it had finished a message, or in which no
   message waited, or no rate was known.
6. The state of a paused channel is `paused`; otherwise it is the worst of these that is true:

| words | true when |
|---|---|
| `stuck` | consumers are connected, messages wait, and none was finished for `STUCK_SECONDS` |
| `no consumers` | no consumer is connected to the channel |
| `no channel` | the topic has no channel: its messages wait for the first one |
| `behind` | messages are finished, but the oldest's age or the lag is at least `BEHIND_SECONDS` |
| `paused` | the channel was paused |
| `ok` | none of these |

The state is `nsqd gone` alone if no nsqd that has the channel answers any more. If only some of
them do not answer, `nsqd gone` follows the word, and replaces `ok`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparq.client.reasons import one_line
from sparq.cluster.cluster_stats import age_seconds, is_int64
from sparq.protocol.names import is_valid_name

STUCK_SECONDS: Final = 10.0
"""A handler that takes five seconds per message is slow, but not stuck."""

READER_STUCK_SECONDS: Final = 120.0
"""A Spark query finishes nothing between two of its batches, which may be a minute apart."""

BEHIND_SECONDS: Final = 60.0
GONE: Final = "nsqd gone"
GONE_MAX: Final = 1000
"""Maximum number of gone nsqds for which the last figures are kept."""

Key = tuple[str, str]
"""Topic and channel; for the topic itself the channel is ""."""


class Severity(NamedTuple):
    """How bad the state of a topic or channel is, from 0, and the words for that state."""

    severity: int
    words: str


OK: Final = Severity(0, "ok")
PAUSED: Final = Severity(2, "paused")
BEHIND: Final = Severity(4, "behind")
NO_CHANNEL: Final = Severity(6, "no channel")
NO_CONSUMERS: Final = Severity(8, "no consumers")
STUCK: Final = Severity(10, "stuck")
ALL_GONE: Final = Severity(12, GONE)


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures of one channel, or of a topic itself, at one nsqd at one moment."""

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
class NsqdSample:
    """One sample of one nsqd.

    Attributes:
        at_seconds: when it was taken, on the monotonic clock.
        start_time: when the nsqd was started, in seconds since 1970.
        counts: figures of its topics and channels.
        health: "OK", or the error that it reports.
    """

    at_seconds: float
    start_time: int
    counts: Mapping[Key, Counts]
    health: str = "OK"


def sample_of(stats: Mapping[str, Any], at_seconds: float) -> NsqdSample:
    """Parse an nsqd's `/stats`; names that NSQ does not allow are skipped.

    Raises:
        ValueError: it has another form.
    """
    try:
        counts = dict(_counts(stats["topics"] or ()))
        health = one_line(str(stats["health"]))
        return NsqdSample(at_seconds, _number(stats, "start_time"), counts, health)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"unreadable statistics: {error!r}") from None


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
        # A Spark query is not a client, and holds the channel only while it reads.
        int(bool(channel.get("range_reader") or channel.get("range_query"))),
        age_seconds(channel, "oldest_waiting_seconds"),
    )


def _number(of: Mapping[str, Any], key: str) -> int:
    value = of[key]
    if not is_int64(value):
        raise TypeError(f"{key} is not a number of 64 bits")
    return value


@dataclass(slots=True)
class OverviewRow:
    """One channel of the cluster, or a topic itself; rates are per second, None while unknown.

    Attributes:
        readers: Spark queries that read it; they do not count as clients.
        oldest_seconds: age of the oldest waiting message; None if no nsqd reports it.
        idle_seconds: how long messages have waited without one being finished; None: not idle.
        patience_seconds: the idle time after which the channel is stuck.
        nsqds: the number of nsqds that answered and have it.
        gone: nsqds that have it and no longer answer.
        stranded: messages waiting on those by their last figures; included in the sums.
        has_channels: for a topic's own row, whether the topic has a channel.
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
        """Messages waiting or in flight at nsqds that answer."""
        return self.depth + self.in_flight - self.stranded

    @property
    def lag_seconds(self) -> float | None:
        """Seconds that the waiting messages have waited, if the rate stays (Little's law).

        That is their number divided by the rate at which messages are finished. Infinite if none is
        finished; None while the rate is unknown.
        """
        if not self.waiting:
            return 0.0
        if self.out_rate is None or not self.channel:
            return None
        return self.waiting / self.out_rate if self.out_rate else math.inf

    @property
    def state(self) -> Severity:
        """The state, with its words."""
        if not self.nsqds:
            return ALL_GONE
        state = self._state_of_what_answers()
        if not self.gone:
            return state
        return Severity(state.severity + 1, GONE if state is OK else f"{state.words}, {GONE}")

    def _state_of_what_answers(self) -> Severity:
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
        """Add the figures of one nsqd that answered."""
        self._take_messages(now, now.oldest_seconds)
        self.nsqds += 1
        self.clients += now.clients
        self.readers += now.readers
        self.is_paused |= now.is_paused
        if before is None or seconds <= 0:
            return
        for name, counter in RATES.items() if self.channel else (("in_rate", "messages"),):
            # A topic or channel that was deleted and created again counts from 0.
            grown = max(0, getattr(now, counter) - getattr(before, counter)) / seconds
            setattr(self, name, (getattr(self, name) or 0.0) + grown)

    def keep(self, address: str, last: Counts, seconds: float) -> None:
        """Add the last figures of an nsqd that is gone, from this number of seconds ago."""
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
"""Each rate of a row, and the counter that it is computed from."""


class GoneNsqd(NamedTuple):
    """The last figures of an nsqd that no longer answers.

    ``seconds`` is their age; the figures are sums over its channels.
    """

    seconds: float
    depth: int
    in_flight: int
    deferred: int


@dataclass(slots=True)
class Overview:
    """The cluster: its rows by topic and channel, and their sums.

    ``in_rate`` is the sum over the topics: the published messages, however many channels each has.
    ``gone`` holds the nsqds that answered before and do not now, by address.
    """

    rows: list[OverviewRow] = field(default_factory=list)
    nsqds: int = 0
    topics: int = 0
    in_rate: float | None = None
    ill: dict[str, str] = field(default_factory=dict)
    gone: dict[str, GoneNsqd] = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """Return the sum of a figure over all rows; None if it is unknown for each of them."""
        known = [value for row in self.rows if (value := getattr(row, name)) is not None]
        return sum(known) if known else None


def overview(
    before: Mapping[str, NsqdSample],
    now: Mapping[str, NsqdSample],
    gone: Mapping[str, NsqdSample] | None = None,
    at_seconds: float = 0.0,
) -> Overview:
    """Compare two samples of the cluster; each maps an nsqd's address to its `NsqdSample`.

    Args:
        before: the earlier sample.
        now: the nsqds that answered now.
        gone: the last samples of nsqds that do not answer now.
        at_seconds: the time now, to compute how long those are gone.
    """
    rows: dict[Key, OverviewRow] = {}
    for address, after in now.items():
        _take(rows, before.get(address), after)
    for address, last in (gone or {}).items():
        for key, counts in last.counts.items():
            row = rows.setdefault(key, OverviewRow(*key, nsqds=0))
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


def row_of(key: Key, before: NsqdSample | None, now: NsqdSample) -> OverviewRow | None:
    """Return a channel's row from one nsqd alone; None if it does not have the channel."""
    if key not in now.counts:
        return None
    rows: dict[Key, OverviewRow] = {}
    _take(rows, before, NsqdSample(now.at_seconds, now.start_time, {key: now.counts[key]}))
    return rows[key]


def _take(rows: dict[Key, OverviewRow], before: NsqdSample | None, now: NsqdSample) -> None:
    """Add one nsqd's figures to the rows."""
    # After a restart the counters begin at 0: the difference to those before would be no rate.
    if before is None or before.start_time != now.start_time:
        before = NsqdSample(now.at_seconds, now.start_time, {})
    for key, counts in now.counts.items():
        row = rows.setdefault(key, OverviewRow(*key, nsqds=0))
        row.take(counts, before.counts.get(key), now.at_seconds - before.at_seconds)


def _worth_showing(rows: dict[Key, OverviewRow]) -> list[OverviewRow]:
    """Return, in order, the channels, and topics that have no channel or hold messages."""
    read = {row.topic for row in rows.values() if row.channel}
    found = []
    for _, row in sorted(rows.items()):
        row.has_channels = not row.channel and row.topic in read
        if row.channel or row.depth or not row.has_channels:
            found.append(row)
    return found


def gone_since(last: NsqdSample, at_seconds: float) -> GoneNsqd:
    """Sum up the last figures of an nsqd that is gone."""
    counts = last.counts.values()
    return GoneNsqd(
        at_seconds - last.at_seconds,
        sum(each.depth for each in counts),
        sum(each.in_flight for each in counts),
        sum(each.deferred for each in counts),
    )


class ChannelPart(NamedTuple):
    """One nsqd's part of a channel; ``is_gone``: the figures are its last ones."""

    address: str
    row: OverviewRow
    is_gone: bool


class SampleHistory:
    """The samples so far.

    Args:
        patience_seconds: how long a channel may finish nothing before it counts as stuck.
    """

    def __init__(self, patience_seconds: float = STUCK_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._before: dict[str, NsqdSample] = {}
        self._now: dict[str, NsqdSample] = {}
        self._gone: dict[str, NsqdSample] = {}
        self._busy_at: dict[Key, float] = {}

    def add(self, now: Mapping[str, NsqdSample], at_seconds: float) -> Overview:
        """Add a sample; return the overview with rates since each nsqd's last response.

        Args:
            now: each nsqd that answered, by its address.
            at_seconds: the time now, on the monotonic clock.
        """
        # With the gone ones: an nsqd that answers again has its rates since its last answer.
        before = {**self._gone, **self._now}
        gone = {address: last for address, last in before.items() if address not in now}
        latest = sorted(gone, key=lambda address: gone[address].at_seconds)[-GONE_MAX:]
        self._before, self._now = before, dict(now)
        self._gone = {address: gone[address] for address in sorted(latest)}
        seen = overview(before, now, self._gone, at_seconds)
        self._note_idle(seen, at_seconds)
        return seen

    def forget_gone(self) -> None:
        """Drop the figures of nsqds that do not answer now."""
        self._gone.clear()

    def parts(self, key: Key) -> list[ChannelPart]:
        """Return a channel's row for each nsqd that has it, by address; gone nsqds are marked."""
        found = []
        for address, now in self._now.items():
            row = row_of(key, self._before.get(address), now)
            if row is not None:
                found.append(ChannelPart(address, row, False))
        for address, last in self._gone.items():
            row = row_of(key, None, last)
            if row is not None:
                found.append(ChannelPart(address, row, True))
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
