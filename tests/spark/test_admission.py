"""How many messages one batch may read: limits on messages, bytes and time, without an nsqd."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.spark.admission import Backlog, admit, share, share_bytes
from sparq.spark.source_options import NO_LIMIT, ReadLimits

NEVER = math.inf
"""Seconds since the last batch, if there was none yet."""


def messages(**counts: int) -> dict[str, Backlog]:
    """Backlogs that fit the byte limit completely."""
    return {key: Backlog(count, count) for key, count in counts.items()}


@pytest.mark.parametrize(
    ("limits", "counts", "waited", "expected"),
    [
        (ReadLimits(), {"a": 3, "b": 4}, 0, {"a": 3, "b": 4}),
        (ReadLimits(messages_max=4), {"a": 3, "b": 9}, 0, {"a": 1, "b": 3}),
        (ReadLimits(messages_min=8, delay_seconds=5), {"a": 3, "b": 4}, 4.9, {}),
        (ReadLimits(messages_min=7, delay_seconds=5), {"a": 3, "b": 4}, 0, {"a": 3, "b": 4}),
        (ReadLimits(messages_min=8, delay_seconds=5), {"a": 3, "b": 4}, 5, {"a": 3, "b": 4}),
        (ReadLimits(messages_min=8, delay_seconds=5), {"a": 1}, NEVER, {"a": 1}),
        (ReadLimits(messages_min=8, delay_seconds=5), {"a": 0}, NEVER, {}),
        (ReadLimits(messages_min=8, messages_max=8, delay_seconds=5), {"a": 20}, 0, {"a": 8}),
    ],
)
def test_a_batch_waits_for_a_minimum_of_messages_or_a_maximum_delay(
    limits, counts, waited, expected
):
    """minOffsetsPerTrigger holds a batch back until maxTriggerDelay has passed since the last."""
    assert expected == admit(messages(**counts), limits, waited)


def test_a_batch_at_its_byte_limit_does_not_wait():
    """A batch that reaches maxBytesPerTrigger is not held back for the minimum of messages."""
    limits = ReadLimits(messages_min=100, delay_seconds=5, bytes_max=1)

    assert {"a": 2, "b": 5} == admit({"a": Backlog(9, 2), "b": Backlog(5, 5)}, limits, 0)
    assert {} == admit({"a": Backlog(9, 9)}, limits, 0)
    assert {"a": 1, "b": 2} == admit(
        {"a": Backlog(9, 2), "b": Backlog(5, 5)}, limits._replace(messages_max=3), 0
    )


backlogs = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 10_000))


@given(st.integers(1, 20_000), backlogs)
def test_shares_keep_to_limit_and_backlogs(limit, counts):
    """Shares add up to the limit or to all backlogs; no share exceeds its backlog.

    Every log with messages gets at least one, if the limit allows.
    """
    shares = share(limit, counts)

    assert sum(shares.values()) == min(limit, sum(counts.values()))
    assert all(0 < shares[key] <= counts[key] for key in shares)
    if limit >= len(counts):
        assert shares.keys() == {key for key, count in counts.items() if count}


def test_shares_are_proportional_to_the_backlogs():
    """A log with three times the backlog gets three times the share."""
    assert {"a": 250, "b": 750} == share(1000, {"a": 100_000, "b": 300_000})


@given(st.integers(1, 10_000), backlogs)
def test_shares_of_bytes_never_exceed_the_limit(limit, sizes):
    """If all bytes fit, each log may give all; otherwise a proportional share, rounded down."""
    shares = share_bytes(limit, sizes)

    assert shares.keys() == sizes.keys()
    assert sum(shares.values()) <= limit or shares == {}
    assert all(shares[key] <= sizes[key] for key in sizes)
    if sum(sizes.values()) <= limit:
        assert sizes == shares
    else:
        assert sum(shares.values()) > limit - len(sizes)


counted = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.integers(0, 50).flatmap(lambda n: st.builds(Backlog, st.just(n), st.integers(0, n))),
)


@given(
    counted,
    st.builds(
        ReadLimits,
        st.sampled_from([1, 7, 60, NO_LIMIT]),
        st.integers(0, 80),
        st.sampled_from([0.0, 2.0]),
    ),
    st.sampled_from([0.0, 1.0, 2.0, NEVER]),
)
def test_a_batch_is_held_back_or_as_large_as_all_limits_allow(backlogs, limits, waited):
    """A batch is either held back or reads as much as all limits together allow."""
    taken = admit(backlogs, limits, waited)
    there = sum(backlog.messages for backlog in backlogs.values())
    allowed = sum(backlog.allowed for backlog in backlogs.values())
    too_few = there < limits.messages_min and allowed == there
    if too_few and waited < limits.delay_seconds:
        assert {} == taken
    else:
        assert min(allowed, limits.messages_max) == sum(taken.values())
    assert all(0 < taken[key] <= backlogs[key].allowed for key in taken)
