"""One message, found by its id: which node has it, what it says, its whole body."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.messages.asking import Answers, Refused, ask_all, check_some, nodes_of
from sparq.nsqadmin.messages.peek import Message, Show

ID: Final = re.compile(r"[0-9a-f]{16}")


async def find(
    fleet: Fleet, topic: str, message_id: str, channel: str = "", show: Show | None = None
) -> tuple[list[Message], Answers]:
    """The messages with an id: one, or more where nodes have the same node id.

    Raises:
        Refused: there is none; the code says from when the logs reach back.
    """
    if not ID.fullmatch(message_id):
        raise Refused("INVALID_ARG_ID: an id has 16 hexadecimal digits")
    show = show or Show()
    nodes, answers = await nodes_of(fleet, topic, show.nodes)
    query = {"topic": topic, "channel": channel, "id": message_id, **show.query()}
    del query["limit"]
    await ask_all(nodes, answers, lambda node: fleet.get(node, "/message", **query))
    check_some(answers)
    found = answers.found.items()
    return [{**said, "node": node} for node, said in found if isinstance(said, dict)], answers


async def whole_body(fleet: Fleet, topic: str, message_id: str, node: str) -> bytes:
    """A message's body, all of it.

    Raises:
        Refused: there is no such message or node.
    """
    if not ID.fullmatch(message_id):
        raise Refused("INVALID_ARG_ID: an id has 16 hexadecimal digits")
    try:
        at = (await fleet.node(node)).at
        return await fleet.upstream.read(at, "/message", topic=topic, id=message_id, raw="true")
    except UnknownNode:
        raise Refused("NODE_NOT_FOUND", 404) from None
    except UpstreamError as error:
        status = error.status if error.status in (400, 404) else 502
        raise Refused(error.code or f"UPSTREAM_ERROR: {error}", status) from None


def by_node(chosen: Iterable[Any]) -> dict[str, list[str]]:
    """Ids by node, of `{"node", "id"}` objects or `node/id` texts; for `actions.perform`.

    Raises:
        ValueError: one is neither.
    """
    found: dict[str, list[str]] = {}
    for each in chosen:
        node, message_id = _parts(each)
        if not isinstance(node, str) or not node or not isinstance(message_id, str):
            raise ValueError("a message is named by its node and its id")
        if not ID.fullmatch(message_id):
            raise ValueError("an id has 16 hexadecimal digits")
        found.setdefault(node, []).append(message_id)
    return found


def _parts(named: Any) -> tuple[Any, Any]:
    if isinstance(named, str):
        node, _, message_id = named.rpartition("/")
        return node, message_id
    return (named.get("node"), named.get("id")) if isinstance(named, dict) else (None, None)
