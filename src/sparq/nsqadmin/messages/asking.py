"""Queries the nodes of a topic about its messages, and collects their answers and failures.

Go's nsqd serves none of these routes and answers that there is no such route. It is then listed in
`unable`, and pages explain this instead of showing an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import NO_ROUTE, UpstreamError
from sparq.daemon.http import HttpError
from sparq.protocol.names import one_line

Nodes: TypeAlias = dict[str, Node]

QUOTED_MAX: Final = 200
NOT_THERE: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "MESSAGE_NOT_FOUND")


class Refused(HttpError):
    """A query is refused or cannot be answered; the code is a node's, or has the same form."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(status, code)


@dataclass(slots=True)
class Answers:
    """The nodes' answers to one query.

    Attributes:
        found: answers by address.
        errors: by address, why a node did not answer.
        unable: addresses of Go nsqds, which do not have the route.
        absent: by address, the error code of a node without this topic, channel or message.
    """

    found: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unable: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The nodes without an answer and the reasons, as JSON values."""
        return {"errors": self.errors, "unable": self.unable, "absent": self.absent}


async def nodes_of(fleet: Fleet, topic: str, only: Iterable[str] = ()) -> tuple[Nodes, Answers]:
    """Find the nodes of a topic, all or those of `only` (addresses), and start their `Answers`.

    Raises:
        Refused: 404 NODE_NOT_FOUND, 404 TOPIC_NOT_FOUND, 502 UPSTREAM_ERROR.
    """
    found = await fleet.producers(topic)
    if found.failed:
        if found.errors and all("TOPIC_NOT_FOUND" in why for why in found.errors.values()):
            raise Refused("TOPIC_NOT_FOUND", 404)
        raise Refused(f"UPSTREAM_ERROR: {found.failure}", 502)
    nodes = {node.address: node for node in found.value}
    for address in only:
        try:
            nodes.setdefault(address, await fleet.node(address))
        except UnknownNode:
            raise Refused("NODE_NOT_FOUND", 404) from None
    if not nodes:
        raise Refused("TOPIC_NOT_FOUND", 404)
    chosen = {address: nodes[address] for address in only} or nodes
    errors = {at: why for at, why in found.errors.items() if "TOPIC_NOT_FOUND" not in why}
    return chosen, Answers(errors=errors)


async def get_object(fleet: Fleet, node: Node, path: str, /, **query: str) -> dict[str, Any]:
    """Send a GET request to a node.

    Raises:
        UpstreamError: the request failed.
        ValueError: the answer is not a JSON object.
    """
    answer = await fleet.get(node, path, **query)
    if not isinstance(answer, dict):
        raise ValueError("it is not a JSON object")
    return answer


async def query_all(nodes: Nodes, answers: Answers, ask: Callable[[Node], Awaitable[Any]]) -> None:
    """Query all nodes at once, and put what they answer into `answers`: JSON objects.

    `ask` may raise ValueError: the node's answer has another form.

    Raises:
        Refused: a node rejects the query; or no node has a result: 404 if it does not exist, 501 if
            nodes are Go's, 502 if they did not answer.
    """
    results = await asyncio.gather(*map(ask, nodes.values()), return_exceptions=True)
    wrong: UpstreamError | None = None
    for address, answer in zip(nodes, results, strict=True):
        if isinstance(answer, dict):
            answers.found[address] = answer
        elif isinstance(answer, ValueError) or not isinstance(answer, BaseException):
            answers.errors[address] = f"unreadable answer: {one_line(str(answer))[:QUOTED_MAX]}"
        elif not isinstance(answer, UpstreamError):
            raise answer
        elif answer.status == 404 and answer.code == NO_ROUTE:
            answers.unable.append(address)
        elif answer.status == 404 and answer.code.startswith(NOT_THERE):
            answers.absent[address] = answer.code
        elif answer.status == 400:
            wrong = answer
        else:
            answers.errors[address] = answer.reason
    if wrong is not None:
        raise Refused(wrong.code or "INVALID_REQUEST")
    if nodes and not answers.found:
        raise _nothing(answers)


def _nothing(answers: Answers) -> Refused:
    """The error for a query that no node could answer."""
    if answers.absent and not answers.errors:
        return Refused(next(iter(answers.absent.values())), 404)
    if answers.unable and not answers.errors:
        return Refused("NOT_SUPPORTED: all nodes of this topic are NSQ's Go nsqds", 501)
    reasons = "; ".join(f"{address}: {why}" for address, why in answers.errors.items())
    return Refused(f"UPSTREAM_ERROR: {reasons}", 502)
