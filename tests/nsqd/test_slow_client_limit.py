"""How long a client may take, against a clock that the test turns."""

from collections.abc import Callable
from typing import Any

from sparq.nsqd.slow_client_limit import GRACE_SECONDS, SlowClientLimit


class Timer:
    """A call that waits for its time."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Client:
    """A connection whose bytes and states the test sets."""

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
        """Let time pass."""
        self.seconds += seconds
        due = [one for one in self.timers if one.at <= self.seconds]
        self.timers = [one for one in self.timers if one.at > self.seconds]
        for timer in due:
            if not timer.cancelled:
                timer.call()


def test_who_says_nothing_in_time_goes() -> None:
    """Bytes alone are no command."""
    client = Client(first_seconds=3)
    client.limit.note(2)
    client.wait(2.9)

    assert not client.gone
    client.wait(0.2)
    assert client.gone


def test_who_has_spoken_may_be_silent() -> None:
    """The first command ends the first deadline."""
    client = Client(first_seconds=3)
    client.limit.moved()
    client.wait(100)

    assert not client.gone


def test_a_command_that_trickles_in_is_given_up() -> None:
    """One byte less than the rate asks for, over the grace, is too little."""
    for size, gone in ((1023, True), (1024, False)):
        client = Client(rate=1024)
        client.unfinished = True
        client.limit.note(100)  # what begins the command does not count
        client.limit.note(int(1024 * (GRACE_SECONDS - 1)))
        client.limit.note(size)
        client.wait(GRACE_SECONDS)

        assert gone == client.gone, size


def test_each_window_is_looked_at() -> None:
    """A quick beginning does not pay for a slow end."""
    client = Client(rate=1024)
    client.unfinished = True
    client.limit.note(1)
    client.limit.note(1 << 20)
    client.wait(GRACE_SECONDS)
    assert not client.gone

    client.wait(GRACE_SECONDS)
    assert client.gone


def test_progress_and_a_server_that_does_not_read_are_no_fault() -> None:
    """A finished command, and reading paused, begin a new window; a whole command ends it."""
    client = Client(rate=1024)
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


def test_a_connection_that_ended_is_not_watched() -> None:
    """Nothing calls back behind the end."""
    client = Client(first_seconds=1, rate=1024)
    client.unfinished = True
    client.limit.note(1)
    client.limit.stop()
    client.wait(100)

    assert not client.gone
