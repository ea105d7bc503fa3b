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
    last failure, which is its cause. `reset`, after a success, begins again.
    """
    deadline = RetryDeadline("nsqd h:1", 4_500)
    failure = ConnectionError("refused")
    text = "nsqd h:1 has been unreachable for 4.5 s (option nsqdTimeoutMs): refused"
    for _ in range(2):
        clock.pauses.clear()
        with pytest.raises(UnreachableError) as raised:
            while True:
                deadline.wait(failure)

        assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == clock.pauses[:7]
        assert 4.5 == pytest.approx(sum(clock.pauses))
        assert (8, True) == (len(clock.pauses), clock.pauses[-1] < 1.0)
        assert (text, failure) == (str(raised.value), raised.value.__cause__)
        deadline.reset()
