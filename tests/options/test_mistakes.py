"""Sentences about mistakes: suggestions and quoting."""

from __future__ import annotations

import pytest

from sparq.options.mistakes import nearest, one_of, quoted, shown, suggestion

KNOWN = ("msg-timeout", "max-msg-size", "tcp-address")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("mgs-timeout", "msg-timeout"),
        ("tcp", "tcp-address"),  # not similar, but a prefix
        ("t", ""),  # too short for a prefix
        ("verbose", ""),
        ("", ""),
    ],
)
def test_the_nearest_word_is_suggested(word: str, found: str) -> None:
    """A similar word, or one that begins with the given word, is suggested; otherwise none."""
    assert found == nearest(word, KNOWN)
    assert (f": did you mean --{found}?" if found else "") == suggestion(word, KNOWN, "--{}")


@pytest.mark.parametrize(
    ("text", "in_a_sentence"),
    [
        ("a:1", "a:1"),
        ("", '""'),
        ("a b", '"a b"'),
        ('a"b', '"a\\"b"'),
        ("a\nb", '"a\\nb"'),
        ("ä", '"ä"'),
    ],
)
def test_an_ambiguous_value_is_quoted(text: str, in_a_sentence: str) -> None:
    """Values that are empty, or have spaces, quotes or line ends, are quoted on one line."""
    assert in_a_sentence == shown(text)
    assert "\n" not in quoted(text)


def test_choices_are_listed() -> None:
    """Choices are listed with commas and "or"; the empty choice is omitted."""
    assert "a" == one_of(["a"])
    assert "a or b" == one_of(["", "a", "b"])
    assert "a, b or c" == one_of(["a", "b", "c"])
