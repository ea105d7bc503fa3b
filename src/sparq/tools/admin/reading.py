"""Who has a topic or a channel, how much is in it, and its messages, page by page.

nsqlookupds say who has the topic, the nsqds themselves what is in it: that is looked at before
anything is changed. A daemon that only says that it has no such topic is no error; one that does
not answer is. Messages come as nsqd's inspection routes give them:

1. Nothing is taken: attempts, order and depth stay as they are.
2. An nsqd that cannot be asked, or has no such routes (Go's), is among the job's errors; the others
   give their part.
3. What an nsqd says is read with care: what is no message is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster.fleet import Fleet, Gathered
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.program.mistakes import suggestion
from sparq.tools.admin.job import Job, has_nothing, in_words
from sparq.tools.command_line import Failed

Message = dict[str, Any]
PAGE_MAX: Final = 1000
BUDGET_MS: Final = "500"
NOT_HERE: Final = "MESSAGE_NOT_FOUND"


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
    """The nsqds that have a topic. Raises Failed: nobody could say, or nobody knows the topic."""
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


async def nodes_of(job: Job) -> list[Node]:
    """The nsqds that have the topic, or the channel, and answer. Raises Failed: there is none."""
    found = await survey(job.fleet, job.topic, job.channel)
    job.errors |= found.errors
    nodes = [found.nodes[address] for address in found.having if address in found.nodes]
    if not nodes and not job.errors:
        raise Failed(f"no nsqd has the {job.what}")
    return nodes


async def pages(
    job: Job,
    node: Node,
    path: str,
    query: Mapping[str, str],
    searched: dict[str, float] | None = None,
) -> AsyncIterator[list[Message]]:
    """Pages of messages of one nsqd, each message with its nsqd's address as `node`.

    An error ends the pages, and is among the job's errors.

    Args:
        job: what was asked for.
        node: the nsqd.
        path: of an inspection route.
        query: its parameters.
        searched: gets which part of its log an nsqd has searched, by its address.
    """
    after = ""
    while True:
        try:
            answer = await job.fleet.get(node, path, **query, after=after)
        except UpstreamError as error:
            note(job, node.address, error.reason)
            return
        yield messages_in(answer, node.address)
        found = answer if isinstance(answer, dict) else {}
        progress = found.get("progress")
        if searched is not None and isinstance(progress, int | float):
            searched[node.address] = min(1.0, max(0.0, float(progress)))
        following = found.get("next")
        if found.get("done") is True or not isinstance(following, str) or following == after:
            return
        after = following


def note(job: Job, address: str, reason: str) -> None:
    """Keep in mind why an nsqd gave nothing, unless it has nothing to give."""
    if has_nothing(reason) or NOT_HERE in reason:
        return
    job.errors[address] = in_words(reason)


def messages_in(answer: Any, address: str) -> list[Message]:
    """The messages of an answer that are such."""
    listed = answer.get("messages") if isinstance(answer, dict) else None
    return [message for one in listed or () if (message := message_in(one, address)) is not None]


def message_in(one: Any, address: str) -> Message | None:
    """A message with its nsqd's address; None for what is none."""
    if not isinstance(one, dict) or not isinstance(one.get("id"), str):
        return None
    return {"node": address, **one}


def by_time(message: Message) -> tuple[int, str]:
    """When a message was published, for sorting."""
    stamp = message.get("timestamp")
    return int(stamp) if isinstance(stamp, str) and stamp.isdigit() else 0, str(message["id"])


def search_query(job: Job, **more: str) -> dict[str, str]:
    """The parameters of `/topic/search` that the flags ask for."""
    options = job.options
    return {
        **{"topic": job.topic, "channel": job.channel, "text": options.text},
        **{"json": options.where, "attempts": options.attempts, "state": options.state},
        **{"from": options.start, "to": options.end, "budget_ms": BUDGET_MS},
        **more,
    }


def bodies(size: int) -> dict[str, str]:
    """The parameters for so many bytes of each body."""
    return {"bodies": "true", "body_bytes": str(size)} if size else {"bodies": "false"}
