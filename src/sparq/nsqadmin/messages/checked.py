"""Messages as a node sends them: data of another program, checked before any of it is used.

A node with an answer of another form is reported as one that did not answer; the messages of all
other nodes are shown.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sparq.nsqadmin.messages.times import ns_of

INDEX_DIGITS_MAX: Final = 20
STATES: Final = ("waiting", "in_flight", "deferred", "finished")


class _Client(msgspec.Struct):
    client_id: str
    hostname: str
    user_agent: str


class _Message(msgspec.Struct):
    id: str
    time: str
    index: str
    timestamp: str
    size: int
    attempts: int | None = None
    state: str | None = None
    client: _Client | None = None
    deadline: str | None = None
    due: str | None = None
    in_flight_seconds: float | None = None
    due_seconds: float | None = None
    body: str = ""
    encoding: str = ""
    letter: dict[str, str] | None = None


LETTER_FIELDS: Final = (
    *("topic", "channel", "id", "attempts", "published", "last_returned", "consumer", "reason"),
    "redriven",
)


def checked(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message; a dead letter's history has all of its fields, unknown ones empty.

    Raises:
        ValueError: a field is missing, or has another type or range.
    """
    try:
        found = msgspec.convert(message, _Message)
    except msgspec.ValidationError as error:
        raise ValueError(f"unreadable message: {error}") from None
    for number in (found.index, found.timestamp):
        if not number.isascii() or not number.isdigit() or len(number) > INDEX_DIGITS_MAX:
            raise ValueError("unreadable message: its index or timestamp is no number")
    if found.due:
        ns_of(found.due)
    if found.state not in (None, *STATES):
        raise ValueError("unreadable message: it has no known state")
    # A publisher writes the history of a letter that a client library gave up.
    letter = None if found.letter is None else dict.fromkeys(LETTER_FIELDS, "") | found.letter
    return message if letter is None else {**message, "letter": letter}
