"""What happened, as the witness saw it: the only thing that the checker may read.

A publisher's history is its commands in order, each with an outcome that is true whatever became
of the daemon: `ok` (an OK was read), `refused` (an error was read) or `unknown` (the connection
broke first: the messages may be there or not, but all of one MPUB or none).

A channel's history is its events in order of their coming: a message was delivered, or a message
was *finished*, which is noted only when a later command on the same connection was answered.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field

FINISHED = 1 << 62


class Outcome(enum.Enum):
    """How a publishing command ended, as far as its sender can know."""

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
    """Events of one channel: the key of a delivered message, or of a finished one | FINISHED.

    Attributes:
        attempts: of each message the highest that was seen; None: not kept.
        before_cut: how many events came before a power cut that was allowed to take messages.
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
        """Whether nsqd may have sent this before a delivery of the message that came earlier."""
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
        delays: whether deliveries may come to different consumers in another order than they were
            sent, since connections are slow, or end with something still to be read.
    """

    run: int
    publishers: dict[int, list[Command]] = field(default_factory=dict)
    channels: dict[str, ChannelHistory] = field(default_factory=dict)
    kills: int = 0
    delays: bool = False

    def channel(self, name: str) -> ChannelHistory:
        """The events of a channel."""
        made = ChannelHistory(attempts={} if self.delays else None)
        return self.channels.setdefault(name, made)
