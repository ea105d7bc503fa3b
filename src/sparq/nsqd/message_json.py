"""A message as the inspection routes show it (docs/http.md, "Looking into a queue").

Each message is a piece of its own, so that the loop runs on between them.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from sparq.broker.picture import Standing, State
from sparq.nsqd.seeking import shown_time
from sparq.protocol.durations import SECOND
from sparq.protocol.frames import INDEX_BITS

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.log.looking import Stored
    from sparq.protocol.instant import Instant

UTF8_BYTES_MAX: Final = 4


def id_of(index: int, node_id: int) -> str:
    """A message's id as consumers see it."""
    return f"{node_id << INDEX_BITS | index:016x}"


def body_of(stored: Stored) -> dict[str, Any]:
    """The members about a message's body; a cut one is text, too, where it is cut in a letter."""
    body, cut = stored.body, len(stored.body) < stored.size
    for less in range(UTF8_BYTES_MAX if cut else 1):
        try:
            text = body[: len(body) - less].decode()
        except UnicodeDecodeError:
            continue
        return {"body": text, "encoding": "text", "cut": cut}
    return {"body": base64.b64encode(body).decode(), "encoding": "base64", "cut": cut}


def message_of(
    stored: Stored, node_id: int, standing: Standing | None, *, bodies: bool
) -> dict[str, Any]:
    """A message; without `standing` it is no channel's."""
    found: dict[str, Any] = {
        "id": id_of(stored.index, node_id),
        "index": str(stored.index),
        "time": shown_time(stored.time_ns),
        "timestamp": str(stored.time_ns),
        "attempts": None if standing is None else standing.attempts,
        "size": stored.size,
    }
    if bodies:
        found |= body_of(stored)
    if standing is not None:
        found["state"] = standing.state.name.lower()
    return found


def standing_of(standing: Standing, channel: Channel, now: Instant) -> dict[str, Any]:
    """What is told of a message in flight, or of a deferred one, beside its state."""
    if standing.state is State.IN_FLIGHT:
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
    if standing.state is State.DEFERRED:
        return {
            "due": _moment(standing.due_ns, now),
            "due_seconds": _seconds(max(0, standing.due_ns - now.mono_ns)),
        }
    return {}


def _moment(mono_ns: int, now: Instant) -> str | None:
    return shown_time(now.wall_ns + mono_ns - now.mono_ns)


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / SECOND, 3)


def to_text(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
