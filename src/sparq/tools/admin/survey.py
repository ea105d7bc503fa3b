"""Who has a topic or a channel, and how much is in it: looked at before anything is changed.

nsqlookupds say who has the topic, the nsqds themselves what is in it. A daemon that only says that
it has no such topic is no error; one that does not answer is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparq.cluster.fleet import Fleet, Gathered
from sparq.cluster.nodes import Node
from sparq.program.mistakes import suggestion
from sparq.tools.admin.next_steps import has_nothing
from sparq.tools.command_line import Failed


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        having: the figures of the topic or channel in `/stats`, by the address of its nsqd.
        nodes: the nsqds that have the topic, as nsqlookupds say, by address.
        errors: daemons that did not answer, and why.
    """

    having: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Messages that wait, are in flight or deferred, where an answer came."""
        return sum(map(waiting_in, self.having.values()))


def waiting_in(figures: dict[str, Any]) -> int:
    """Messages of a topic or channel that are not finished."""
    names = ("depth", "in_flight_count", "deferred_count")
    return sum(value for name in names if isinstance(value := figures.get(name), int))


async def survey(fleet: Fleet, topic: str, channel: str = "") -> Survey:
    """Look who has a topic, or a channel of it.

    Raises:
        Failed: nobody could say, or nobody knows the topic.
    """
    producers = await producers_of(fleet, topic)
    found = Survey({}, {node.address: node for node in producers.value}, known(producers.errors))
    stats = await fleet.stats(topic, channel, nodes=producers.value)
    found.errors |= stats.errors
    for address, document in stats.value.items():
        for each in document["topics"]:
            if each["topic_name"] != topic:
                continue
            if not channel:
                found.having[address] = each
            for one in each["channels"] if channel else ():
                if one["channel_name"] == channel:
                    found.having[address] = one
    return found


async def producers_of(fleet: Fleet, topic: str) -> Gathered[list[Node]]:
    """The nsqds that have a topic.

    Raises:
        Failed: nobody could say, or nobody knows the topic.
    """
    producers = await fleet.producers(topic)
    if producers.failed:
        raise Failed(await _nobody_says(fleet, topic, producers))
    return producers


def known(errors: dict[str, str]) -> dict[str, str]:
    """The errors without those of daemons that only say that they do not have it."""
    return {address: why for address, why in errors.items() if not has_nothing(why)}


async def _nobody_says(fleet: Fleet, topic: str, producers: Gathered[list[Node]]) -> str:
    """Why there is nobody to ask: none answered, or they do not know the topic."""
    if known(producers.errors) or not producers.errors:
        text = "; ".join(f"{address}: {why}" for address, why in producers.errors.items())
        return (
            f"no {producers.asked} answered ({text or 'none is known'}): start one, or name another"
        )
    names = await fleet.topics()
    return f"no {producers.asked} knows the topic {topic}{suggestion(topic, names.value)}"
