"""Find out which nsqds have a topic or channel, its depth there, and read its messages in pages.

nsqlookupds report which nsqds have the topic, and the nsqds report what is in it; this happens
before anything is changed. A daemon that only reports that it has no such topic is not an error; a
daemon that does not answer is. Messages come from nsqd's inspection routes:

1. Reading takes no messages: attempts, order and depth stay as they are.
2. An nsqd that cannot be reached, or has no such routes (Go's), is listed in the job's errors; the
   others give their part.
3. An nsqd's response is not trusted: entries that are not messages are skipped.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster.cluster_stats import INT64_SPAN
from sparq.cluster.figures import ChannelFigures, TopicFigures
from sparq.cluster.fleet import Fleet, Gathered
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.program.mistakes import suggestion
from sparq.protocol.names import one_line
from sparq.tools.admin.job import Job, has_nothing, in_words, lines_of
from sparq.tools.command_line import ToolError

Message = dict[str, Any]
PAGE_MAX: Final = 1000
BUDGET_MS: Final = "500"
NOT_HERE: Final = "MESSAGE_NOT_FOUND"
NAMED_MAX: Final = 3
_STAMP: Final = re.compile(r"[0-9]{1,19}")


@dataclass(slots=True)
class Survey:
    """The result of asking nsqlookupds and nsqds.

    Attributes:
        having: the figures of the topic or channel, by the address of its nsqd.
        nodes: the nsqds that have the topic according to nsqlookupd, by address.
        errors: the reason for each daemon that did not answer, by address.
    """

    having: dict[str, TopicFigures | ChannelFigures] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Messages waiting, in flight or deferred, at the nsqds that answered."""
        return sum(figures.left for figures in self.having.values())


async def survey(fleet: Fleet, topic: str, channel: str = "") -> Survey:
    """Find out which nsqds have a topic, or a channel of it.

    Raises:
        ToolError: no daemon answered, or none has the topic.
    """
    producers = await producers_of(fleet, topic)
    found = Survey({}, {node.address: node for node in producers.value}, known(producers.errors))
    stats = await fleet.stats(topic, channel, nodes=producers.value)
    found.errors |= known(stats.errors)
    for address, each in stats.value.items():
        figures = each.channel(topic, channel) if channel else each.topic(topic)
        if figures is not None:
            found.having[address] = figures
    return found


async def producers_of(fleet: Fleet, topic: str) -> Gathered[list[Node]]:
    """Return the nsqds that have a topic. Raises ToolError: no daemon answered, or none has it."""
    producers = await fleet.producers(topic)
    if producers.failed:
        raise ToolError(await _why_no_nsqd(fleet, topic, producers))
    return producers


def known(errors: dict[str, str]) -> dict[str, str]:
    """Return the errors in words, without those of daemons that only do not have it."""
    return {address: in_words(why) for address, why in errors.items() if not has_nothing(why)}


async def _why_no_nsqd(fleet: Fleet, topic: str, producers: Gathered[list[Node]]) -> str:
    """Explain why there is no nsqd to ask: no daemon answered, or none has the topic."""
    if known(producers.errors) or not producers.errors:
        text = "; ".join(lines_of(producers.errors))
        return (
            f"no {producers.asked} answered ({text or 'none is known'}): start one, or name another"
        )
    names = await fleet.topics()
    return f"no {producers.asked} knows the topic {topic}{suggestion(topic, names.value)}"


async def nodes_of(job: Job) -> list[Node]:
    """Return the nsqds that have the topic or channel and answer. Raises ToolError: none has it."""
    found = await survey(job.fleet, job.topic, job.channel)
    job.errors |= found.errors
    nodes = [found.nodes[address] for address in found.having if address in found.nodes]
    if not nodes and not job.errors:
        raise ToolError(f"no nsqd has the {job.what}")
    return nodes


async def pages(
    job: Job,
    node: Node,
    path: str,
    query: Mapping[str, str],
    searched: dict[str, float] | None = None,
) -> AsyncIterator[list[Message]]:
    """Yield pages of one nsqd's messages, each message with the nsqd's address as `node`.

    An error ends the pages, and is added to the job's errors.

    Args:
        job: the job.
        node: the nsqd.
        path: an inspection route.
        query: its parameters.
        searched: receives the fraction of its log that each nsqd has searched, by its address.
    """
    after = ""
    while True:
        try:
            answer = await job.fleet.get(node, path, **query, after=after)
        except UpstreamError as error:
            note(job, node.address, error.reason)
            return
        yield messages_in(job, answer, node.address)
        found = answer if isinstance(answer, dict) else {}
        progress = found.get("progress")
        if searched is not None and isinstance(progress, int | float):
            searched[node.address] = float(min(1, max(0, progress)))
        following = found.get("next")
        # The same token again would make this loop endless; nsqd is not trusted (rule 3).
        if found.get("done") is True or not isinstance(following, str) or following == after:
            return
        after = following


def note(job: Job, address: str, reason: str) -> None:
    """Record why an nsqd returned nothing, unless it has nothing to return."""
    if has_nothing(reason) or NOT_HERE in reason:
        return
    job.errors[address] = in_words(reason)


def messages_in(job: Job, answer: Any, address: str) -> list[Message]:
    """Return the valid messages of a response; see `message_in`."""
    listed = answer.get("messages") if isinstance(answer, dict) else None
    listed = listed if isinstance(listed, list) else ()
    return [found for one in listed if (found := message_in(job, one, address)) is not None]


def message_in(job: Job, one: Any, address: str) -> Message | None:
    """Return a message with its nsqd's address; None if it is not a message.

    Figures that no nsqd can have are left out, and the job's errors then name the nsqd.
    """
    if not isinstance(one, dict) or not isinstance(one.get("id"), str):
        return None
    possible = {name: value for name, value in one.items() if _is_possible(name, value)}
    if len(possible) < len(one):
        names = ", ".join(sorted(map(one_line, one.keys() - possible.keys()))[:NAMED_MAX])
        job.errors[address] = f"unreadable figures of messages: {names}"
    return {"node": address, **possible}


def _is_possible(name: str, value: Any) -> bool:
    if name == "timestamp":
        return isinstance(value, str) and _STAMP.fullmatch(value) is not None
    return not isinstance(value, int | float) or abs(value) < INT64_SPAN


def by_time(message: Message) -> tuple[int, str]:
    """Sort key: the time at which a message was published, then its id."""
    return int(message.get("timestamp", 0)), str(message["id"])


def search_query(job: Job, **more: str) -> dict[str, str]:
    """Return the parameters of `/topic/search` that the flags ask for."""
    options = job.options
    return {
        **{"topic": job.topic, "channel": job.channel, "text": options.text},
        **{"json": options.where, "attempts": options.attempts, "state": options.state},
        **{"from": options.start, "to": options.end, "budget_ms": BUDGET_MS},
        **more,
    }


def bodies(size: int) -> dict[str, str]:
    """Return the parameters for this number of bytes of each body."""
    return {"bodies": "true", "body_bytes": str(size)} if size else {"bodies": "false"}
