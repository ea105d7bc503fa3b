"""Figures, bodies and errors as they are shown on pages."""

from __future__ import annotations

import base64
import math

import pytest

from sparq.nsqadmin import words
from sparq.nsqadmin.dead_letters import origin


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (words.short(None), "\N{EN DASH}"),
        (words.short(0), "0"),
        (words.short(99_999), "99,999"),
        (words.short(123_456), "123k"),
        (words.short(1_234_567), "1.23M"),
        (words.short(12_345_678), "12.3M"),
        (words.rate(0), "0"),
        (words.rate(0.44), "0.4"),
        (words.rate(1234), "1,234"),
        (words.rate(1_234_567.0), "1.23M"),
        (words.per_second(None), "\N{EN DASH}"),
        (words.per_second(12.0), "12/s"),
        (words.signed(12.4), "+12"),
        (words.signed(-3.0), "\N{MINUS SIGN}3.0"),
        (words.signed(0.0), "0"),
        (words.size(512), "512 B"),
        (words.size(1536), "1.50 KiB"),
        (words.seconds(0.5), "< 1 s"),
        (words.seconds(math.inf), "never"),
        (words.moment(1_000_000_000), "2001-09-09 01:46:40"),
        (words.moment(None), "\N{EN DASH}"),
        (words.ago(100.0, 160.0), "60 s ago"),
    ],
)
def test_figures_are_short(shown: str, expected: str) -> None:
    """Figures fit a table column; an unknown figure is a dash."""
    assert shown == expected


def test_a_refusal_has_its_detail_once() -> None:
    """The detail follows the code's sentence; a code without a sentence is shown as it is."""
    _, sentence, _ = words.in_words(400, "INVALID_POLICIES: policy 2: unknown setting")
    assert sentence.endswith(" policy 2: unknown setting")
    assert sentence.count("unknown setting") == 1
    assert "INVALID_POLICIES" not in sentence
    unknown = "INVALID_ARG_ID: 16 hexadecimal digits"
    assert words.in_words(400, unknown) == ("Bad request", unknown, "")


def test_a_body_is_formatted_by_its_type() -> None:
    """JSON is indented, bytes are a hex dump, the rest is text, as is JSON that was cut."""
    data = bytes(range(20))
    raw = {"body": base64.b64encode(data).decode(), "encoding": "base64"}
    deep = "[" * 100_000

    assert words.body_of({"body": '{"a":1}', "cut": False}) == ("JSON", '{\n  "a": 1\n}')
    assert words.body_of({"body": '{"a":1', "cut": True}).kind == "text"
    assert words.body_of({"body": deep, "cut": False}).kind == "text"
    assert words.body_of({"body": "hello"}) == ("text", "hello")
    assert words.body_of({}) == ("not shown", "")
    assert words.body_of(raw).text.splitlines() == [
        "000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................",
        "000010  10 11 12 13                                      ....",
    ]
    assert words.body_line(raw).startswith("00 01 02")
    assert words.body_line({"body": "a\n  b " * 200}) == ("a b " * 200)[:160]
    assert words.body_of({"body": "*", "encoding": "base64"}) == ("bytes", "")
    assert words.hexdump(bytes(5000)).endswith("and 904 bytes more")


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders.dead", "orders"),
        ("orders-dlq", "orders"),
        ("orders_dead_letters", "orders"),
        ("orders.failed#ephemeral", "orders"),
        ("orders", ""),
        ("dead", ""),
        ("undead", ""),
    ],
)
def test_the_original_topic_follows_from_the_name(topic: str, expected: str) -> None:
    """A dead-letter topic's name without its suffix is the original topic."""
    assert origin(topic) == expected


def test_numbers_durations_and_lists_are_written_in_english() -> None:
    """Numbers, durations and lists are written as in English sentences."""
    assert ["1 message", "12,345 messages"] == [words.count(n, "message") for n in (1, 12_345)]
    seconds = (0.2, 59, 119, 120, 3600, 7300, 90_000, 1e6, math.inf)
    assert ["0 s", "59 s", "119 s", "2 min", "1 h", "2 h 1 min", "25 h", "11 days", "forever"] == [
        words.duration(each) for each in seconds
    ]
    assert ["", "a", "a and b", "a, b and c", "a, b, c and 2 more"] == [
        words.names(text) for text in ("", "a", "ab", "abc", "abcde")
    ]
