"""Policies: the page that shows and changes them, and the settings shown on other pages.

1. The page of a topic or channel fetches its settings once, when it is opened. Its live part does
   not have them, and they delay the page by at most `SETTINGS_SECONDS`.
2. The document that is set is the one that was tried: the answer that shows what a document would
   change contains the document.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from sparq.cluster import policies as known
from sparq.cluster.policies import SOURCES, DocumentRefused, PoliciesFound
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.actions import OF_POLICIES, POLICIES, ActionRequest
from sparq.nsqadmin.pages import forms
from sparq.nsqadmin.pages.rendering import PageRequest, PageView, Renderer

SETTINGS_SECONDS: Final = 2.0
CHANGES_SHOWN: Final = 200


async def policies(request: PageRequest) -> PageView:
    """The policies of all nsqds, and the form that sets them."""
    found = await known.query(request.services.fleet)
    nodes = found.nodes
    groups, chosen = known.groups(nodes, *SOURCES), known.groups(nodes, "policies")
    begin = request["from"]
    if begin not in nodes:
        begin = chosen[0][0] if chosen else ""
    differ = ""
    if len(chosen) > 1:
        hint = "set them again to make them the same everywhere"
        differ = f"The policies set at run time differ between the nsqds: {hint}."
    elif len(groups) > 1:
        differ = "The nsqds' files have different policies: check --policies of each nsqd."
    warnings = [f"{address} did not answer: {why}." for address, why in found.errors.items()]
    listed = request.snapshot.nodes if request.snapshot.lookupds else ()
    asked = {*nodes, *found.errors, *found.unable}
    gone = [node.address for node in listed if node.address not in asked]
    facts = {
        "groups": [
            {
                "nodes": group,
                "rows": known.rows(nodes[group[0]]),
                "edit": request.here(**{"from": group[0]}),
            }
            for group in groups
        ],
        "differ": differ,
        "warnings": warnings
        + [f"{address} is no longer listed and was not queried." for address in gone],
        "unable": found.unable,
        "document": known.to_toml(nodes[begin]["policies"]) if begin else "",
        "begin": begin if len(chosen) > 1 else "",
        "confirmed": POLICIES,
    }
    return PageView("policies.html", "Policies", facts, is_live=False)


async def act(renderer: Renderer, call: Call) -> web.Response:
    """Set or drop policies; or show what a document would change, with the form that sets it."""
    fields = await forms.fields_of(call)
    document, action = fields.one["document"], fields.one["action"]
    if action != "try":
        if action not in OF_POLICIES:
            raise HttpError(400, "INVALID_ACTION")
        order = ActionRequest(action, typed=fields.one["typed"], body=document)
        return await forms.perform(renderer, call, order)
    try:
        report = await known.send(renderer.services.fleet, document.encode(), dry_run=True)
    except DocumentRefused as error:
        raise HttpError(400, f"{known.REFUSED}: {error}") from None
    changes, changed = known.changes(report), known.changed(report)
    facts = {
        "changes": changes[:CHANGES_SHOWN],
        "more": max(0, changed - CHANGES_SHOWN),
        "changed": changed,
        "count": await known.count(document.encode()) or 0,
        "nodes": [one.address for one in report.done],
        "warnings": [f"{each}." for each in forms.failures(report)],
        "document": document,
        "confirmed": POLICIES,
    }
    return renderer.fragment("policies_tried.html", **facts)


async def settings(request: PageRequest, topic: str, channel: str = "") -> dict[str, Any]:
    """Rows of a topic's or channel's settings for its page, and a text about missing answers.

    Both are empty if the page is not being opened, no nsqd has policies, or no policy applies.
    """
    found, untold = PoliciesFound(), ""
    if request.is_opened and request.snapshot.has_log:
        try:
            async with asyncio.timeout(SETTINGS_SECONDS):
                found = await known.query(request.services.fleet, topic, channel)
        except TimeoutError:
            untold = "The nsqds did not report the settings in time."
    rows = setting_rows(found)
    if rows and found.errors:
        untold = f"Unknown for {', '.join(found.errors)}."
    return {"settings": rows, "settings_untold": untold}


def setting_rows(found: PoliciesFound) -> list[dict[str, Any]]:
    """Rows for the settings that a policy decided: one each, or one per value if nsqds differ."""
    rows = []
    for key in dict.fromkeys(key for held in found.nodes.values() for key in held):
        groups: dict[tuple[Any, ...], list[str]] = {}
        for address, held in sorted(found.nodes.items()):
            one = held.get(key, {})
            kind = one.get("value"), one.get("source", "flags"), one.get("number")
            groups.setdefault(kind, []).append(address)
        if all(source == "flags" for _, source, _ in groups):
            continue
        rows += [
            {
                "setting": key,
                "value": "" if value is None else value,
                "source": f"{SOURCES[source]}, policy {n}" if source in SOURCES else "flag",
                "nodes": nodes if len(groups) > 1 else [],
            }
            for (value, source, n), nodes in groups.items()
        ]
    return rows
