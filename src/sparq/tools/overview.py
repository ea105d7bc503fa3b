"""The state of a cluster from two samples of its nsqds: a row for each channel.

1. A rate is the growth of a counter between two responses of one nsqd, divided by the time between
   them. An nsqd that was restarted in between, or answered only once, adds nothing to it; if no
   nsqd adds anything, the rate is unknown: None.
2. A channel's figures are summed over all nsqds that answered. A topic without a channel, or with
   messages that are in no channel, has a row of its own, whose channel is "".
3. An nsqd that no longer answers is gone: `OverviewRow.gone` names it, and its last figures are
   kept apart from the sums (`Overview.gone`), until it answers again or the user removes it. One
   that was drained before, with nothing left, is no alarm.
4. A channel has been idle since the last sample in which it had finished a message, or in which
   none was unfinished, or no rate was known.
5. Lags and states are those of `cluster.figures`. A topic without a channel has the state `no
   channel`. The state is `nsqd gone` if no nsqd that has the channel answers any more; if only
   some of them do not answer, `nsqd gone` follows the state, or replaces `ok`. `topic paused`
   follows the state of a channel whose topic is paused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparq.cluster.figures import ChannelFigures, NsqdFigures, lag_of, state_of
from sparq.protocol.names import one_line

ORDER: Final = ("ok", "paused", "behind", "no channel", "no consumers", "stuck")
"""The states, the worst last."""

GONE: Final = "nsqd gone"
SAME: Final = {"topic paused": "paused", GONE: "ok"}
"""How bad words are that replace `ok`."""

GONE_MAX: Final = 1000
"""Maximum number of gone nsqds for which the last figures are kept."""

Key = tuple[str, str]
"""Topic and channel; for the topic itself the channel is ""."""


class Severity(NamedTuple):
    """How bad the state of a topic or channel is, from 0, and the words for that state."""

    severity: int
    words: str

    @property
    def is_stuck(self) -> bool:
        """Whether the consumers finish nothing."""
        return self.words.startswith("stuck")


def severity(state: str) -> int:
    """Return how bad a state is; one more if an nsqd is gone, too."""
    return 2 * ORDER.index(state)


@dataclass(frozen=True, slots=True)
class NsqdSample:
    """One sample of one nsqd.

    Attributes:
        at_seconds: when it was taken, on the monotonic clock.
        counts: figures of its channels, and of its topics themselves.
    """

    at_seconds: float
    stats: NsqdFigures
    counts: Mapping[Key, ChannelFigures]


def sample_of(stats: NsqdFigures, at_seconds: float) -> NsqdSample:
    """Return a sample of an nsqd's figures."""
    counts = {}
    for topic in stats.topics:
        counts[topic.topic_name, ""] = ChannelFigures(
            channel_name="",
            depth=topic.depth,
            message_count=topic.message_count,
            paused=topic.paused,
        )
        for channel in topic.channels:
            counts[topic.topic_name, channel.channel_name] = channel
    return NsqdSample(at_seconds, stats, counts)


@dataclass(slots=True)
class OverviewRow:
    """One channel of the cluster, or a topic itself; rates are per second, None while unknown.

    Attributes:
        topic_paused: whether its topic is paused: the channel gets no new messages.
        readers: Spark queries that read it; they do not count as clients.
        ages: the ages of the oldest waiting message that the nsqds report.
        idle_seconds: how long messages have been unfinished without one being finished; None: not
            idle.
        nsqds: the number of nsqds that answered and have it.
        gone: nsqds that have it and no longer answer.
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
    topic_paused: bool = False
    readers: int = 0
    ages: tuple[float | None, ...] = ()
    idle_seconds: float | None = None
    nsqds: int = 1
    gone: tuple[str, ...] = ()
    has_channels: bool = False

    @property
    def key(self) -> Key:
        """Topic and channel."""
        return self.topic, self.channel

    @property
    def unfinished(self) -> int:
        """Messages waiting or in flight."""
        return self.depth + self.in_flight

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest waiting message; None: unknown, or it is a topic's own row."""
        lag = lag_of(self.ages, self.unfinished, self.out_rate)
        return None if math.isnan(lag) or not self.channel or not self.nsqds else lag

    @property
    def state(self) -> Severity:
        """The state, with its words."""
        if not self.nsqds:
            return Severity(2 * len(ORDER), GONE)
        words = self._own_words() if not self.channel else self._channel_words()
        first = words.partition(",")[0]
        return Severity(severity(SAME.get(first, first)) + bool(self.gone), words)

    def _own_words(self) -> str:
        state = "paused" if self.is_paused else "ok" if self.has_channels else "no channel"
        return state if not self.gone else GONE if state == "ok" else f"{state}, {GONE}"

    def _channel_words(self) -> str:
        lag = self.lag_seconds
        return state_of(
            topic_paused=self.topic_paused,
            gone=bool(self.gone),
            paused=self.is_paused,
            clients=self.clients,
            readers=self.readers,
            unfinished=self.unfinished,
            idle_seconds=self.idle_seconds or 0.0,
            lag_seconds=math.nan if lag is None else lag,
        )

    def take(self, now: ChannelFigures, before: ChannelFigures | None, seconds: float) -> None:
        """Add the figures of one nsqd that answered."""
        self.nsqds += 1
        self.depth += now.depth
        self.in_flight += now.in_flight_count
        self.deferred += now.deferred_count
        self.clients += now.client_count
        # A Spark query is not a client, and holds the channel only while it reads.
        self.readers += bool(now.range_reader or now.range_query)
        self.ages = (*self.ages, now.oldest_waiting_seconds)
        self.is_paused |= now.paused
        if before is None or seconds <= 0:
            return
        for name, counter in RATES.items() if self.channel else (("in_rate", "message_count"),):
            # A topic or channel that was deleted and created again counts from 0.
            grown = max(0, getattr(now, counter) - getattr(before, counter)) / seconds
            setattr(self, name, (getattr(self, name) or 0.0) + grown)


RATES: Final = {
    "in_rate": "message_count",
    "out_rate": "finished",
    "requeue_rate": "requeue_count",
    "timeout_rate": "timeout_count",
}
"""Each rate of a row, and the counter that it is computed from."""


class GoneNsqd(NamedTuple):
    """The last figures of an nsqd that no longer answers.

    ``seconds`` is their age; the figures are sums over its topics and channels.
    """

    seconds: float
    depth: int
    in_flight: int
    deferred: int


@dataclass(slots=True)
class Overview:
    """The cluster: its rows by topic and channel, and their sums.

    ``in_rate`` is the sum over the topics: the published messages, however many channels each has.
    ``ill`` says what is wrong with the disks of nsqds that answer, by address. ``gone`` holds the
    nsqds that answered before and do not now, and ``drained`` those that were drained on purpose.
    """

    rows: list[OverviewRow] = field(default_factory=list)
    nsqds: int = 0
    topics: int = 0
    in_rate: float | None = None
    ill: dict[str, str] = field(default_factory=dict)
    gone: dict[str, GoneNsqd] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()

    def total(self, name: str) -> float | None:
        """Return the sum of a figure over all rows; None if it is unknown for each of them."""
        known = [value for row in self.rows if (value := getattr(row, name)) is not None]
        return sum(known) if known else None


def overview(
    before: Mapping[str, NsqdSample],
    now: Mapping[str, NsqdSample],
    lost: Mapping[str, NsqdSample] | None = None,
    at_seconds: float = 0.0,
) -> Overview:
    """Compare two samples of the cluster; each maps an nsqd's address to its `NsqdSample`.

    Args:
        before: the earlier sample.
        now: the nsqds that answered now.
        lost: the last samples of nsqds that do not answer now.
        at_seconds: the time now, to compute how long those are gone.
    """
    rows: dict[Key, OverviewRow] = {}
    for address, after in now.items():
        _take(rows, before.get(address), after)
    lost = lost or {}
    gone = {address: last for address, last in lost.items() if not last.stats.was_drained}
    for address, last in gone.items():
        for key in last.counts:
            row = rows.setdefault(key, OverviewRow(*key, nsqds=0))
            row.gone = (*row.gone, address)
    topics = [row for row in rows.values() if not row.channel]
    rates = [row.in_rate for row in topics if row.in_rate is not None]
    return Overview(
        _worth_showing(rows),
        len(now),
        len(topics),
        sum(rates) if rates else None,
        {at: one_line(f"{s.state}: {s.health}") for at, s in _stats(now) if "disk" in s.state},
        {address: gone_since(last, at_seconds) for address, last in gone.items()},
        frozenset(lost.keys() - gone.keys()),
    )


def _stats(now: Mapping[str, NsqdSample]) -> list[tuple[str, NsqdFigures]]:
    return [(address, sample.stats) for address, sample in now.items()]


def row_of(key: Key, before: NsqdSample | None, now: NsqdSample) -> OverviewRow | None:
    """Return a channel's row from one nsqd alone; None if it does not have the channel."""
    rows: dict[Key, OverviewRow] = {}
    _take(rows, before, now, {key})
    return rows.get(key)


def _take(
    rows: dict[Key, OverviewRow],
    before: NsqdSample | None,
    now: NsqdSample,
    wanted: set[Key] | None = None,
) -> None:
    """Add one nsqd's figures to the rows, all or those wanted."""
    # After a restart the counters begin at 0: the difference to those before would be no rate.
    if before is None or before.stats.start_time != now.stats.start_time:
        before = NsqdSample(now.at_seconds, now.stats, {})
    for key in now.counts if wanted is None else wanted & now.counts.keys():
        row = rows.setdefault(key, OverviewRow(*key, nsqds=0))
        row.take(now.counts[key], before.counts.get(key), now.at_seconds - before.at_seconds)
        row.topic_paused |= bool(key[1]) and now.counts[key[0], ""].paused


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
        sum(each.in_flight_count for each in counts),
        sum(each.deferred_count for each in counts),
    )


class ChannelPart(NamedTuple):
    """One nsqd's part of a channel; ``is_gone``: the figures are its last ones."""

    address: str
    row: OverviewRow
    is_gone: bool


class SampleHistory:
    """The samples so far."""

    def __init__(self) -> None:
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

    def dismiss_gone(self) -> None:
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
            if row.out_rate is None or row.out_rate > 0 or not row.unfinished or earlier is None:
                earlier = at_seconds
            busy_at[row.key] = earlier
            row.idle_seconds = at_seconds - earlier or None
        self._busy_at = busy_at
