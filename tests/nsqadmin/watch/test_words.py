"""Numbers, durations and lists of names in sentences."""

from __future__ import annotations

from sparq.nsqadmin.watch.words import count, duration, names, rate


def test_numbers_durations_and_lists_are_written_in_english() -> None:
    """Numbers, durations and lists are written as in English sentences."""
    assert "1 message" == count(1, "message")
    assert "12,345 messages" == count(12_345, "message")
    assert ["0", "0.4", "12", "1,234"] == [rate(number) for number in (0, 0.4, 12.2, 1234)]
    seconds = (0.2, 59, 119, 120, 3600, 7300, 90_000, 1e6, float("inf"))
    assert ["0 s", "59 s", "119 s", "2 min", "1 h", "2 h 1 min", "25 h", "11 days", "forever"] == [
        duration(each) for each in seconds
    ]
    assert ["", "a", "a and b", "a, b and c", "a, b, c and 2 more"] == [
        names(list(text)) for text in ("", "a", "ab", "abc", "abcde")
    ]
