"""What is going on in a cluster, from two looks at its nsqds: a row a channel.

1. A rate is the growth of a counter between two answers of one nsqd, by the time between them. An
   nsqd that was started anew in between, or answered only once, adds nothing to it; where no nsqd
   adds anything the rate is unknown: None.
2. A channel's figures are summed over all nsqds that answered. A topic without a channel, or with
   messages that no channel has, has a row of its own, whose channel is "".
3. How many messages were finished is what sparq's nsqd says; Go's has no such counter: there it is
   what is no longer there of those that came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparq.client.reasons import one_line
from sparq.protocol.names import is_valid_name

Key = tuple[str, str]
"""Topic and channel; the topic itself has the channel ""."""


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
    )


def _number(of: Mapping[str, Any], key: str) -> int:
    value = of[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{key} is no number")
    return value


@dataclass(slots=True)
class Row:
    """One channel of the cluster, or a topic itself; rates are a second, None while unknown."""

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

    @property
    def lag_seconds(self) -> float | None:
        """For how long what waits has waited if the rate stays (Little's law): what is there, by
        the rate at which it is finished. Infinite where none is, None while that is unknown.
        """
        waiting = self.depth + self.in_flight
        if not waiting:
            return 0.0
        if self.out_rate is None or not self.channel:
            return None
        return waiting / self.out_rate if self.out_rate else math.inf

    def take(self, now: Counts, before: Counts | None, seconds: float) -> None:
        """Add one nsqd's part."""
        self.depth += now.depth
        self.in_flight += now.in_flight
        self.deferred += now.deferred
        self.clients += now.clients
        self.is_paused |= now.is_paused
        if before is None or seconds <= 0:
            return
        for name, counter in RATES.items() if self.channel else (("in_rate", "messages"),):
            grown = max(0, getattr(now, counter) - getattr(before, counter)) / seconds
            setattr(self, name, (getattr(self, name) or 0.0) + grown)


RATES = {
    "in_rate": "messages",
    "out_rate": "finished",
    "requeue_rate": "requeued",
    "timeout_rate": "timed_out",
}
"""Each rate of a row, and the counter that it is the growth of."""


@dataclass(slots=True)
class Overview:
    """The cluster: its rows, by topic and channel, and what they come to.

    ``in_rate`` is that of the topics: what was published, however many channels each has.
    """

    rows: list[Row] = field(default_factory=list)
    nsqds: int = 0
    topics: int = 0
    in_rate: float | None = None
    ill: dict[str, str] = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """The sum of a figure over all rows; None where it is unknown for each of them."""
        known = [value for row in self.rows if (value := getattr(row, name)) is not None]
        return sum(known) if known else None


def overview(before: Mapping[str, Look], now: Mapping[str, Look]) -> Overview:
    """What goes on between two looks at the cluster; each is by the nsqd's address."""
    rows: dict[Key, Row] = {}
    for address, after in now.items():
        earlier = before.get(address)
        if earlier is None or earlier.start_time != after.start_time:
            earlier = Look(after.at_seconds, after.start_time, {})
        for key, counts in after.counts.items():
            row = rows.setdefault(key, Row(*key))
            row.take(counts, earlier.counts.get(key), after.at_seconds - earlier.at_seconds)
    topics = [row for row in rows.values() if not row.channel]
    rates = [row.in_rate for row in topics if row.in_rate is not None]
    read = {row.topic for row in rows.values() if row.channel}
    return Overview(
        [
            row
            for _, row in sorted(rows.items())
            if row.channel or row.depth or row.topic not in read
        ],
        len(now),
        len(topics),
        sum(rates) if rates else None,
        {address: each.health for address, each in now.items() if each.health != "OK"},
    )
