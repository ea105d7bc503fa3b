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

RATES: Final = {
    "in_rate": "message_count",
    "out_rate": "finished",
    "requeue_rate": "requeue_count",
    "timeout_rate": "timeout_count",
}
"""Each rate of a row, and the counter that it is computed from."""

Key = tuple[str, str]
"""Topic and channel; for the topic itself the channel is ""."""


class Severity(NamedTuple):
    """How bad the state of a topic or channel is, from 0, and the words for that state."""

    severity: int
    words: str


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
        if self.channel:
            lag = self.lag_seconds
            words = state_of(
                topic_paused=self.topic_paused,
                gone=bool(self.gone),
                paused=self.is_paused,
                clients=self.clients,
                readers=self.readers,
                unfinished=self.unfinished,
                idle_seconds=self.idle_seconds or 0.0,
                lag_seconds=math.nan if lag is None else lag,
            )
        else:
            words = "paused" if self.is_paused else "ok" if self.has_channels else "no channel"
            if self.gone:
                words = GONE if words == "ok" else f"{words}, {GONE}"
        first = words.partition(",")[0]
        return Severity(severity(SAME.get(first, first)) + bool(self.gone), words)


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
        return _sum_known([getattr(row, name) for row in self.rows])


def _sum_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def overview(
    before: Mapping[str, NsqdSample],
    now: Mapping[str, NsqdSample],
    lost: Mapping[str, NsqdSample],
    at_seconds: float,
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
        _add(rows, before.get(address), after)
    gone = {}
    for address, last in lost.items():
        if last.stats.was_drained:
            continue
        for key in last.counts:
            row = rows.setdefault(key, OverviewRow(*key, nsqds=0))
            row.gone = (*row.gone, address)
        counts = last.counts.values()
        gone[address] = GoneNsqd(
            at_seconds - last.at_seconds,
            sum(each.depth for each in counts),
            sum(each.in_flight_count for each in counts),
            sum(each.deferred_count for each in counts),
        )
    topics = [row for row in rows.values() if not row.channel]
    read = {row.topic for row in rows.values() if row.channel}
    for row in topics:
        row.has_channels = row.topic in read
    return Overview(
        # Channels, and topics that have no channel or hold messages.
        [row for _, row in sorted(rows.items()) if row.depth or not row.has_channels],
        len(now),
        len(topics),
        _sum_known([row.in_rate for row in topics]),
        {
            address: one_line(f"{stats.state}: {stats.health}")
            for address, stats in ((address, sample.stats) for address, sample in now.items())
            if "disk" in stats.state
        },
        gone,
        frozenset(lost.keys() - gone.keys()),
    )


def _add(
    rows: dict[Key, OverviewRow],
    before: NsqdSample | None,
    now: NsqdSample,
    wanted: Key | None = None,
) -> None:
    """Add the figures of one nsqd that answered to the rows: all of them, or one."""
    # After a restart the counters begin at 0: the difference to those before would be no rate.
    if before is None or before.stats.start_time != now.stats.start_time:
        before = NsqdSample(now.at_seconds, now.stats, {})
    seconds = now.at_seconds - before.at_seconds
    for key, each in now.counts.items():
        if wanted not in (None, key):
            continue
        row = rows.setdefault(key, OverviewRow(*key, nsqds=0))
        row.nsqds += 1
        row.depth += each.depth
        row.in_flight += each.in_flight_count
        row.deferred += each.deferred_count
        row.clients += each.client_count
        # A Spark query is not a client, and holds the channel only while it reads.
        row.readers += bool(each.range_reader or each.range_query)
        row.ages = (*row.ages, each.oldest_waiting_seconds)
        row.is_paused |= each.paused
        row.topic_paused |= bool(row.channel) and now.counts[row.topic, ""].paused
        earlier = before.counts.get(key)
        if earlier is None or seconds <= 0:
            continue
        for name, counter in RATES.items():
            if row.channel or name == "in_rate":
                # A topic or channel that was deleted and created again counts from 0.
                grown = max(0, getattr(each, counter) - getattr(earlier, counter)) / seconds
                setattr(row, name, (getattr(row, name) or 0.0) + grown)


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
        busy_at = {}
        for row in seen.rows:
            busy = self._busy_at.get(row.key, at_seconds)
            if row.out_rate is None or row.out_rate > 0 or not row.unfinished:
                busy = at_seconds
            busy_at[row.key] = busy
            row.idle_seconds = at_seconds - busy or None
        self._busy_at = busy_at
        return seen

    def dismiss_gone(self) -> None:
        """Drop the figures of nsqds that do not answer now."""
        self._gone.clear()

    def parts(self, key: Key) -> list[ChannelPart]:
        """Return a channel's row for each nsqd that has it, by address; gone nsqds are marked."""
        found = []
        for samples, is_gone in ((self._now, False), (self._gone, True)):
            for address, sample in samples.items():
                rows: dict[Key, OverviewRow] = {}
                _add(rows, None if is_gone else self._before.get(address), sample, key)
                found += [ChannelPart(address, row, is_gone) for row in rows.values()]
        return sorted(found, key=lambda part: part.address)
