"""Actions on a cluster: each step is sent to all daemons concurrently, and reported for each.

1. First the nodes that have the topic are looked up. If every lookup fails, nothing is done
   (`Report.failed`); daemons whose lookup failed are listed in `Report.warnings`.
2. If one daemon fails, the others still take the step: `Report.errors` says where and why.
3. Topics and channels are deleted at nsqlookupds before nsqds, as NSQ does it, so that consumers do
   not find a node that deletes the topic a moment later.
4. Without nsqlookupds, topics and channels are created at the nsqds themselves.
5. `STAY_SECONDS` after a deletion or tombstone, the nsqds are asked whether they have it again. If
   so, the step `STAYS_AWAY` fails there; its error names the clients that are attached to it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sparq.cluster.figures import Client, NsqdFigures, TopicFigures, seek_result
from sparq.cluster.fleet import Fleet, Gathered, UnknownNode, gathered
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import error_text
from sparq.protocol.names import one_line

IDS_MAX: Final = 1000
"""Maximum messages per node in one call."""

STAY_SECONDS: Final = 1.5
"""A client that reconnects creates a deleted topic again within a second."""

STAYS_AWAY: Final = "stays away"
IS_BACK: Final = "it is back"
CLIENTS_NAMED: Final = 5
TEXT_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of one step at one daemon.

    Attributes:
        address: the daemon's address.
        step: the request, such as `topic/delete`.
        error: why it failed; "": it succeeded.
        answer: the daemon's JSON answer; None without one.
    """

    address: str
    step: str
    error: str = ""
    answer: Any = None


@dataclass(slots=True)
class Report:
    """The result of an action.

    Attributes:
        outcomes: each step at each daemon, in the order of the steps.
        warnings: why the lookup of nodes failed at a daemon, by address.
        failed: why the action stopped before or between steps; "": all steps were sent.
    """

    outcomes: list[StepOutcome] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    failed: str = ""

    @property
    def done(self) -> list[StepOutcome]:
        """The steps that succeeded."""
        return [one for one in self.outcomes if not one.error]

    @property
    def errors(self) -> list[StepOutcome]:
        """The steps that failed."""
        return [one for one in self.outcomes if one.error]

    @property
    def result(self) -> Literal["done", "partly", "failed"]:
        """The overall result: `done` without any error or warning, else `partly` or `failed`."""
        if not (self.failed or self.errors or self.warnings):
            return "done"
        return "partly" if self.done else "failed"

    @property
    def text(self) -> str:
        """All warnings and errors in NSQ's form, one per line; "" if there are none."""
        lines = [error_text(address, reason) for address, reason in self.warnings.items()]
        lines += [error_text(one.address, one.error) for one in self.errors]
        return "\n".join([*lines, *([self.failed] if self.failed else ())])

    def see(self, found: Gathered[Any]) -> bool:
        """Record the errors of a lookup; returns whether any daemon answered."""
        if found.failed:
            self.failed = found.failure
            return False
        self.warnings |= found.errors
        return True

    def check(self, read: Callable[[Any], Any]) -> None:
        """Make a step an error whose answer cannot be read: `read` raises ValueError."""
        for at, one in enumerate(self.outcomes):
            try:
                if not one.error:
                    read(one.answer)
            except ValueError as error:
                self.outcomes[at] = StepOutcome(one.address, one.step, str(error))

    def add(
        self, step: str, addresses: Iterable[str], answers: dict[str, Any], errors: dict[str, str]
    ) -> None:
        """Record the outcome of a step at each of these daemons."""
        self.outcomes += [
            StepOutcome(address, step, errors.get(address, ""), answers.get(address))
            for address in addresses
        ]


async def create(fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Create a topic, and optionally a channel of it, at nsqlookupds or, without any, at nsqds.

    A channel is also created at the nodes that already have the topic.
    """
    report = Report()
    of_channel = {"topic": topic, "channel": channel}
    steps = {"topic/create": {"topic": topic}}
    steps |= {"channel/create": of_channel} if channel else {}
    if not fleet.lookupds:
        everybody = await fleet.nodes()
        if report.see(everybody):
            for step, query in steps.items():
                await _call_nodes(fleet, report, everybody.value, step, **query)
        return report
    for step, query in steps.items():
        await _call_lookupds(fleet, report, step, **query)
    if channel:
        producers = await fleet.producers(topic)
        if report.see(producers):
            await _call_nodes(fleet, report, producers.value, "channel/create", **of_channel)
    return report


async def delete(fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Delete a topic, or a channel of it if one is named, with all its messages.

    Nodes that have it again afterwards are in the report, also those that did not have it before.
    """
    return await _at_producers(fleet, "delete", topic, channel)


async def pause(fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Pause a topic, or a channel of it, at all nodes that have it."""
    return await _at_producers(fleet, "pause", topic, channel)


async def unpause(fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Unpause a topic, or a channel of it, at all nodes that have it."""
    return await _at_producers(fleet, "unpause", topic, channel)


async def empty(fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Drop the waiting messages of a channel, or of a topic that has no channel yet."""
    return await _at_producers(fleet, "empty", topic, channel)


async def seek(
    fleet: Fleet,
    topic: str,
    channel: str,
    to: str,
    *,
    dry_run: bool = False,
    may_skip: bool = True,
    nodes: Iterable[str] = (),
) -> Report:
    """Move a channel's cursor in the log at all nodes that have the topic, or at some of them.

    Args:
        to: the target, in any form that `/channel/seek` of sparq's nsqd accepts.
        dry_run: only report the effect.
        may_skip: False: a node at which unfinished messages would be skipped refuses.
        nodes: addresses of nodes; empty: all that have the topic.
    """
    report = Report()
    producers = await fleet.producers(topic)
    if report.see(producers):
        wanted = set(nodes)
        chosen = [node for node in producers.value if not wanted or node.address in wanted]
        query = {"topic": topic, "channel": channel, "to": to}
        query |= {"dry_run": "true"} if dry_run else {}
        query |= {} if may_skip else {"may_skip": "false"}
        await _call_nodes(fleet, report, chosen, "channel/seek", **query)
        report.check(seek_result)
    return report


async def tombstone(fleet: Fleet, topic: str, address: str) -> Report:
    """Tombstone a topic's node at all nsqlookupds, and delete the topic at the node.

    If the node has it again, the report says so.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    node = await fleet.node(address)
    report = Report()
    await _call_lookupds(fleet, report, "topic/tombstone", topic=topic, node=address)
    await _call_nodes(fleet, report, [node], "topic/delete", topic=topic)
    if not report.outcomes[-1].error:
        await asyncio.sleep(STAY_SECONDS)
        await _check(fleet, report, [node], topic)
    return report


async def returned(fleet: Fleet, node: Node, topic: str) -> str:
    """Wait, then return why a deleted topic is not gone at a node; "": it is."""
    report = Report()
    await asyncio.sleep(STAY_SECONDS)
    await _check(fleet, report, [node], topic)
    return "".join(one.error for one in report.errors)


async def _check(
    fleet: Fleet, report: Report, nodes: Sequence[Node], topic: str, channel: str = ""
) -> None:
    """Record each node that has the topic or channel again, or does not say whether it has."""
    stats = await fleet.stats(topic, channel, clients=True, nodes=nodes)
    found = {at: f"not known whether it is back: {why}" for at, why in stats.errors.items()}
    for address, each in stats.value.items():
        one = each.topic(topic)
        if one is not None and (one.channels or not channel):
            found[address] = f"{IS_BACK}: {_who(each, one)}"
    report.add(STAYS_AWAY, found, {}, found)


def _who(stats: NsqdFigures, topic: TopicFigures) -> str:
    """Return which clients are attached to a topic that is back, or have published to it."""
    name = topic.topic_name
    clients = [
        _client(client, f"channel {channel}")
        for of_topic, channel, client in stats.clients()
        if of_topic == name
    ]
    if topic.message_count:
        clients += [
            _client(client, "publishes")
            for client in stats.producers or ()
            if any(count.topic == name for count in client.pub_counts or ())
        ]
    if not clients:
        return "no client is attached to it: one that has left, or one over HTTP, created it"
    more = f" and {len(clients) - CLIENTS_NAMED:,} more" if len(clients) > CLIENTS_NAMED else ""
    return f"attached to it: {'; '.join(clients[:CLIENTS_NAMED])}{more}"


def _client(client: Client, does: str) -> str:
    identity = (client.remote_address, client.client_id, client.user_agent)
    address, name, agent = (one_line(text)[:TEXT_MAX] for text in identity)
    return f"{address} (client id {name}, user agent {agent}, {does})"


async def publish(fleet: Fleet, topic: str, address: str, body: bytes) -> Report:
    """Publish a message at one node; nothing is repeated, so it is published at most once.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    node = await fleet.node(address)
    report = Report()

    async def call(_address: str) -> Any:
        return await fleet.post(node, "/pub", body, topic=topic)

    answers, errors = await gathered([address], call)
    report.add("pub", [address], answers, errors)
    return report


async def messages(
    fleet: Fleet,
    verb: str,
    topic: str,
    channel: str,
    ids: dict[str, Sequence[str]],
    *,
    to: str = "",
    to_all: bool = False,
) -> Report:
    """Apply a verb to selected messages; each node answers which were done and which refused.

    Args:
        verb: `requeue`, `finish`, `cancel`, `copy` or `redrive`.
        channel: "" if the verb needs none.
        ids: the messages' ids, 16 hex digits each, by the address of their node.
        to: the topic that `copy` copies to.
        to_all: whether `redrive` sends dead letters to all channels of their topic.

    Raises:
        UnknownNode: a node does not belong to this cluster.
        ValueError: more than `IDS_MAX` messages for one node.
    """
    if any(len(some) > IDS_MAX for some in ids.values()):
        raise ValueError(f"more than {IDS_MAX} messages for one nsqd: select fewer")
    # All are checked before the first call: an unknown node must not leave the action half done.
    known = {node.address: node for node in (await fleet.nodes()).value}
    for address in ids:
        if address not in known:
            raise UnknownNode(address)
    step = f"message/{verb}"
    query = {"topic": topic, "channel": channel, "to": to}
    query |= {"to_all": "true"} if to_all else {}

    async def call(address: str) -> Any:
        body = json.dumps({"ids": [*ids[address]]}).encode()
        return await fleet.post(known[address], f"/{step}", body, **query)

    report = Report()
    answers, errors = await gathered(ids, call)
    report.add(step, ids, answers, errors)
    return report


async def _at_producers(fleet: Fleet, verb: str, topic: str, channel: str) -> Report:
    report = Report()
    producers = await fleet.producers(topic)
    if report.see(producers):
        step = f"channel/{verb}" if channel else f"topic/{verb}"
        query = {"topic": topic, "channel": channel}
        if verb == "delete":
            await _call_lookupds(fleet, report, step, **query)
        await _call_nodes(fleet, report, producers.value, step, **query)
        failed = {one.address for one in report.errors}
        deleted = [node for node in producers.value if node.address not in failed]
        if verb == "delete" and deleted:
            await asyncio.sleep(STAY_SECONDS)
            listed = (await fleet.producers(topic)).value
            asked = {node.address: node for node in (*deleted, *listed)}
            await _check(
                fleet, report, [asked[at] for at in asked if at not in failed], *query.values()
            )
    return report


async def _call_lookupds(fleet: Fleet, report: Report, step: str, /, **query: str) -> None:
    answers, errors = await gathered(
        fleet.lookupds, lambda address: fleet.upstream.post(address, f"/{step}", **query)
    )
    report.add(step, fleet.lookupds, answers, errors)


async def _call_nodes(
    fleet: Fleet, report: Report, nodes: Iterable[Node], step: str, /, **query: str
) -> None:
    nodes = [*nodes]
    answers, errors = await fleet.each(nodes, lambda node: fleet.post(node, f"/{step}", **query))
    report.add(step, [node.address for node in nodes], answers, errors)
