"""Errors of the source: which refusals are retried, and for how long."""

import pytest

from sparq.spark import errors
from sparq.spark.errors import RetryDeadline, UnreachableError


class Clock:
    """A replacement for the module `time`: pauses take no real time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of every deadline."""
    made = Clock()
    monkeypatch.setattr(errors, "time", made)
    return made


def test_pauses_double_until_the_time_limit(clock):
    """Pauses double from 50 ms to 1 s; after the time limit UnreachableError is raised.

    The last pause is shortened to the time limit. The error names the nsqd, the option, and the
    last failure, which is its cause.
    """
    deadline = RetryDeadline("nsqd h:1", 4_500)
    failure = ConnectionError("refused")

    with pytest.raises(UnreachableError) as raised:
        while True:
            deadline.wait(failure)

    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == clock.pauses[:7]
    assert 4.5 == pytest.approx(sum(clock.pauses))
    assert (8, True) == (len(clock.pauses), clock.pauses[-1] < 1.0)
    text = "nsqd h:1 has been unreachable for 4.5 s (option nsqdTimeoutMs): refused"
    assert (text, failure) == (str(raised.value), raised.value.__cause__)


def test_a_success_restarts_the_time_limit(clock):
    """`reset` restarts the time limit, and pauses start at 50 ms again."""
    deadline = RetryDeadline("nsqd h:1", 1_000)
    deadline.wait("refused")
    clock.now += 10
    deadline.reset()
    deadline.wait("refused")

    assert [0.05, 0.05] == clock.pauses
    clock.now += 10
    with pytest.raises(UnreachableError, match="refused"):
        deadline.wait("refused")
