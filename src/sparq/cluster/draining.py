"""Draining an nsqd: begin a drain, read its progress, and let the nsqd accept publishes again.

Go's nsqd has no drain: the request fails there.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from sparq.cluster.actions import Report, at_node
from sparq.cluster.figures import Amount, Line, Name
from sparq.cluster.fleet import Fleet, Node


class NodeRemainder(Struct):
    """The messages left in a channel of a node, or in a topic.

    Attributes:
        channel: "": the topic's messages that no channel has yet.
        messages: number of messages waiting, in flight or deferred.
        held_up: why no consumer can process them; "": consumers may.
    """

    topic: Name
    channel: Name | None = None
    depth: Amount = 0
    in_flight: Amount = 0
    deferred: Amount = 0
    messages: Amount = 0
    held_up: Line | None = None

    def __post_init__(self) -> None:
        """Complete an nsqd's answer."""
        self.channel, self.held_up = self.channel or "", self.held_up or ""
        self.messages = self.depth + self.in_flight + self.deferred

    @property
    def name(self) -> str:
        """The topic and channel as `topic/channel`, or the topic alone."""
        return f"{self.topic}/{self.channel}" if self.channel else self.topic


class DrainProgress(Struct):
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
    left: Annotated[list[NodeRemainder], Meta(max_length=1000)] = []

    def __post_init__(self) -> None:
        """Complete an nsqd's answer."""
        self.since, self.by = self.since or "", self.by or ""

    @property
    def messages(self) -> int:
        """Number of all messages left."""
        return self.depth + self.in_flight + self.deferred

    @property
    def held_up(self) -> list[NodeRemainder]:
        """The entries of `left` that no consumer can process."""
        return [one for one in self.left if one.held_up]


async def progress(fleet: Fleet, node: Node) -> DrainProgress:
    """Return the progress of a node's drain. Raises the errors of `Fleet.read`."""
    return await fleet.read(node, "/drain", DrainProgress)


async def begin(fleet: Fleet, address: str, *, leave: bool = False) -> Report:
    """Make a node refuse publishes; with `leave` its process ends once no messages are left.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    return await at_node(fleet, address, "drain", exit="true" if leave else "")


async def end(fleet: Fleet, address: str) -> Report:
    """Make a node accept publishes again. Raises the errors of `begin`."""
    return await at_node(fleet, address, "drain", method="DELETE")
