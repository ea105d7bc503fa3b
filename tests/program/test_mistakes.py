"""Mistakes: the nearest word, words in a sentence, and the end of a program."""

from __future__ import annotations

import pytest

from sparq.program.mistakes import end, nearest, one_of, quoted, shown, suggestion, warn

KNOWN = ("msg-timeout", "max-msg-size", "tcp-address")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("mgs-timeout", "msg-timeout"),
        ("tcp", "tcp-address"),  # not similar, but its beginning
        ("t", ""),  # too short to be a beginning
        ("verbose", ""),
        ("", ""),
    ],
)
def test_the_nearest_word_is_suggested(word: str, found: str) -> None:
    """By similarity, or as the beginning of a known word; otherwise nothing is suggested."""
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
def test_a_value_is_quoted_if_it_would_be_misread(text: str, in_a_sentence: str) -> None:
    """Blanks, quotes, line ends, nothing at all; it always stays on one line."""
    assert in_a_sentence == shown(text)
    assert "\n" not in quoted(text)


def test_choices_are_listed() -> None:
    """The empty choice means "none" and is left out."""
    assert "a" == one_of(["a"])
    assert "a or b" == one_of(["", "a", "b"])
    assert "a, b or c" == one_of(["a", "b", "c"])


def test_a_daemon_ends_with_a_log_line_and_a_tool_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both with status 1; a warning has the form of a log line, too."""
    assert 1 == end("nsqd", "it is wrong", is_daemon=True).code
    assert 1 == end("to_nsq", "it is wrong", is_daemon=False).code
    warn("nsqd", "it is odd")

    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("[nsqd] ")
    assert first.endswith(" FATAL: it is wrong")
    assert "to_nsq: it is wrong" == second
    assert third.startswith("[nsqd] ")
    assert third.endswith(" WARNING: it is odd")
