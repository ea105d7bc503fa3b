"""NSQ's API, what it does: create, delete, pause, unpause, empty, tombstone.

1. Who may is asked before the body is read; then NSQ's codes for what is wrong with it.
2. Where nobody could say who has a topic the answer is 502; a daemon that failed is a warning.
3. A node that is not known is refused: 404 NODE_NOT_FOUND.
"""

from __future__ import annotations

import json
from typing import Any, Final

from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqadmin.actions import Order
from sparq.nsqadmin.api.answers import upstream_error, warning
from sparq.nsqadmin.desk import Desk
from sparq.protocol.names import is_valid_name

BODY_BYTES_MAX: Final = 1 << 20
ACTIONS: Final = ("pause", "unpause", "empty")


class Writing:
    """The handlers."""

    def __init__(self, desk: Desk) -> None:
        self._actions = desk.actions

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("POST", "/api/topics", self.create),
            Route("POST", "/api/topics/:topic", self.act),
            Route("POST", "/api/topics/:topic/:channel", self.act),
            Route("DELETE", "/api/topics/:topic", self.delete),
            Route("DELETE", "/api/topics/:topic/:channel", self.delete),
            Route("DELETE", "/api/nodes/:node", self.tombstone),
        ]

    async def create(self, call: Call) -> dict[str, str]:
        """Make a topic known, and a channel."""
        told = await _fields(call, "topic", "channel")
        topic, channel = told["topic"], told["channel"]
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        return await self._do(call, Order(f"create_{_kind(channel)}", topic, channel))

    async def act(self, call: Call) -> dict[str, str]:
        """Pause, unpause or empty a topic or a channel."""
        topic, channel = call.parameters["topic"], call.parameters.get("channel", "")
        action = (await _fields(call, "action"))["action"]
        if action not in ACTIONS:
            raise HttpError(400, "INVALID_ACTION")
        return await self._do(call, Order(f"{action}_{_kind(channel)}", topic, channel))

    async def delete(self, call: Call) -> dict[str, str]:
        """Delete a topic or a channel."""
        topic, channel = call.parameters["topic"], call.parameters.get("channel", "")
        return await self._do(call, Order(f"delete_{_kind(channel)}", topic, channel))

    async def tombstone(self, call: Call) -> dict[str, str]:
        """Hide a node from a topic's consumers, and delete the topic there."""
        try:
            topic = (await _fields(call, "topic"))["topic"]
        except HttpError as error:
            raise HttpError(error.status, "INVALID_BODY") from None
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        order = Order("tombstone_topic_producer", topic, node=call.parameters["node"])
        return await self._do(call, order)

    async def _do(self, call: Call, order: Order) -> dict[str, str]:
        report = await self._actions.perform(call.request, order, must_type=False)
        if report.failed:
            raise upstream_error(report.failed)
        return {"message": warning([report.text])}


def _kind(channel: str) -> str:
    return "channel" if channel else "topic"


async def _fields(call: Call, *names: str) -> dict[str, str]:
    """Texts of the JSON object that a body begins with, "" for those that are not there.

    Raises:
        HttpError: 400 with what is wrong with it; 413 BODY_TOO_BIG.
    """
    text = (await call.body(BODY_BYTES_MAX, "BODY_TOO_BIG")).decode("utf-8", "replace").lstrip()
    if not text:
        raise HttpError(400, "EOF")
    try:
        document, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise HttpError(400, "invalid JSON") from None
    # As Go reads objects: null is an empty one, and the case of keys does not count.
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise HttpError(400, "invalid JSON: an object is wanted")
    folded: dict[str, Any] = {str(key).lower(): value for key, value in document.items()}
    found = {name: folded.get(name) or "" for name in names}
    for name, value in found.items():
        if not isinstance(value, str):
            raise HttpError(400, f"invalid JSON: {name} is no string")
    return found
