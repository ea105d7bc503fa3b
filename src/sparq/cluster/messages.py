"""The messages that nsqds show over HTTP (docs/http.md, "Looking into a queue"), checked.

A node's answer is not trusted: one of another form makes the node faulty, as one that fails.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct

from sparq.cluster.figures import Amount
from sparq.cluster.fleet import Fleet, Node, checked_answer
from sparq.protocol.messages import Digits, NodeMessage

Message: TypeAlias = dict[str, Any]
"""The node's own object, and `node`, the node's address: two nodes may have the same id."""


class NodePage(Struct):
    """A node's page of messages, or its step of a search."""

    messages: list[NodeMessage] = []
    next: str | None = None
    total: int | None = None
    first_index: str | None = None
    end_index: Digits | None = None
    older_are_gone: bool = False
    done: bool = False
    progress: Annotated[float, Meta(ge=0, le=1)] = 0.0
    scanned: Amount = 0
    scanned_bytes: Amount = 0
    unsearched: Amount = 0


LETTER_FIELDS: Final = (
    *("topic", "channel", "id", "attempts", "published", "last_returned", "consumer", "reason"),
    "redriven",
)


def shown(message: Message, node: str) -> Message:
    """A checked message with its node; a letter's history has all of its fields, some empty."""
    letter = message.get("letter")
    # A publisher writes the history of a letter that a client library gave up.
    more = {"letter": dict.fromkeys(LETTER_FIELDS, "") | letter} if letter is not None else {}
    return {**message, **more, "node": node}


async def node_page(
    fleet: Fleet, node: Node, path: str, query: dict[str, str]
) -> tuple[NodePage, list[Message]]:
    """Fetch a page of a node's messages, or a step of its search; also return its messages.

    Raises:
        UpstreamError: the request failed, or the answer has another form.
    """
    answer = await fleet.get(node, path, **query)
    page = checked_answer(node, answer, NodePage)
    return page, [shown(message, node.address) for message in answer.get("messages", ())]


async def node_message(fleet: Fleet, node: Node, query: dict[str, str]) -> Message:
    """Fetch one message of a node. Raises the errors of `node_page`."""
    answer = await fleet.get(node, "/message", **query)
    checked_answer(node, answer, NodeMessage)
    return shown(answer, node.address)
