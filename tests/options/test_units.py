"""Durations are parsed and formatted as in Go; Spark's words and sizes are parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.options.units import (
    DAY,
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    UNITS,
    format_duration,
    parse_duration,
    parse_size,
    parse_words,
)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("300ms", 300 * MILLISECOND),
        ("1.5h", 90 * MINUTE),
        ("2m30s", 150 * SECOND),
        ("1h2m3.5s", HOUR + 2 * MINUTE + 3500 * MILLISECOND),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("-1s", -SECOND),
        ("+1s", SECOND),
        ("7ns", 7),
        ("7us", 7000),
        ("7\u00b5s", 7000),
        ("7\u03bcs", 7000),
        ("0.1s", 100 * MILLISECOND),
    ],
)
def test_durations_are_parsed_as_in_go(text: str, nanoseconds: int) -> None:
    """Units, fractions, signs and sums have the same meaning as in Go."""
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["", "60", "1", "s", ".s", "1x", "1s ", " 1s", "1 s", "-", "--1s", "1s1", "\u0661s", "1e3s"],
)
def test_durations_that_go_refuses_are_refused(text: str) -> None:
    """A missing unit or number and blanks are errors."""
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9223372037s", "9" * 100 + "s", "1h" * 3_000_000])
def test_durations_above_64_bits_are_refused(text: str) -> None:
    """More than 292 years is refused, also as a sum, and in short time for a huge text."""
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1100, "1.1\u00b5s"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (245 * SECOND, "4m5s"),
        (245_001 * MILLISECOND, "4m5.001s"),
        (5 * HOUR + 6 * MINUTE + 7001 * MILLISECOND, "5h6m7.001s"),
        (8 * MINUTE + 1, "8m0.000000001s"),
        (HOUR, "1h0m0s"),
        (-250 * MILLISECOND, "-250ms"),
    ],
)
def test_durations_are_printed_as_go_prints_them(nanoseconds: int, text: str) -> None:
    """The examples from Go's own tests give the same text."""
    assert format_duration(nanoseconds) == text


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_a_formatted_duration_is_parsed_as_the_same_number(nanoseconds: int) -> None:
    """A formatted duration is parsed as the same number, over the whole 64-bit range."""
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("5", 5 * MILLISECOND),
        ("1 minute 30 seconds", 90 * SECOND),
        ("15min", 15 * MINUTE),
        (" 250 Milliseconds ", 250 * MILLISECOND),
        ("2 d", 2 * DAY),
        ("1.5h", 90 * MINUTE),
    ],
)
def test_durations_may_be_words(text: str, nanoseconds: int) -> None:
    """Spark's words and units are accepted; a bare number has the unit that the caller names."""
    assert parse_words(text, "ms") == nanoseconds


@pytest.mark.parametrize("text", ["", "-1s", "soon", "5 parsecs", "1 second later", "1 s s"])
def test_other_words_are_refused(text: str) -> None:
    """Other words and negative durations are refused; Go's parser knows no days."""
    with pytest.raises(ValueError, match="invalid duration"):
        parse_words(text, "s")
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration("1d")
    assert parse_duration("-1d2h", UNITS) == -26 * HOUR


def test_sizes_have_binary_units() -> None:
    """A size is a number above 0 with a unit or without."""
    for text, size in (("7", 7), ("512k", 512 << 10), ("64 MiB", 64 << 20), ("1G", 1 << 30)):
        assert parse_size(text) == size
    for text in ("0", "", "1.5g", "k", "-1m"):
        with pytest.raises(ValueError, match="invalid size"):
            parse_size(text)
