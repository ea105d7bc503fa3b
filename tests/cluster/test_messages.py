"""Messages from nodes: valid ones pass unchanged, all others are refused with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparq.cluster.messages import LETTER_FIELDS, Message, shown
from sparq.protocol.messages import NodeMessage

MESSAGE: dict[str, Any] = {
    "id": "0ac3ac5ff8a56000",
    "time": "2026-01-31T07:12:44.1Z",
    "index": "1033942098419712",
    "timestamp": "1769843564100000000",
    "size": 3,
    "state": "waiting",
    "body": "one",
    "encoding": "text",
}


def checked(message: Message) -> Message:
    """Check a message as one of the node `a:1`."""
    msgspec.convert(message, NodeMessage)
    return shown(message, "a:1")


def test_a_valid_message_is_returned_as_it_is() -> None:
    """Also members that are not known here stay."""
    message = MESSAGE | {"later": 1}

    assert {**message, "node": "a:1"} == checked(message)


def test_a_letters_missing_fields_are_empty() -> None:
    """Pages may show all fields of a dead letter's history, whoever wrote it."""
    letter = checked(MESSAGE | {"letter": {"reason": "requeued", "own": "x"}})["letter"]

    assert {*LETTER_FIELDS, "own"} == set(letter)
    assert ("requeued", "") == (letter["reason"], letter["topic"])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"size": "3"}, {"size": None}, {"attempts": "1"}, {"client": "me"}, {"letter": []}),
        *({"index": "-1"}, {"index": "1" * 21}, {"timestamp": "²"}, {"state": "lost"}),
        *({"id": 7}, {"due": "soon"}, {"letter": {"topic": 1}}),
    ],
)
def test_another_message_is_refused_with_a_reason(wrong: dict[str, Any]) -> None:
    """A wrong type or an impossible value is an error, which names the node's message."""
    with pytest.raises(ValueError, match=r"\S"):
        checked(MESSAGE | wrong)
