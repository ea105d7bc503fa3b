"""How a batch is cut: by its messages and the options, never by the machine."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.spark.offsets import PARTITIONS_MAX, Cut

backlogs = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 10_000))


@given(backlogs, st.integers(1, 50), st.integers(1, 5_000))
def test_parts_add_up_and_keep_to_the_limits(counts, parts, messages_max):
    """Parts hold all messages, none more than allowed, none empty, and are about equal."""
    cut = Cut(parts, messages_max).counts(counts)

    assert {key: sum(pieces) for key, pieces in cut.items()} == counts
    for pieces in cut.values():
        assert max(pieces) <= messages_max
        assert max(pieces) - min(pieces) <= 1
        assert pieces == [0] or min(pieces) > 0


def test_parts_are_shared_out_by_size():
    """The larger range gets more of the parts, and each range one at least."""
    cut = Cut(5, 1_000_000).counts({"a": 60_000, "b": 40_000, "c": 1})

    assert {"a": 3, "b": 2, "c": 1} == {key: len(pieces) for key, pieces in cut.items()}


@pytest.mark.parametrize("cores", [1, 64, None])
def test_without_options_the_messages_alone_decide(monkeypatch, cores):
    """One partition for each 50,000 messages, up to a limit; the machine's cores do not count."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    assert [1, 1, 2, 20, PARTITIONS_MAX] == [
        Cut.of(messages, 0, 1_000_000).parts
        for messages in (0, 99_999, 100_000, 1_000_000, 100_000_000)
    ]
    assert Cut(7, 10) == Cut.of(1_000_000, 7, 10)
