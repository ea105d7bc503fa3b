"""The state of a cluster from samples of its nsqds: a row for each channel.

1. Rates, sums, lags and states are those of `cluster.rows` and `cluster.figures`.
2. A topic without a channel, or with messages that are in no channel, has a row of its own, whose
   channel is "".
3. An nsqd that no longer answers is gone: `OverviewRow.gone` names it, and its last figures are
   kept apart from the sums (`Overview.gone`), until it answers again or the user removes it. One
   that was drained before, with nothing left, is no alarm.
4. The state is `nsqd gone` if no nsqd that has the channel answers any more; if only some of them
   do not answer, `nsqd gone` follows the state, or replaces `ok`. A topic without a channel has the
   state `no channel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparq.cluster.figures import state_of
from sparq.cluster.rows import (
    Answer,
    ChannelPast,
    ChannelRow,
    Key,
    NodeStats,
    Reader,
    tables,
    total,
)
from sparq.protocol.names import one_line

ORDER: Final = ("ok", "paused", "behind", "no channel", "no consumers", "stuck", "nsqd gone")
"""The states, the worst last."""

GONE_MAX: Final = 1000
"""Maximum number of gone nsqds for which the last figures are kept."""


@dataclass(slots=True)
class OverviewRow:
    """One channel of the cluster, or a topic itself: figures of `ChannelRow`.

    Attributes:
        base: the state of the channel, or of the topic itself, at the nsqds that answer.
        nodes: the number of nsqds that answered and have it.
        gone: nsqds that have it and no longer answer.
    """

    topic: str
    channel: str = ""
    base: str = "ok"
    in_rate: float | None = None
    out_rate: float | None = None
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    lag_seconds: float | None = None
    requeue_rate: float | None = None
    timeout_rate: float | None = None
    clients: int = 0
    paused: bool = False
    topic_paused: bool = False
    unfinished_seconds: float = 0.0
    reader: Reader | None = None
    nodes: int = 0
    gone: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Topic and channel."""
        return self.topic, self.channel

    @property
    def state(self) -> str:
        """The state in words."""
        if not self.nodes:
            return "nsqd gone"
        return state_of(self.base, topic_paused=self.topic_paused, gone=bool(self.gone))

    @property
    def severity(self) -> float:
        """How bad the state is, from 0; more if an nsqd is gone, too."""
        base = "paused" if self.topic_paused and self.base == "ok" else self.base
        return ORDER.index(base if self.nodes else "nsqd gone") + bool(self.gone) / 2


_SHARED: Final = set(OverviewRow.__slots__) & set(ChannelRow.__struct_fields__)


def _rows(
    answers: Iterable[Answer], topic: str = "", past: ChannelPast | None = None
) -> dict[Key, OverviewRow]:
    """Return the rows of topics and channels."""
    topics, channels, *_ = tables(answers, topic, past)
    rows = [
        OverviewRow(base=row.state, **{name: getattr(row, name) for name in _SHARED})
        for row in channels
    ]
    for each in topics:
        base = "paused" if each.paused else "ok" if each.channels else "no channel"
        own: dict[str, Any] = {"in_rate": each.in_rate, "depth": each.depth, "paused": each.paused}
        rows.append(OverviewRow(each.topic, base=base, nodes=each.nodes, **own))
    return {row.key: row for row in rows}


@dataclass(slots=True)
class Overview:
    """The cluster: its rows by topic and channel.

    ``in_rate`` is the sum over the topics: the published messages, however many channels each has.
    ``ill`` says what is wrong with the disks of nsqds that answer, by address. ``gone`` holds the
    last figures of nsqds that answered before and do not now, with their age in seconds, and
    ``drained`` the nsqds that were drained on purpose.
    """

    rows: list[OverviewRow] = field(default_factory=list)
    nsqds: int = 0
    topics: int = 0
    in_rate: float | None = None
    ill: dict[str, str] = field(default_factory=dict)
    gone: dict[str, dict[str, Any]] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()


class ChannelPart(NamedTuple):
    """One nsqd's part of a channel; ``is_gone``: the figures are its last ones."""

    address: str
    row: OverviewRow
    is_gone: bool


class SampleHistory(ChannelPast):
    """The samples so far."""

    def __init__(self) -> None:
        super().__init__()
        self._now: dict[str, Answer] = {}
        self._gone: dict[str, NodeStats] = {}

    def add(self, now: Mapping[str, NodeStats], at_seconds: float) -> Overview:
        """Add a sample; return the overview with rates since each nsqd's last response.

        Args:
            now: each nsqd that answered, by its address.
            at_seconds: the time now, on the monotonic clock.
        """
        # With the gone ones: an nsqd that answers again has its rates since its last answer.
        before = {**self._gone, **{address: stats for address, (stats, _) in self._now.items()}}
        lost = {address: last for address, last in before.items() if address not in now}
        latest = sorted(lost, key=lambda address: lost[address].at_seconds)[-GONE_MAX:]
        self._now = {address: (stats, before.get(address)) for address, stats in now.items()}
        self._gone = {address: lost[address] for address in sorted(latest)}
        self.begin(at_seconds)
        rows = _rows(self._now.values(), past=self)
        gone = {}
        for address, last in self._gone.items():
            if last.was_drained:
                continue
            for key in last.names.keys:
                row = rows.setdefault(key, OverviewRow(*key))
                row.gone = (*row.gone, address)
            sums = last.sums()
            names = {"depth": "waiting", "in_flight": "in_flight", "deferred": "deferred"}
            figures = {name: sums[of] for name, of in names.items()}
            gone[address] = {"seconds": at_seconds - last.at_seconds, **figures}
        with_channels = {row.topic for row in rows.values() if row.channel}
        topics = [row for row in rows.values() if not row.channel]
        return Overview(
            # Channels, and topics that have no channel or hold messages.
            [
                row
                for _, row in sorted(rows.items())
                if row.channel or row.depth or row.topic not in with_channels
            ],
            len(now),
            len(topics),
            total(row.in_rate for row in topics) if topics else None,
            {
                address: one_line(f"{stats.figures.state}: {stats.figures.health}")
                for address, stats in now.items()
                if "disk" in stats.figures.state
            },
            gone,
            frozenset(self._gone.keys() - gone.keys()),
        )

    def dismiss_gone(self) -> None:
        """Drop the figures of nsqds that do not answer now."""
        self._gone.clear()

    def parts(self, key: Key) -> list[ChannelPart]:
        """Return a channel's row for each nsqd that has it, by address; gone nsqds are marked."""
        answers = {**self._now, **{address: (last, None) for address, last in self._gone.items()}}
        return [
            ChannelPart(address, row, address in self._gone)
            for address, answer in sorted(answers.items())
            if (row := _rows([answer], key[0]).get(key)) is not None
        ]
