"""Columns become MPUB bodies; nsqd's parser splits them into the same messages."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol.commands import MultiPublish
from sparq.protocol.identify import IdentifyLimits
from sparq.protocol.parser import CommandParser
from sparq.spark import encode
from sparq.spark.encode import (
    RowPosition,
    by_topic,
    check_bodies,
    check_topics,
    multi_publishes,
    size_limit,
)
from sparq.spark.errors import RowError


def sent(mpubs) -> list[list[bytes]]:
    """The messages that nsqd's parser finds in each MPUB."""
    received = []
    for mpub in mpubs:
        parser = CommandParser(IdentifyLimits(max_body_size=1 << 20))
        body = mpub.head + bytes(mpub.sized)
        parser.feed(b"MPUB t\n" + len(body).to_bytes(4, "big") + body)
        while not isinstance(command := parser.next(), MultiPublish):
            assert command is not None
        received.append([bytes(one) for one in command.bodies])
        assert mpub.messages == len(received[-1])
    return received


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=40),
    st.integers(58, 400),
    st.integers(0, 5),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_rows_are_sent_unchanged_in_mpubs_within_the_limit(bodies, body_size, skipped, kind):
    """Any column, also a slice, arrives unchanged and in order; each MPUB is within the limit."""
    column = pa.array([b"x"] * skipped + bodies, kind)[skipped:]
    mpubs = list(multi_publishes(column, body_size))

    assert bodies == [one for run in sent(mpubs) for one in run]
    assert all(4 + len(mpub.sized) <= body_size for mpub in mpubs)
    # An MPUB ends only where the next message would not have fitted.
    assert all(
        4 + len(first.sized) + 4 + second.sized[:4].tolist()[-1] > body_size
        for first, second in itertools.pairwise(mpubs)
    )


def test_strings_are_sent_as_utf_8():
    """A string column is published as its bytes."""
    assert [["größer".encode(), b"a"]] == sent(multi_publishes(pa.array(["größer", "a"]), 1000))


def test_a_large_message_has_its_own_mpub():
    """A message larger than MPUB_BYTES, but within nsqd's limits, is sent in its own MPUB."""
    large = bytes(encode.MPUB_BYTES)
    column = pa.array([b"a", large, b"b"])

    assert [1, 1, 1] == [mpub.messages for mpub in multi_publishes(column, 5 << 20)]


def test_columns_too_large_for_31_bit_offsets_are_halved(monkeypatch):
    """A column too large for 31-bit offsets is sent in halves, in order."""
    monkeypatch.setattr(encode, "ARROW_BYTES_MAX", 100)
    bodies = [b"%04d" % number for number in range(100)]

    assert bodies == [one for run in sent(multi_publishes(pa.array(bodies), 1000)) for one in run]


ROWS = RowPosition("partition 3 of batch 7", 1000)


@pytest.mark.parametrize(
    ("bodies", "text"),
    [
        ([b"a", None], r"row 1001 of partition 3 of batch 7 .* has no body \(null\)"),
        ([b"a", b"b", b""], "row 1002 of .* has an empty body"),
        ([b"a", b"12345678901"], "row 1001 of .* 11 bytes, over the limit of 10"),
    ],
)
def test_rows_with_invalid_bodies_are_refused(bodies, text):
    """A null, empty or too large body raises RowError with row, partition and reason."""
    with pytest.raises(RowError, match=text):
        check_bodies(pa.array(bodies, pa.binary()), 10, ROWS)


def test_a_message_must_fit_an_mpub():
    """A message's limit is max_msg_size, or less if max_body_size leaves less room."""
    assert (92, 90) == (size_limit(1000, 100), size_limit(90, 100))


def test_rows_are_grouped_by_topic():
    """Rows are grouped by topic and keep their order within it."""
    topics = pa.array(["a", "b", "a"])
    parts = {
        topic: part.to_pylist() for topic, part in by_topic(topics, pa.array([b"1", b"2", b"3"]))
    }

    assert {"a": [b"1", b"3"], "b": [b"2"]} == parts


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        (["a", None], r"row 1001 of partition 3 of batch 7 .* has no topic \(null\)"),
        (["a", "b", "a b"], 'row 1002 of .* has an invalid topic name: "a b"'),
    ],
)
def test_a_row_without_a_topic_is_refused(topics, text):
    """A null or invalid topic name raises RowError."""
    with pytest.raises(RowError, match=text):
        check_topics(pa.array(topics), ROWS)
