"""Reads the policies of a cluster's nsqds, and sets the same at all of them (docs/policies.md).

Each nsqd stores its own. Go's nsqd has no policies: the request fails there.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.cluster.actions import Report, places_of
from sparq.cluster.figures import policies_result
from sparq.cluster.fleet import Fleet, Gathered

PATH: Final = "/policies"
TOML: Final = "application/toml"
JSON: Final = "application/json"


async def read(fleet: Fleet, topic: str = "", channel: str = "") -> Gathered[dict[str, Any]]:
    """The policies of each nsqd, by its address; with a topic or channel, the effective policy.

    Returns:
        The answers of `GET /policies`; answers that are not JSON objects are errors.
    """
    nodes = await fleet.nodes()
    answers, errors = await fleet.each(
        nodes.value, lambda node: fleet.get(node, PATH, topic=topic, channel=channel)
    )
    found = {at: answer for at, answer in answers.items() if isinstance(answer, dict)}
    errors |= dict.fromkeys(answers.keys() - found.keys(), "answer is not a JSON object")
    return Gathered(found, {**nodes.errors, **errors}, failed=not found)


async def put(fleet: Fleet, document: bytes, content_type: str, *, dry_run: bool) -> Report:
    """Make every nsqd replace the policies set at run time with a document."""
    return await _send(fleet, document, dry_run, method="PUT", content_type=content_type)


async def drop(fleet: Fleet, *, dry_run: bool) -> Report:
    """Make every nsqd drop the policies set at run time."""
    return await _send(fleet, b"", dry_run, method="DELETE", content_type=JSON)


async def _send(fleet: Fleet, body: bytes, dry_run: bool, **how: str) -> Report:
    report = Report()
    nodes = await fleet.nodes()
    if report.see(nodes):
        places = places_of(nodes.value)
        how |= {"dry_run": "true"} if dry_run else {}
        await report.send(fleet, PATH[1:], places, dict.fromkeys(places, body), **how)
        report.check(policies_result)
    return report
