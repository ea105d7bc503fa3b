"""Errors of the source: which refusal may pass, and how long a failure is retried."""

import pytest

from sparq.protocol.errors import RemoteError
from sparq.spark import errors
from sparq.spark.errors import RetryDeadline, UnreachableError, may_pass


class Clock:
    """Stands for the module `time`: a pause takes no real time."""

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


def test_only_a_secret_that_no_authd_confirms_may_pass():
    """A missing permission does not pass by itself."""
    assert may_pass(RemoteError("E_AUTH_FAILED", "AUTH failed"))
    assert not may_pass(RemoteError("E_UNAUTHORIZED", "AUTH failed for READ"))


def test_pauses_grow_until_the_time_is_over(clock):
    """From 50 ms to a second; the last one ends with the time limit, and then the error is raised.

    The error names what is unreachable, the option, and the last failure, which is its cause.
    """
    deadline = RetryDeadline("nsqd h:1", 2_500)
    failure = ConnectionError("refused")

    with pytest.raises(UnreachableError) as raised:
        while True:
            deadline.wait(failure)

    assert [0.05, 0.1, 0.2, 0.4, 0.8] == clock.pauses[:5]
    assert 2.5 == pytest.approx(sum(clock.pauses))
    assert (6, True) == (len(clock.pauses), clock.pauses[-1] < 1.0)
    text = "nsqd h:1 has been unreachable for 2.5 s (option nsqdTimeoutMs): refused"
    assert (text, failure) == (str(raised.value), raised.value.__cause__)


def test_a_pause_is_a_second_at_most(clock):
    """However long a failure lasts."""
    deadline = RetryDeadline("nsqd h:1", 60_000)
    for _ in range(10):
        deadline.wait("silent")

    assert [1.0] * 5 == clock.pauses[5:]


def test_a_success_begins_the_time_limit_again(clock):
    """And the pauses are short again."""
    deadline = RetryDeadline("nsqd h:1", 1_000)
    deadline.wait("refused")
    clock.now += 10
    deadline.reset()
    deadline.wait("refused")

    assert [0.05, 0.05] == clock.pauses
    clock.now += 10
    with pytest.raises(UnreachableError, match="refused"):
        deadline.wait("refused")
