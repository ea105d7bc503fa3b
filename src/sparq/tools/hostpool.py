"""Choose the host for the next message: in turn, skipping hosts that fail, or preferring fast ones.

1. It does no network I/O: the caller chooses a host, tries it, and reports the outcome. Time is an
   argument, in seconds of any one clock.
2. A host that failed is skipped for 30 s; it is then tried with one message, and after each further
   failure the time doubles, up to 15 min. One success ends that.
3. When every host has failed, they are still tried in turn: not trying any host would only delay
   the message.
4. ``tried`` names the hosts that have failed with this message: none of them is chosen again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sparq.program.mistakes import suggestion
from sparq.tools.command_line import UsageError
from sparq.tools.commands import MODES

FIRST_RETRY_SECONDS: Final = 30.0
RETRY_SECONDS_MAX: Final = 900.0
DECAY_SECONDS: Final = 300.0
"""How fast measured response times are forgotten: after this time they weigh a third."""

EXPLORE_FIRST: Final = 0.3
EXPLORE_LAST: Final = 0.01
EXPLORE_DECAY: Final = 0.9
"""The share of choices that ignore response times: it falls with each of them."""

QUICKEST_SECONDS: Final = 0.0001
"""A faster answer gains nothing: below this, only the clock is measured."""


class RoundRobin:
    """All hosts in turn, regardless of outcomes. Hosts are named by strings."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(dict.fromkeys(names))
        self._next = 0

    def choose(self, now: float, tried: Collection[str] = ()) -> str:
        """Return the next host in turn that is not in ``tried``; there must be one."""
        return self.first_in_turn(lambda name: name not in tried) or self.names[0]

    def succeeded(self, host: str, now: float, seconds: float) -> None:
        """Report that a host accepted a message, in this time; no effect here."""

    def failed(self, host: str, now: float) -> None:
        """Report that a host did not accept a message; no effect here."""

    def first_in_turn(self, fits: Callable[[str], bool]) -> str | None:
        """Return the first host in turn that fits, and continue the turn after it."""
        count = len(self.names)
        for step in range(count):
            index = (self._next + step) % count
            if fits(self.names[index]):
                self._next = (index + 1) % count
                return self.names[index]
        return None


@dataclass(slots=True)
class Host:
    """The state of one host.

    Attributes:
        retry_at: when it may be tried again, if it has failed; None while it is healthy.
        retry_seconds: how long it is skipped after the next failure.
        weight: the number of measurements, decaying with time.
        seconds: the sum of the measured times, decaying likewise; divided by ``weight``, the mean.
        measured_at: when it was last measured.
    """

    retry_at: float | None = None
    retry_seconds: float = FIRST_RETRY_SECONDS
    weight: float = 0.0
    seconds: float = 0.0
    measured_at: float = 0.0

    def may_be_tried(self, now: float) -> bool:
        """Whether the host is healthy, or has been skipped for long enough."""
        return self.retry_at is None or self.retry_at <= now

    def chosen(self, now: float) -> None:
        """Record that it gets a message; after a failure, the only one before the next retry."""
        if self.retry_at is not None and self.retry_at <= now:
            # Set now and not when the outcome is known: until then further messages are handed on,
            # and only one of them may risk this host. A success ends it (`succeeded`).
            self.retry_seconds = min(2 * self.retry_seconds, RETRY_SECONDS_MAX)
            self.retry_at = now + self.retry_seconds

    def failed(self, now: float) -> None:
        """Record a failure; further failures before the next retry do not count again."""
        # Messages that were under way together fail together: that is one failure.
        if self.retry_at is None:
            self.retry_seconds = FIRST_RETRY_SECONDS
            self.retry_at = now + self.retry_seconds

    def succeeded(self, now: float, seconds: float) -> None:
        """Record that it is healthy, and its response time."""
        # Decayed sums instead of a list of recent times: the same mean with two numbers for each
        # host.
        faded = math.exp((self.measured_at - now) / DECAY_SECONDS) if self.weight else 0.0
        self.weight = self.weight * faded + 1
        self.seconds = self.seconds * faded + seconds
        self.measured_at = now
        self.retry_at = None

    def speed(self) -> float | None:
        """Return messages per second, one after the other; None before the first."""
        if not self.weight:
            return None
        return 1 / max(self.seconds / self.weight, QUICKEST_SECONDS)


class HostPool(RoundRobin):
    """Healthy hosts in turn; a host that failed is retried later, at growing intervals."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.hosts: dict[str, Host] = {name: Host() for name in self.names}

    def choose(self, now: float, tried: Collection[str] = ()) -> str:
        """Return the next host in turn that is healthy or due for a retry."""
        host = self.first_in_turn(
            lambda name: name not in tried and self.hosts[name].may_be_tried(now)
        )
        if host is None:
            return super().choose(now, tried)
        self.hosts[host].chosen(now)
        return host

    def succeeded(self, host: str, now: float, seconds: float) -> None:
        """Mark the host as healthy."""
        self.hosts[host].succeeded(now, seconds)

    def failed(self, host: str, now: float) -> None:
        """Skip the host for a while."""
        self.hosts[host].failed(now)


class EpsilonGreedy(HostPool):
    """Mostly fast hosts, each in proportion to its speed; sometimes just the next in turn.

    A host that was never measured counts as the fastest, so that it is soon measured.
    """

    def __init__(self, names: Iterable[str], rng: random.Random) -> None:
        super().__init__(names)
        self._rng = rng
        self._explore = EXPLORE_FIRST

    def choose(self, now: float, tried: Collection[str] = ()) -> str:
        """Return the next in turn for a share of the choices, else a random one by speed."""
        if self._rng.random() < self._explore:
            self._explore = max(self._explore * EXPLORE_DECAY, EXPLORE_LAST)
            return super().choose(now, tried)
        speeds = self._speeds(now, tried)
        if not speeds:
            return super().choose(now, tried)
        (host,) = self._rng.choices(list(speeds), list(speeds.values()))
        self.hosts[host].chosen(now)
        return host

    def _speeds(self, now: float, tried: Collection[str]) -> Mapping[str, float]:
        """Return the speeds of the hosts that may be tried."""
        found = {
            name: host.speed()
            for name, host in self.hosts.items()
            if name not in tried and host.may_be_tried(now)
        }
        quickest = max((speed for speed in found.values() if speed is not None), default=1.0)
        return {name: quickest if speed is None else speed for name, speed in found.items()}


def hosts_of(mode: str, names: Iterable[str], rng: random.Random) -> RoundRobin:
    """Return the chooser for ``--mode``; there must be at least one name.

    Raises:
        UsageError: there is no such mode.
    """
    if mode not in MODES:
        raise UsageError(
            f"--mode {mode!r} is not one of {', '.join(MODES)}{suggestion(mode, MODES)}"
        )
    if mode == "epsilon-greedy":
        return EpsilonGreedy(names, rng)
    return HostPool(names) if mode == "hostpool" else RoundRobin(names)
