"""Draining an nsqd: begin a drain, read its progress, and let the nsqd accept publishes again.

Go's nsqd has no drain: the request fails there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster.actions import Report, places_of
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node, is_name
from sparq.cluster.upstream import UpstreamError
from sparq.protocol.names import one_line

PATH: Final = "/drain"
LEFT_MAX: Final = 1000
COUNT_MAX: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class NodeRemainder:
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


@dataclass(frozen=True, slots=True)
class DrainProgress:
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
    left: list[NodeRemainder] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of all messages left."""
        return self.depth + self.in_flight + self.deferred

    @property
    def held_up(self) -> list[NodeRemainder]:
        """The entries of `left` that no consumer can process."""
        return [one for one in self.left if one.held_up]


def read(answer: Any) -> DrainProgress:
    """Parse an answer of `/drain`, without malformed entries.

    Raises:
        ValueError: it is not one, or a number in it is none that an nsqd can have.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("draining"), bool):
        raise ValueError("answer is not a drain status")
    counts = ("refused", "topics", "channels", "depth", "in_flight", "deferred")
    return DrainProgress(
        draining=answer["draining"],
        since=_text(answer, "since"),
        by=_text(answer, "by"),
        exit=answer.get("exit") is True,
        empty=answer.get("empty") is True,
        left=_left(answer.get("left")),
        **{name: _count(answer, name) for name in counts},
    )


def _left(listed: Any) -> list[NodeRemainder]:
    entries = listed[:LEFT_MAX] if isinstance(listed, list) else ()
    found = []
    for one in entries:
        if not isinstance(one, dict):
            continue
        topic, channel = one.get("topic"), one.get("channel") or ""
        is_named = isinstance(topic, str) and is_name(topic) and isinstance(channel, str)
        if not is_named or (channel and not is_name(channel)):
            continue
        messages = sum(_count(one, name) for name in ("depth", "in_flight", "deferred"))
        found.append(NodeRemainder(str(topic), channel, messages, _text(one, "held_up")))
    return found


def _text(answer: Mapping[str, Any], key: str) -> str:
    value = answer.get(key)
    return one_line(value) if isinstance(value, str) else ""


def _count(answer: Mapping[str, Any], key: str) -> int:
    value = answer.get(key, 0)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"unreadable drain status: {key} is no possible number")
    return value


async def progress(fleet: Fleet, node: Node) -> DrainProgress:
    """The progress of a node's drain.

    Raises:
        UpstreamError: the request failed, or the answer is malformed.
    """
    try:
        return read(await fleet.get(node, PATH))
    except ValueError as error:
        raise UpstreamError(node.at, str(error)) from None


async def begin(fleet: Fleet, address: str, *, leave: bool = False) -> Report:
    """Make a node refuse publishes; with `leave` its process ends once no messages are left.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    report = Report()
    places = places_of([await fleet.node(address)])
    await report.send(fleet, PATH[1:], places, exit="true" if leave else "")
    return report


async def end(fleet: Fleet, address: str) -> Report:
    """Make a node accept publishes again. Raises the errors of `begin`."""
    report = Report()
    await report.send(fleet, PATH[1:], places_of([await fleet.node(address)]), method="DELETE")
    return report
