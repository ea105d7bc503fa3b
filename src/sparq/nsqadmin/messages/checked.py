"""Messages as a node sends them: data of another program, checked before any of it is used.

A node with an answer of another form is reported as one that did not answer; the messages of all
other nodes are shown.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sparq.nsqadmin.messages.times import ns_of

STATES: Final = ("waiting", "in_flight", "deferred")
Digits: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,20}$")]


class MessageHolder(msgspec.Struct):
    """The consumer that has a message in flight."""

    client_id: str
    hostname: str
    user_agent: str


class NodeMessage(msgspec.Struct, kw_only=True):
    """A message as nsqd shows it (docs/http.md)."""

    id: str
    time: str
    index: Digits
    timestamp: Digits
    size: int
    attempts: int | None = None
    state: Literal["waiting", "in_flight", "deferred", "finished"] | None = None
    client: MessageHolder | None = None
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
        found = msgspec.convert(message, NodeMessage)
    except msgspec.ValidationError as error:
        raise ValueError(f"unreadable message: {error}") from None
    if found.due:
        ns_of(found.due)
    # A publisher writes the history of a letter that a client library gave up.
    letter = None if found.letter is None else dict.fromkeys(LETTER_FIELDS, "") | found.letter
    return message if letter is None else {**message, "letter": letter}
