"""What a seek would do, before it is done: asked of every node, and put together.

1. A node that does not know `dry_run` would seek. So each is first asked whether it does: sparq's
   nsqd says `sparq_version` in its figures since it does.
2. An index belongs to one log: a seek to one wants its node named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.messages.asking import Answers, Refused, ask_all, check_some, nodes_of


@dataclass(frozen=True, slots=True)
class Preview:
    """What a seek would do, or has done.

    Attributes:
        again: messages that would come again, over all nodes.
        waiting: messages that would wait then.
        older_are_gone: some node has no message as old as was asked for.
        nodes: each node's own answer (docs/http.md, "Replay").
        answers: which nodes could not tell, and why.
    """

    again: int
    waiting: int
    older_are_gone: bool
    nodes: dict[str, dict[str, Any]]
    answers: Answers

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "again": self.again,
            "waiting": self.waiting,
            "older_are_gone": self.older_are_gone,
            "nodes": [{"node": node, **said} for node, said in sorted(self.nodes.items())],
        }


async def seek_preview(
    fleet: Fleet, topic: str, channel: str, to: str, nodes: Iterable[str] = ()
) -> Preview:
    """What a seek of a channel at all nodes, or some, would do; nothing is moved.

    Raises:
        Refused: there is no such channel or place, or nodes are Go's.
    """
    chosen, answers = await nodes_of(fleet, topic, nodes)
    check_place(to, len(chosen))

    async def ask(node: Node) -> Any:
        query = {"format": "json", "topic": topic, "channel": channel, "include_clients": "false"}
        stats = await fleet.get(node, "/stats", **query)
        if not isinstance(stats, dict) or stats.get("sparq_version") is None:
            raise UpstreamError(node.address, "it is no sparq nsqd", 404, "NOT_FOUND")
        wanted = {"topic": topic, "channel": channel, "to": to, "dry_run": "true"}
        return await fleet.post(node, "/channel/seek", **wanted)

    await ask_all(chosen, answers, ask)
    check_some(answers)
    return preview_of(answers)


def check_place(to: str, nodes: int) -> None:
    """Refuse an index where several nodes are meant (rule 2)."""
    if not to:
        raise Refused("MISSING_ARG_TO")
    if to.isdigit() and nodes != 1:
        raise Refused("INVALID_ARG_TO: an index belongs to one node: name the node")


def preview_of(answers: Answers) -> Preview:
    """The nodes' answers put together."""
    said = {node: answer for node, answer in answers.found.items() if isinstance(answer, dict)}
    return Preview(
        sum(_count(answer, "again") for answer in said.values()),
        sum(_count(answer, "waiting") for answer in said.values()),
        any(answer.get("older_are_gone") is True for answer in said.values()),
        said,
        answers,
    )


def _count(answer: dict[str, Any], name: str) -> int:
    found = answer.get(name)
    return found if isinstance(found, int) else 0
