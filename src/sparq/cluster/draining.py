"""An nsqd that is to be left: told to drain, asked how far it is, told to take publishes again.

Go's nsqd has no drain: it is among those that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.client.reasons import one_line
from sparq.cluster.actions import Report
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node, is_name
from sparq.cluster.upstream import UpstreamError

PATH: Final = "/drain"
LEFT_MAX: Final = 1000
COUNT_MAX: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Left:
    """What is left in a channel of a node, or in a topic.

    Attributes:
        channel: "": messages that no channel sees yet.
        messages: that wait, are in flight or deferred.
        held_up: why nobody works it off; "": somebody may.
    """

    topic: str
    channel: str
    messages: int
    held_up: str

    @property
    def name(self) -> str:
        """It in one word."""
        return f"{self.topic}/{self.channel}" if self.channel else self.topic


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an nsqd is.

    Attributes:
        since: when its drain began, RFC 3339; "": it does not drain.
        by: who has asked for it.
        exit: whether the process ends once nothing is left.
        empty: nothing is left.
        refused: messages that were refused.
        left: the first channels with something left, those that are held up before others.
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
    left: list[Left] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """All that is left."""
        return self.depth + self.in_flight + self.deferred

    @property
    def held_up(self) -> list[Left]:
        """What nobody works off."""
        return [one for one in self.left if one.held_up]


def read(answer: Any) -> Progress:
    """An answer of `/drain`, with what is none left out. Raises ValueError: it is none at all."""
    if not isinstance(answer, dict) or not isinstance(answer.get("draining"), bool):
        raise ValueError("an answer that tells of no drain")
    counts = ("refused", "topics", "channels", "depth", "in_flight", "deferred")
    return Progress(
        draining=answer["draining"],
        since=_text(answer, "since"),
        by=_text(answer, "by"),
        exit=answer.get("exit") is True,
        empty=answer.get("empty") is True,
        left=_left(answer.get("left")),
        **{name: _count(answer, name) for name in counts},
    )


def _left(listed: Any) -> list[Left]:
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
        found.append(Left(str(topic), channel, messages, _text(one, "held_up")))
    return found


def _text(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    return one_line(value) if isinstance(value, str) else ""


def _count(told: Mapping[str, Any], key: str) -> int:
    value = told.get(key)
    return min(max(value, 0), COUNT_MAX) if type(value) is int else 0


async def progress(fleet: Fleet, node: Node) -> Progress:
    """How far a node is.

    Raises:
        UpstreamError: it does not say.
    """
    try:
        return read(await fleet.get(node, PATH))
    except ValueError as error:
        raise UpstreamError(node.at, str(error)) from None


async def begin(fleet: Fleet, address: str, *, leave: bool = False) -> Report:
    """Have a node refuse publishes; with `leave` its process ends once nothing is left.

    Raises:
        UnknownNode: the node is none of this cluster.
    """
    return await _tell(fleet, "POST", address, **({"exit": "true"} if leave else {}))


async def end(fleet: Fleet, address: str) -> Report:
    """Have a node take publishes again. Raises as `begin`."""
    return await _tell(fleet, "DELETE", address)


async def _tell(fleet: Fleet, method: str, address: str, **query: str) -> Report:
    node = await fleet.node(address)
    report = Report()
    answers, errors = await fleet.each(
        [node], lambda one: fleet.upstream.send(method, one.at, PATH, **query)
    )
    report.add(PATH[1:], [node.address], answers, errors)
    return report
