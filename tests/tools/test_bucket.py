"""The token bucket: never more than its rate allows, and as much as it allows."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sparq.tools.to_nsq import Bucket

STEPS = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), max_size=50)


@given(st.integers(1, 1000), STEPS)
def test_no_more_than_the_rate(rate: int, steps: list[tuple[int, float]]) -> None:
    """In any time from the start: one token, and the rate times the time."""
    bucket, now, taken = Bucket(rate, 5.0), 5.0, 0
    for count, pause in steps:
        now += pause
        got = bucket.take(count, now)
        taken += got
        assert got <= min(count, rate)
        assert taken <= 1 + rate * (now - 5.0) + 1e-5


@given(st.integers(1, 1000), st.integers(1, 200))
def test_as_much_as_the_rate(rate: int, count: int) -> None:
    """Who always waits as long as told gets all, in the time that the rate asks for."""
    bucket, now, taken = Bucket(rate, 0.0), 0.0, 0
    while taken < count:
        taken += bucket.take(1, now)
        now += bucket.seconds_until(1)

    assert math.isclose(now, count / rate, rel_tol=1e-5)


def test_it_begins_with_one_and_keeps_a_second() -> None:
    """No burst at the start, a second's worth after any pause; a clock may go back."""
    bucket = Bucket(10, 0.0)
    assert 1 == bucket.take(100, 0.0)
    assert 0 == bucket.take(100, 0.05)
    assert 10 == bucket.take(100, 3600.0)
    assert 0 == bucket.take(100, 0.0)
    assert 0.1 == bucket.seconds_until(1)
