"""The checker: counts lost, invented, damaged and repeated messages from a history alone.

The classes are Jepsen's. They are counted per channel, since each channel must get everything:

- lost         acknowledged, but never delivered
- revived      outcome unknown, but delivered: no violation
- ghosts       delivered, but never published in this run
- corrupt      delivered, but not as published
- refused yet delivered      the reply was an error, but the message was delivered
- split        an MPUB without an outcome that was delivered only in part. After a power cut that
               may lose messages, it counts only if a part came after the cut: before it, a part
               may have been delivered, and the cut may then have lost the whole MPUB
- refused      FINs and requeues of messages in flight that got an error
- returned     delivered again after a FIN that was followed by an answered command
- duplicates   all deliveries after a message's first. Their bound: the messages in flight at the
               kills, plus those that the consumers requeued

The history is what the clients saw. A publisher's is its commands in order. Each has an outcome,
which depends only on the reply: `ok` (an OK was read), `refused` (an error was read) or `unknown`
(the connection broke before a reply: nsqd may have stored the message or not, but of an MPUB either
all or none). A channel's is its events, in the order of arrival: a message was delivered, or it was
*finished*: a FIN counts only once a later command on the same connection was answered.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np

FINISHED = 1 << 62


class Outcome(enum.Enum):
    """How a publishing command ended, as far as its publisher knows."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Command:
    """One PUB or MPUB: the messages [first, first + count) of its publisher."""

    first: int
    count: int
    outcome: Outcome
    after_kill: int = 0


@dataclass(slots=True)
class ChannelHistory:
    """The events of one channel: the key of a delivered message, or of a finished one | FINISHED.

    Attributes:
        corrupt: deliveries whose body was damaged.
        foreign: deliveries of messages that this run has not published.
        requeued: messages that the consumers requeued.
        refused: FINs and requeues of messages in flight that got an error.
        in_flight_at_kills: messages in flight when a connection broke, as at a kill.
        attempts: the highest attempts seen of each message; None: not recorded.
        before_cut: number of events before a power cut that may lose messages.
    """

    events: array[int] = field(default_factory=lambda: array("Q"))
    corrupt: int = 0
    foreign: int = 0
    requeued: int = 0
    refused: int = 0
    in_flight_at_kills: int = 0
    attempts: dict[int, int] | None = None
    before_cut: int = 0

    def is_overtaken(self, key: int, attempts: int) -> bool:
        """Record a delivery's attempts; return whether a later delivery may have arrived first."""
        if self.attempts is None:
            return False
        seen = self.attempts.get(key, 0)
        self.attempts[key] = max(seen, attempts)
        return attempts <= seen

    def delivered(self, key: int) -> None:
        self.events.append(key)

    def finished(self, keys: list[int]) -> None:
        self.events.extend(key | FINISHED for key in keys)


@dataclass(slots=True)
class History:
    """A whole run: commands by publisher, events by channel.

    Attributes:
        run: number of the run, which its bodies contain.
        kills: how often nsqd was killed.
        delays: whether deliveries to different consumers may arrive in another order than they
            were sent, since connections are slow, or end with unread data.
    """

    run: int
    publishers: dict[int, list[Command]] = field(default_factory=dict)
    channels: dict[str, ChannelHistory] = field(default_factory=dict)
    kills: int = 0
    delays: bool = False

    def channel(self, name: str) -> ChannelHistory:
        """Return the history of a channel; create it if necessary."""
        made = ChannelHistory(attempts={} if self.delays else None)
        return self.channels.setdefault(name, made)


Keys = np.ndarray[tuple[int], np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts of one channel, or of all channels."""

    attempted: int
    acknowledged: int
    delivered: int
    lost: int
    revived: int
    ghosts: int
    corrupt: int
    refused_yet_delivered: int
    split: int
    refused: int
    returned: int
    duplicates: int
    duplicates_bound: int

    @property
    def holds(self) -> bool:
        """Whether messages were delivered and no class has violations."""
        wrong = (self.lost, self.ghosts, self.corrupt, self.refused_yet_delivered)
        return (
            self.delivered > 0
            and not any((*wrong, self.split, self.refused, self.returned))
            and (self.duplicates <= self.duplicates_bound)
        )

    def line(self) -> str:
        """The verdict in one line."""
        return (
            f"attempted {self.attempted:,} · acknowledged {self.acknowledged:,} · "
            f"delivered {self.delivered:,} · lost {self.lost:,} (acknowledged, never delivered) · "
            f"revived {self.revived:,} (unknown, delivered: fine) · "
            f"ghosts {self.ghosts:,} (delivered, never attempted) · corrupt {self.corrupt:,} · "
            f"refused yet delivered {self.refused_yet_delivered:,} · "
            f"split MPUBs {self.split:,} · refused FINs {self.refused:,} · "
            f"returned {self.returned:,} (after an answered FIN) · "
            f"duplicates {self.duplicates:,} (bound {self.duplicates_bound:,})"
        )


def check(history: History) -> dict[str, Verdict]:
    """Return a verdict for each channel of the run."""
    sent = {outcome: sent_keys(history, outcome) for outcome in Outcome}
    batches = [
        (publisher, command)
        for publisher, commands in history.publishers.items()
        for command in commands
        if command.outcome is Outcome.UNKNOWN and command.count > 1
    ]
    return {
        name: check_channel(channel, sent, batches) for name, channel in history.channels.items()
    }


def total(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the sums over channels; attempted and acknowledged are the same in each of them."""
    rows = list(verdicts)
    sums = {each.name: sum(getattr(row, each.name) for row in rows) for each in fields(Verdict)}
    sums["attempted"], sums["acknowledged"] = rows[0].attempted, rows[0].acknowledged
    return Verdict(**sums)


def lost_commands(history: History) -> Iterator[str]:
    """Describe lost messages, in a line per command and channel, to start debugging from."""
    for name, channel in history.channels.items():
        came = {event for event in channel.events if not event & FINISHED}
        for publisher, commands in history.publishers.items():
            for command in commands:
                missing = sum(key not in came for key in keys_of(publisher, command))
                if missing and command.outcome is Outcome.OK:
                    yield (
                        f"{name}: {missing} of {command.count} messages from {command.first} on, "
                        f"of publisher {publisher}, acknowledged after kill {command.after_kill}"
                    )


def sent_keys(history: History, outcome: Outcome) -> Keys:
    """Return the keys of all messages whose command had this outcome."""
    runs = [
        np.arange(command.first, command.first + command.count, dtype=np.uint64)
        | np.uint64(publisher << 32)
        for publisher, commands in history.publishers.items()
        for command in commands
        if command.outcome is outcome
    ]
    return np.concatenate(runs) if runs else np.empty(0, np.uint64)


def check_channel(
    channel: ChannelHistory, sent: dict[Outcome, Keys], batches: list[tuple[int, Command]]
) -> Verdict:
    events = np.array(channel.events, np.uint64)
    is_finish = (events & np.uint64(FINISHED)) != 0
    came = np.unique(events[~is_finish])
    attempted = np.concatenate(list(sent.values()))
    known = set(came.tolist())
    after_cut = set(channel.events[channel.before_cut :])
    kept = [batch for batch in batches if after_cut.intersection(keys_of(*batch))]
    return Verdict(
        attempted=len(attempted),
        acknowledged=len(sent[Outcome.OK]),
        delivered=len(came),
        lost=len(np.setdiff1d(sent[Outcome.OK], came)),
        revived=len(np.intersect1d(sent[Outcome.UNKNOWN], came)),
        ghosts=len(np.setdiff1d(came, attempted)) + channel.foreign,
        corrupt=channel.corrupt,
        refused_yet_delivered=len(np.intersect1d(sent[Outcome.REFUSED], came)),
        split=sum(is_split(publisher, command, known) for publisher, command in kept),
        refused=channel.refused,
        returned=returned(events, is_finish),
        duplicates=int((~is_finish).sum()) - len(came),
        duplicates_bound=channel.in_flight_at_kills + channel.requeued,
    )


def is_split(publisher: int, command: Command, came: set[int]) -> bool:
    """Return whether some, but not all messages of an MPUB were delivered."""
    return 0 < sum(key in came for key in keys_of(publisher, command)) < command.count


def keys_of(publisher: int, command: Command) -> range:
    """Return the keys of a command's messages."""
    first = publisher << 32 | command.first
    return range(first, first + command.count)


def returned(events: Keys, is_finish: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Return the number of deliveries after their message's answered FIN."""
    finished, first_at = np.unique(events[is_finish] & np.uint64(FINISHED - 1), return_index=True)
    if not len(finished):
        return 0
    finished_at = np.flatnonzero(is_finish)[first_at]
    delivered_at = np.flatnonzero(~is_finish)
    keys = events[delivered_at]
    place = np.minimum(np.searchsorted(finished, keys), len(finished) - 1)
    return int(((finished[place] == keys) & (delivered_at > finished_at[place])).sum())
