"""The policies of a cluster's nsqds: read, and the same set at all of them (docs/policies.md).

Each nsqd keeps its own. Go's nsqd has none: it is among those that failed.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.cluster.actions import Report
from sparq.cluster.fleet import Fleet, Gathered

PATH: Final = "/policies"
TOML: Final = "application/toml"
JSON: Final = "application/json"


async def read(fleet: Fleet, topic: str = "", channel: str = "") -> Gathered[dict[str, Any]]:
    """What each nsqd has, by its address; of a topic or channel what holds for it.

    Returns:
        The answers of `GET /policies`, those that are objects.
    """
    nodes = await fleet.nodes()
    answers, errors = await fleet.each(
        nodes.value, lambda node: fleet.get(node, PATH, topic=topic, channel=channel)
    )
    found = {at: answer for at, answer in answers.items() if isinstance(answer, dict)}
    errors |= dict.fromkeys(answers.keys() - found.keys(), "an answer that is no object")
    return Gathered(found, {**nodes.errors, **errors}, failed=not found)


async def put(fleet: Fleet, document: bytes, content_type: str, *, dry_run: bool) -> Report:
    """Have every nsqd take a document instead of the policies set at run time before."""
    return await _tell(fleet, "PUT", document, content_type, dry_run=dry_run)


async def drop(fleet: Fleet, *, dry_run: bool) -> Report:
    """Have every nsqd drop the policies that were set at run time."""
    return await _tell(fleet, "DELETE", b"", JSON, dry_run=dry_run)


async def _tell(
    fleet: Fleet, method: str, body: bytes, content_type: str, *, dry_run: bool
) -> Report:
    report = Report()
    nodes = await fleet.nodes()
    if report.see(nodes):
        query = {"dry_run": "true"} if dry_run else {}
        answers, errors = await fleet.each(
            nodes.value,
            lambda node: fleet.upstream.send(
                method, node.at, PATH, body, content_type=content_type, **query
            ),
        )
        report.add(PATH[1:], [node.address for node in nodes.value], answers, errors)
    return report
