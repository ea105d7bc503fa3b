"""The history of a run, as its clients saw it: the only input of the checker.

A publisher's history is its commands in order. Each has an outcome, which depends only on the
reply: `ok` (an OK was read), `refused` (an error was read) or `unknown` (the connection broke
before a reply: nsqd may have stored the message or not, but of an MPUB either all or none).

A channel's history is its events, in the order of arrival: a message was delivered, or a message
was *finished*. A FIN is recorded as finished only when a later command on the same connection was
answered.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field

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
