"""Time limits for slow clients, tested with a manual clock."""

from collections.abc import Callable
from typing import Any

from sparq.nsqd.slow_client_limit import GRACE_SECONDS, SlowClientLimit


class Timer:
    """A scheduled call."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeConnection:
    """A connection whose received bytes and states the test sets."""

    def __init__(self, *, first_seconds: float = 0, rate: int = 0) -> None:
        self.seconds = 0.0
        self.timers: list[Timer] = []
        self.unfinished = False
        self.reading = True
        self.gone = False
        loop: Any = self
        self.limit = SlowClientLimit(
            loop,
            first_seconds=first_seconds,
            rate=rate,
            is_unfinished=lambda: self.unfinished,
            is_reading=lambda: self.reading,
            give_up=self.leave,
        )

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.seconds + delay, call)
        self.timers.append(timer)
        return timer

    def leave(self) -> None:
        self.gone = True

    def wait(self, seconds: float) -> None:
        """Advance the clock and make the calls that are due."""
        self.seconds += seconds
        due = [one for one in self.timers if one.at <= self.seconds]
        self.timers = [one for one in self.timers if one.at > self.seconds]
        for timer in due:
            if not timer.cancelled:
                timer.call()


def test_a_client_without_a_first_command_is_dropped() -> None:
    """A client without a whole command in `first_seconds` is dropped, despite two bytes."""
    client = FakeConnection(first_seconds=3)
    client.limit.note(2)
    client.wait(2.9)

    assert not client.gone
    client.wait(0.2)
    assert client.gone


def test_the_first_command_cancels_the_deadline() -> None:
    """The first command cancels the deadline for it."""
    client = FakeConnection(first_seconds=3)
    client.limit.moved()
    client.wait(100)

    assert not client.gone


def test_a_client_below_the_minimum_rate_is_dropped() -> None:
    """A client that is one byte below the minimum rate over GRACE_SECONDS is dropped."""
    for size, gone in ((1023, True), (1024, False)):
        client = FakeConnection(rate=1024)
        client.unfinished = True
        client.limit.note(100)  # the bytes that begin the command do not count
        client.limit.note(int(1024 * (GRACE_SECONDS - 1)))
        client.limit.note(size)
        client.wait(GRACE_SECONDS)

        assert gone == client.gone, size


def test_each_window_is_checked_separately() -> None:
    """A fast first window does not make up for a slow second one."""
    client = FakeConnection(rate=1024)
    client.unfinished = True
    client.limit.note(1)
    client.limit.note(1 << 20)
    client.wait(GRACE_SECONDS)
    assert not client.gone

    client.wait(GRACE_SECONDS)
    assert client.gone


def test_finished_commands_and_paused_reading_start_a_new_window() -> None:
    """A finished command or paused reading starts a new window; no partial command, no timer."""
    client = FakeConnection(rate=1024)
    client.unfinished = True
    client.limit.note(1)
    client.limit.moved()
    client.wait(GRACE_SECONDS)
    assert not client.gone

    client.reading = False
    client.wait(GRACE_SECONDS)
    assert not client.gone

    client.reading = True
    client.unfinished = False
    client.wait(GRACE_SECONDS)
    assert not client.gone
    assert not client.timers


def test_a_stopped_limit_drops_no_client() -> None:
    """After `stop`, no timer drops the client."""
    client = FakeConnection(first_seconds=1, rate=1024)
    client.unfinished = True
    client.limit.note(1)
    client.limit.stop()
    client.wait(100)

    assert not client.gone
