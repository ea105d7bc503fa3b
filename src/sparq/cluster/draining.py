"""Draining an nsqd: begin a drain, read its progress, and let the nsqd accept publishes again.

Go's nsqd has no drain: the request fails there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from sparq.cluster.actions import Report, at_node
from sparq.cluster.figures import Amount, Line, Name
from sparq.cluster.fleet import Fleet, Node
from sparq.cluster.upstream import UpstreamError

LEFT_MAX: Final = 1000


class NodeRemainder(Struct, frozen=True, forbid_unknown_fields=True):
    """The messages left in a channel of a node, or in a topic.

    Attributes:
        channel: "": the topic's messages that no channel has yet.
        messages: number of messages waiting, in flight or deferred.
        held_up: why no consumer can process them; "": consumers may.
    """

    topic: str
    channel: str
    messages: int
    held_up: str

    @property
    def name(self) -> str:
        """The topic and channel as `topic/channel`, or the topic alone."""
        return f"{self.topic}/{self.channel}" if self.channel else self.topic


class DrainProgress(Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of an nsqd's drain.

    Attributes:
        since: when the drain began, RFC 3339; "": the nsqd does not drain.
        by: the user or address that requested it.
        exit: whether the process ends once no messages are left.
        empty: no messages are left.
        refused: number of messages refused.
        left: the first channels with messages left, held-up ones first.
    """

    draining: bool
    since: str = ""
    by: str = ""
    exit: bool = False
    empty: bool = False
    refused: int = 0
    topics: int = 0
    channels: int = 0
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    left: list[NodeRemainder] = []

    @property
    def messages(self) -> int:
        """Number of all messages left."""
        return self.depth + self.in_flight + self.deferred

    @property
    def held_up(self) -> list[NodeRemainder]:
        """The entries of `left` that no consumer can process."""
        return [one for one in self.left if one.held_up]


class _Remainder(Struct):
    topic: Name
    channel: Name | None = None
    depth: Amount = 0
    in_flight: Amount = 0
    deferred: Amount = 0
    held_up: Line | None = None


class _Answer(Struct):
    draining: bool
    since: Line | None = None
    by: Line | None = None
    exit: bool = False
    empty: bool = False
    refused: Amount = 0
    topics: Amount = 0
    channels: Amount = 0
    depth: Amount = 0
    in_flight: Amount = 0
    deferred: Amount = 0
    left: list[_Remainder] = []


def read(answer: Any) -> DrainProgress:
    """Parse an answer of `/drain`. Raises ValueError: it is none that an nsqd can send."""
    try:
        found = msgspec.convert(answer, _Answer)
    except msgspec.ValidationError as error:
        raise ValueError(f"answer is not a drain status: {error}") from None
    left = []
    for one in found.left[:LEFT_MAX]:
        messages = one.depth + one.in_flight + one.deferred
        left.append(NodeRemainder(one.topic, one.channel or "", messages, one.held_up or ""))
    told = structs.asdict(found)
    return DrainProgress(**{**told, "since": found.since or "", "by": found.by or "", "left": left})


async def progress(fleet: Fleet, node: Node) -> DrainProgress:
    """The progress of a node's drain.

    Raises:
        UpstreamError: the request failed, or the answer is malformed.
    """
    try:
        return read(await fleet.get(node, "/drain"))
    except ValueError as error:
        raise UpstreamError(node.at, str(error)) from None


async def begin(fleet: Fleet, address: str, *, leave: bool = False) -> Report:
    """Make a node refuse publishes; with `leave` its process ends once no messages are left.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    return await at_node(fleet, address, "drain", exit="true" if leave else "")


async def end(fleet: Fleet, address: str) -> Report:
    """Make a node accept publishes again. Raises the errors of `begin`."""
    return await at_node(fleet, address, "drain", method="DELETE")
