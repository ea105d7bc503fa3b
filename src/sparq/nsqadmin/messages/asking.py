"""Which nodes are asked about a topic's messages, and what they say when they cannot tell.

Go's nsqd serves none of this: it says that there is no such route. It is among `unable` then, and
pages say so instead of an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError

T = TypeVar("T")

NO_ROUTE: Final = "NOT_FOUND"
NOT_THERE: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "MESSAGE_NOT_FOUND")


class Refused(Exception):
    """What was asked for is wrong; the code is a node's, or one like it."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


@dataclass(slots=True)
class Answers:
    """What nodes said.

    Attributes:
        found: their answers, by address.
        errors: why others gave none.
        unable: nodes that serve no such thing: Go's.
        absent: nodes that do not have what was asked for.
    """

    found: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unable: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


async def nodes_of(fleet: Fleet, topic: str, only: Iterable[str] = ()) -> tuple[Nodes, Answers]:
    """The nodes that have a topic, and an answer to fill.

    Args:
        fleet: the cluster.
        topic: the topic.
        only: addresses; empty: all.

    Raises:
        Refused: 404 NODE_NOT_FOUND, 404 TOPIC_NOT_FOUND, 502 UPSTREAM_ERROR.
    """
    found = await fleet.producers(topic)
    if found.failed:
        absent = found.errors and all("TOPIC_NOT_FOUND" in why for why in found.errors.values())
        if absent:
            raise Refused("TOPIC_NOT_FOUND", 404)
        raise Refused(f"UPSTREAM_ERROR: {found.failure}", 502)
    nodes = {node.address: node for node in found.value}
    for address in only:
        try:
            nodes.setdefault(address, await fleet.node(address))
        except UnknownNode:
            raise Refused("NODE_NOT_FOUND", 404) from None
    wanted = set(only) or set(nodes)
    if not nodes:
        raise Refused("TOPIC_NOT_FOUND", 404)
    chosen = {address: node for address, node in nodes.items() if address in wanted}
    errors = {at: why for at, why in found.errors.items() if "TOPIC_NOT_FOUND" not in why}
    return chosen, Answers(errors=errors)


Nodes = dict[str, Node]


async def ask_all(
    nodes: Nodes, answers: Answers, ask: Callable[[Node], Awaitable[Any]]
) -> dict[str, Any]:
    """Ask nodes at once; what each said is in `answers`, and those that answered are returned.

    Raises:
        Refused: a node says that the question is wrong.
    """

    async def one(node: Node) -> tuple[str, Any, UpstreamError | None]:
        try:
            return node.address, await ask(node), None
        except UpstreamError as error:
            return node.address, None, error

    said = await asyncio.gather(*(one(node) for node in nodes.values()))
    wrong: UpstreamError | None = None
    for address, answer, error in said:
        if error is None:
            answers.found[address] = answer
        elif error.status == 404 and error.code == NO_ROUTE:
            answers.unable.append(address)
        elif error.status == 404 and error.code.startswith(NOT_THERE):
            answers.absent[address] = error.code
        elif error.status == 400:
            wrong = error
        else:
            answers.errors[address] = error.reason
    if wrong is not None:
        raise Refused(wrong.code or "INVALID_REQUEST")
    return answers.found


def check_some(answers: Answers) -> None:
    """Refuse where no node could tell anything.

    Raises:
        Refused: 404 that it is not there, 501 that nodes are Go's, 502 that they did not answer.
    """
    if answers.found:
        return
    if answers.absent and not answers.errors:
        raise Refused(next(iter(answers.absent.values())), 404)
    if answers.unable and not answers.errors:
        raise Refused("NOT_SUPPORTED: the nodes of this topic are no sparq nsqds", 501)
    told = "; ".join(f"{address}: {why}" for address, why in answers.errors.items())
    raise Refused(f"UPSTREAM_ERROR: {told}", 502)
