"""Records: every way to cut a stream gives the same ones; what never ends has a limit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.tools.to_nsq import RecordSplitter, RecordTooLongError


@given(
    st.lists(st.sampled_from([b"\n", b"\x00", b"a", b"bc"])).map(b"".join),
    st.lists(st.integers(0, 100)),
    st.sampled_from([b"\n", b"\x00", b"a"]),
)
def test_records_however_they_arrive(data: bytes, cuts: list[int], delimiter: bytes) -> None:
    """What lies between delimiters, without empty ones; the last one needs none."""
    records = RecordSplitter(delimiter)
    found = []
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for first, end in itertools.pairwise(places):
        found += records.feed(data[first:end])
    if records.rest:
        found.append(records.rest)

    assert [part for part in data.split(delimiter) if part] == found


def test_a_record_in_many_pieces() -> None:
    """They are joined once it is whole, or asked for."""
    records = RecordSplitter(b"\n")
    for _ in range(1000):
        assert [] == records.feed(b"ab")
    assert b"ab" * 1000 == records.rest
    assert [b"ab" * 1000] == records.feed(b"\nc")
    assert b"c" == records.rest


def test_a_record_without_an_end() -> None:
    """The limit holds for the record that has begun, not for what is whole."""
    records = RecordSplitter(b"\n", bytes_max=10)
    assert [b"0123456789"] == records.feed(b"0123456789\n01234")
    records.feed(b"56789")

    with pytest.raises(RecordTooLongError, match="no delimiter within 10 bytes"):
        records.feed(b"x")
