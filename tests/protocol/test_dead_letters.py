"""The names of dead-letter topics, and the history in a dead letter."""

from __future__ import annotations

import pytest

from sparq.protocol import envelope
from sparq.protocol.dead_letters import (
    TEXT_SIZE_MAX,
    DeadLetterHistory,
    dead_letter_topic,
    unseal,
)
from sparq.protocol.names import is_dead_letter_topic, is_valid_name


@pytest.mark.parametrize(
    ("name", "dead"),
    [
        ("t", "t.dead"),
        ("t#ephemeral", "t.dead#ephemeral"),
        ("x" * 64, "x" * 59 + ".dead"),
        ("x" * 54 + "#ephemeral", "x" * 49 + ".dead#ephemeral"),
    ],
)
def test_names_of_dead_letter_topics(name: str, dead: str) -> None:
    """A dead-letter topic's name ends in `.dead` and has at most 64 characters."""
    assert dead == dead_letter_topic(name)
    assert is_valid_name(dead)
    assert is_dead_letter_topic(dead)
    assert not is_dead_letter_topic(name)


def test_a_dead_letter_has_a_history_and_a_body() -> None:
    """A dead letter's history is text; unknown fields are empty.

    A reason is cut to `TEXT_SIZE_MAX` characters.
    """
    reason = "x" * (TEXT_SIZE_MAX + 1)
    history = DeadLetterHistory("t", "c", "0a", 3, 1_000_000_001, 0, "", reason, 2)

    assert (
        {
            "dead_letter": "1",
            "topic": "t",
            "channel": "c",
            "id": "0a",
            "attempts": "3",
            "published": "1970-01-01T00:00:01.000000001Z",
            "last_returned": "",
            "consumer": "",
            "reason": reason[:TEXT_SIZE_MAX],
            "redriven": "2",
        },
        b"body",
    ) == unseal(history.seal(b"body"))


@pytest.mark.parametrize("data", [b"plain", envelope.seal({"trace": "1"}, b"body")])
def test_other_messages_are_not_dead_letters(data: bytes) -> None:
    """A plain body and an envelope without `dead_letter` are not dead letters."""
    assert ({}, data) == unseal(data)
