"""The figures in a node's answer to `/stats`, which is not trusted."""

from __future__ import annotations

import json

import pytest

from sparq.nsqadmin.watch.names import NameNumbers
from sparq.nsqadmin.watch.node_stats import AT, COUNT_MAX, read_stats
from tests.nsqadmin.watch.figures import channel, stats, topic


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{}", b'{"version":1}', b'{"version":"1","topics":[{}]}', b"[" * 5000, b"\xff"],
)
def test_a_malformed_answer_is_refused(answer: bytes) -> None:
    """A malformed answer raises ValueError and no other exception."""
    with pytest.raises(ValueError, match="statistics"):
        read_stats(answer, NameNumbers(), 0.0)


def test_invalid_figures_are_left_out_or_limited() -> None:
    """Invalid names are left out, counts limited to [0, COUNT_MAX], texts made one line."""
    answer = stats(
        topic("<b>", channel("c")),
        topic("t", channel("c", depth=-5), channel("c", depth=9), channel("a b"), depth=1 << 60),
        topic("t", depth=3),
        health="NOK\n\x1b[31m",
    )

    names = NameNumbers()
    found = read_stats(json.dumps(answer).encode(), names, 0.0)

    assert [("t", ""), ("t", "c")] == [names.keys[number] for number in found.numbers]
    assert [COUNT_MAX, 0] == found.counts[AT["depth"]].tolist()
    assert found.health == "NOK  [31m"


def test_counts_beyond_64_bits_are_refused() -> None:
    """A count that does not fit 64 bits raises ValueError."""
    answer = json.dumps(stats(topic("t", depth=1 << 80))).encode()
    with pytest.raises(ValueError, match="unreadable"):
        read_stats(answer, NameNumbers(), 0.0)


def test_an_answer_in_the_form_before_1_0_is_read() -> None:
    """The old form, with the document in `data`, is read, too."""
    answer = json.dumps({"status_code": 200, "data": stats(topic("t"))}).encode()

    assert len(read_stats(answer, NameNumbers(), 0.0).numbers) == 1
