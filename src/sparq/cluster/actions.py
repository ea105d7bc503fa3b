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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from sparq.cluster.figures import NsqdFigures, SeekResult, SelectionResult, TopicFigures, checked
from sparq.cluster.fleet import Fleet, Gathered, Node, UnknownNode, gathered
from sparq.cluster.upstream import error_text
from sparq.protocol.names import one_line

IDS_MAX: Final = 1000
"""Maximum messages per node in one call."""

STAY_SECONDS: Final = 1.5
"""A client that reconnects creates a deleted topic again within a second."""

NO_BODIES: Final[Mapping[str, bytes]] = {}
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

    def add_lookup(self, found: Gathered[Any]) -> bool:
        """Record the errors of a lookup; returns whether any daemon answered."""
        if found.failed:
            self.failed = found.failure
            return False
        self.warnings |= found.errors
        return True

    def check(self, form: type) -> None:
        """Make a step an error whose answer cannot be read as a value of this form."""
        for at, one in enumerate(self.outcomes):
            try:
                if not one.error:
                    checked(one.answer, form)
            except ValueError as error:
                self.outcomes[at] = StepOutcome(one.address, one.step, str(error))

    async def send(
        self,
        fleet: Fleet,
        step: str,
        places: Mapping[str, str],
        bodies: Mapping[str, bytes] = NO_BODIES,
        /,
        **query: str,
    ) -> None:
        """Send a step to daemons concurrently, and record the outcome at each.

        Args:
            step: the path of the request.
            places: the daemons: each address to record, and the one to call.
            bodies: the request's body by the address to record; without one it has none.
            query: the query's parameters, and the keyword arguments of `Upstream.post`.
        """

        async def call(address: str) -> Any:
            body = bodies.get(address, b"")
            return await fleet.upstream.post(places[address], f"/{step}", body, **query)

        answers, errors = await gathered(places, call)
        self.outcomes += [
            StepOutcome(address, step, errors.get(address, ""), answers.get(address))
            for address in places
        ]


def places_of(nodes: Iterable[Node]) -> dict[str, str]:
    """The nodes as the places of a step."""
    return {node.address: node.at for node in nodes}


async def create(fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Create a topic, and optionally a channel of it, at nsqlookupds or, without any, at nsqds.

    A channel is also created at the nodes that already have the topic.
    """
    report = Report()
    steps: dict[str, dict[str, str]] = {"topic/create": {"topic": topic}}
    if channel:
        steps["channel/create"] = {"topic": topic, "channel": channel}
    if not fleet.lookupds:
        everybody = await fleet.nodes()
        places = places_of(everybody.value) if report.add_lookup(everybody) else {}
    else:
        places = {at: at for at in fleet.lookupds}
    for step, query in steps.items():
        await report.send(fleet, step, places, **query)
    if fleet.lookupds and channel:
        producers = await fleet.producers(topic)
        if report.add_lookup(producers):
            await report.send(fleet, step, places_of(producers.value), **query)
    return report


async def change(verb: str, fleet: Fleet, topic: str, channel: str = "") -> Report:
    """Apply a verb of NSQ to a topic, or to a channel of it, at all nodes that have it.

    `delete` also deletes it at nsqlookupds. Nodes that have it again afterwards are in the report,
    also those that did not have it before.
    """
    report = Report()
    producers = await fleet.producers(topic)
    if not report.add_lookup(producers):
        return report
    step = f"channel/{verb}" if channel else f"topic/{verb}"
    query = {"topic": topic, "channel": channel}
    if verb == "delete":
        await report.send(fleet, step, {at: at for at in fleet.lookupds}, **query)
    await report.send(fleet, step, places_of(producers.value), **query)
    failed = {one.address for one in report.errors}
    deleted = [node for node in producers.value if node.address not in failed]
    if verb == "delete" and deleted:
        await asyncio.sleep(STAY_SECONDS)
        listed = (await fleet.producers(topic)).value
        asked = {node.address: node for node in (*deleted, *listed) if node.address not in failed}
        await _check(fleet, report, [*asked.values()], topic, channel)
    return report


pause = partial(change, "pause")
unpause = partial(change, "unpause")
empty = partial(change, "empty")
"""Drops the waiting messages of a channel, or of a topic that has no channel yet."""

delete = partial(change, "delete")


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
    if report.add_lookup(producers):
        wanted = set(nodes)
        chosen = [node for node in producers.value if not wanted or node.address in wanted]
        query = {"topic": topic, "channel": channel, "to": to}
        query |= {"dry_run": "true"} if dry_run else {}
        query |= {} if may_skip else {"may_skip": "false"}
        await report.send(fleet, "channel/seek", places_of(chosen), **query)
        report.check(SeekResult)
    return report


async def tombstone(fleet: Fleet, topic: str, address: str) -> Report:
    """Tombstone a topic's node at all nsqlookupds, and delete the topic at the node.

    If the node has it again, the report says so.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    node = await fleet.node(address)
    report = Report()
    lookupds = {at: at for at in fleet.lookupds}
    await report.send(fleet, "topic/tombstone", lookupds, topic=topic, node=address)
    await report.send(fleet, "topic/delete", places_of([node]), topic=topic)
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
    report.outcomes += [StepOutcome(at, STAYS_AWAY, why) for at, why in found.items()]


def _who(stats: NsqdFigures, topic: TopicFigures) -> str:
    """Return which clients are attached to a topic that is back, or have published to it."""
    name = topic.topic_name
    clients = [(one, f"channel {channel}") for of, channel, one in stats.clients() if of == name]
    if topic.message_count:
        clients += [
            (one, "publishes")
            for one in stats.producers or ()
            if any(count.topic == name for count in one.pub_counts or ())
        ]
    if not clients:
        return "no client is attached to it: one that has left, or one over HTTP, created it"
    named = []
    for one, does in clients[:CLIENTS_NAMED]:
        told = (one.remote_address, one.client_id, one.user_agent)
        address, client_id, agent = (one_line(text)[:TEXT_MAX] for text in told)
        named.append(f"{address} (client id {client_id}, user agent {agent}, {does})")
    more = f" and {len(clients) - CLIENTS_NAMED:,} more" if len(clients) > CLIENTS_NAMED else ""
    return f"attached to it: {'; '.join(named)}{more}"


async def at_node(fleet: Fleet, address: str, step: str, body: bytes = b"", **query: str) -> Report:
    """Send a step to one node, once: nothing is repeated.

    Raises:
        UnknownNode: the node does not belong to this cluster.
    """
    report = Report()
    places = places_of([await fleet.node(address)])
    await report.send(fleet, step, places, {address: body}, **query)
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
    known = places_of((await fleet.nodes()).value)
    for address in ids:
        if address not in known:
            raise UnknownNode(address)
    query = {"topic": topic, "channel": channel, "to": to, "to_all": "true" if to_all else ""}
    bodies = {at: json.dumps({"ids": [*some]}).encode() for at, some in ids.items()}
    report = Report()
    await report.send(fleet, f"message/{verb}", {at: known[at] for at in ids}, bodies, **query)
    report.check(SelectionResult)
    return report
