"""Messages in the JSON form of the inspection routes (docs/http.md, "Looking into a queue").

Each message has its own pieces, so that the event loop can run in between. Large bodies are encoded
as JSON in a thread: 1 MiB takes up to 7 ms (measured).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sparq.inspection.snapshot import MessageState, StateDetails
from sparq.log.inspection import StoredMessage
from sparq.nsqd.seeking import shown_time
from sparq.options.units import SECOND
from sparq.protocol.dead_letters import unseal
from sparq.protocol.go_json import to_text
from sparq.protocol.layout import INDEX_BITS

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.protocol.instant import Instant

UTF8_BYTES_MAX: Final = 4

Pieces = Sequence[str | bytes]
"""A text in parts."""


def id_of(index: int, node_id: int) -> str:
    """Return a message's id as consumers see it."""
    return f"{node_id << INDEX_BITS | index:016x}"


def body_of(stored: StoredMessage) -> dict[str, Any]:
    """Return a body's JSON members; a body cut within a UTF-8 character still counts as text."""
    body, cut = stored.body, len(stored.body) < stored.size
    for less in range(UTF8_BYTES_MAX if cut else 1):
        try:
            text = body[: len(body) - less].decode()
        except UnicodeDecodeError:
            continue
        return {"body": text, "encoding": "text", "cut": cut}
    return {"body": base64.b64encode(body).decode(), "encoding": "base64", "cut": cut}


def bodies_of(found: Iterable[StoredMessage]) -> dict[int, bytes]:
    """Return `body_of` each message as JSON members without the braces, by index."""
    return {stored.index: to_text(body_of(stored))[1:-1].encode() for stored in found}


def unsealed(stored: StoredMessage, body_bytes: int) -> tuple[StoredMessage, Mapping[str, str]]:
    """Split a dead letter into its message, cut to `body_bytes`, and its history (may be empty)."""
    fields, body = unseal(stored.body)
    size = stored.size - (len(stored.body) - len(body))
    return StoredMessage(stored.index, stored.time_ns, size, body[: max(0, body_bytes)]), fields


def message_of(
    stored: StoredMessage, node_id: int, standing: StateDetails | None
) -> dict[str, Any]:
    """Return a message's JSON members before its body; `standing`: its state on a channel."""
    return {
        "id": id_of(stored.index, node_id),
        "index": str(stored.index),
        "time": shown_time(stored.time_ns),
        "timestamp": str(stored.time_ns),
        "attempts": None if standing is None else standing.attempts,
        "size": stored.size,
    }


def state_json(standing: StateDetails, channel: Channel, now: Instant) -> dict[str, Any]:
    """Return a message's state on a channel, with details if it is in flight or deferred."""
    return {"state": standing.state.name.lower(), **_whereabouts(standing, channel, now)}


def _whereabouts(standing: StateDetails, channel: Channel, now: Instant) -> dict[str, Any]:
    if standing.state is MessageState.IN_FLIGHT:
        session = channel.sessions.get(standing.owner)
        return {
            "client": None
            if session is None
            else {
                "client_id": session.client_id,
                "hostname": session.hostname,
                "remote_address": session.remote_address,
                "user_agent": session.user_agent,
            },
            "since": _moment(standing.since_ns, now),
            "deadline": _moment(standing.deadline_ns, now),
            "in_flight_seconds": _seconds(now.mono_ns - standing.since_ns),
        }
    if standing.state is MessageState.DEFERRED:
        return {
            "due": _moment(standing.due_ns, now),
            "due_seconds": _seconds(max(0, standing.due_ns - now.mono_ns)),
        }
    return {}


def _moment(mono_ns: int, now: Instant) -> str | None:
    # Deadlines are monotonic, so that a change of the system's time does not move them.
    return shown_time(now.wall_ns + mono_ns - now.mono_ns)


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / SECOND, 3)


def pieces_of(head: dict[str, Any], body: bytes | None, tail: dict[str, Any]) -> Pieces:
    """Return one JSON object; `body` holds members already encoded as JSON, or is None."""
    middle: Pieces = [] if body is None else [",", body]
    behind = f",{to_text(tail)[1:]}" if tail else "}"
    return [to_text(head)[:-1], *middle, behind]


def document_of(
    head: dict[str, Any], messages: Iterable[Pieces], tail: dict[str, Any]
) -> Iterator[str | bytes]:
    """Yield an answer with a list of messages between `head` and `tail`."""
    yield f'{to_text(head)[:-1]},"messages":['
    comma = ""
    for message in messages:
        yield comma
        yield from message
        comma = ","
    yield f"],{to_text(tail)[1:]}"
