"""Messages as rows of a table: what a person needs to know of each, on one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sparq.client.reasons import one_line
from sparq.tools.admin.job import Job
from sparq.tools.admin.reading import Message
from sparq.tools.view import duration

HEADINGS: Final = ("id", "node", "time", "state", "attempts", "size", "body")
BODY_MAX: Final = 80


async def show_messages(job: Job, messages: Iterable[Message], **more: Any) -> None:
    """Print messages as a table, or as a document with all that is known of them."""
    messages = list(messages)
    if job.options.json:
        await job.say_json({"messages": messages, **more, "errors": job.errors})
    else:
        await job.show(HEADINGS, map(_row, messages), 4)


def _row(message: Message) -> dict[str, Any]:
    # A body stands to the right in the table; a short one is easier to find with its begin kept.
    body = message.get("body")
    text = one_line(body) if isinstance(body, str) else ""
    cut = text[:BODY_MAX] + ("..." if len(text) > BODY_MAX or message.get("cut") is True else "")
    return {
        "id": message["id"],
        "node": message["node"],
        "time": message.get("time"),
        "state": _state(message),
        "attempts": message.get("attempts"),
        "size": message.get("size"),
        "body": f"{cut} (base64)" if message.get("encoding") == "base64" else cut,
    }


def _state(message: Message) -> str:
    """The state, with who has it and for how long, or when it is due."""
    state = str(message.get("state") or "")
    if state == "in_flight":
        client = message.get("client")
        who = client.get("hostname") or client.get("client_id") if isinstance(client, dict) else ""
        held = message.get("in_flight_seconds")
        time = duration(float(held)) if isinstance(held, int | float) else ""
        return " ".join(filter(None, ("in flight", time, f"at {who}" if who else "")))
    due = message.get("due_seconds")
    if state == "deferred" and isinstance(due, int | float):
        return f"deferred, due in {duration(max(0.0, float(due)))}"
    return state
