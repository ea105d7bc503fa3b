"""Policies: the page that shows and changes them, and the settings shown on other pages.

1. The page of a topic or channel fetches its settings once, when it is opened. Its live part does
   not have them, and they delay the page by at most `SETTINGS_SECONDS`.
2. The document that is set is the one that was tried: the answer that shows what a document would
   change contains the document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from sparq.cluster.actions import Report
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin import policies as known
from sparq.nsqadmin.actions import POLICIES, ActionRequest, error_of
from sparq.nsqadmin.pages import acting
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.nsqadmin.pages.rendering import Renderer
from sparq.nsqadmin.policies import SOURCES, AppliedSettings, ClusterPolicies, DocumentRefused
from sparq.nsqadmin.services import Services

SETTINGS_SECONDS: Final = 2.0
FORM_BYTES_MAX: Final = 1 << 20
"""Maximum size of a form: its encoding takes up to three bytes for one byte of a document."""

CHANGES_SHOWN: Final = 200
PATTERNS: Final = ("topic", "channel")


async def policies(request: PageRequest) -> PageView:
    """The policies of all nsqds, and the form that sets them."""
    found = await known.query_all(request.services.fleet)
    groups = found.groups(*SOURCES)
    chosen = found.groups("policies")
    begin = request.query.get("from", "")
    if begin not in found.nodes:
        begin = chosen[0][0] if chosen else ""
    facts = {
        "groups": [_group(request, found, nodes) for nodes in groups],
        "differ": _differing(groups, chosen),
        "warnings": _failures(request, found),
        "unable": found.unable,
        "document": known.to_toml(found.nodes[begin].by_source["policies"]) if begin else "",
        "begin": begin if len(chosen) > 1 else "",
        "confirmed": POLICIES,
        **request.rights,
    }
    return PageView("policies.html", "Policies", facts, is_live=False)


def _group(request: PageRequest, found: ClusterPolicies, nodes: list[str]) -> dict[str, Any]:
    """A group of nsqds with equal policies; its rows have the order in which nsqd reads them."""
    held = found.nodes[nodes[0]]
    return {
        "nodes": nodes,
        "rows": [
            {
                "source": SOURCES[source],
                "number": number,
                "topic": policy["topic"],
                "channel": policy.get("channel", ""),
                "settings": [(k, v) for k, v in policy.items() if k not in PATTERNS],
            }
            for source in SOURCES
            for number, policy in enumerate(held.by_source[source], 1)
        ],
        "edit": request.here(**{"from": nodes[0]}),
    }


def _differing(groups: list[list[str]], chosen: list[list[str]]) -> str:
    """A sentence about how the nsqds' policies differ; "" if they do not."""
    if len(groups) < 2:
        return ""
    if len(chosen) > 1:
        hint = "set them again to make them the same everywhere"
        return f"The policies set at run time differ between the nsqds: {hint}."
    return "The nsqds' files have different policies: check --policies of each nsqd."


def _failures(request: PageRequest, found: ClusterPolicies) -> list[str]:
    """Sentences about the nsqds that did not answer or are no longer listed."""
    failures = [f"{address} did not answer: {why}." for address, why in found.errors.items()]
    if not request.snapshot.lookupds:
        return failures
    asked = {*found.nodes, *found.errors, *found.unable}
    gone = [node.address for node in request.snapshot.nodes if node.address not in asked]
    return failures + [f"{address} is no longer listed and was not queried." for address in gone]


def handler(services: Services, renderer: Renderer) -> Callable[[Call], Awaitable[web.Response]]:
    """Return the handler of the page's forms."""

    async def handle(call: Call) -> web.Response:
        try:
            body = await call.body(FORM_BYTES_MAX, "BODY_TOO_BIG")
            fields = acting.fields_of(body, call.request.content_type)
            action = fields.action("try", "set_policies", "drop_policies")
            document = fields.one("document").encode("utf-8", "replace")
            if action == "try":
                return await _tried(services, renderer, document)
            number = 0 if action == "drop_policies" else await known.count(document)
            arguments = {"policies": number}
            order = ActionRequest(
                action, "", arguments=arguments, typed=fields.one("typed"), document=document
            )
            return await acting.performed(services, renderer, call, order)
        except HttpError as error:
            return acting.refusal(renderer, error)

    return handle


async def _tried(services: Services, renderer: Renderer, document: bytes) -> web.Response:
    """Show what a document would change at each nsqd, with the form that sets it."""
    try:
        report = await known.try_out(services.fleet, document)
    except DocumentRefused as error:
        raise HttpError(400, f"{known.REFUSED}: {error}") from None
    changes, changed = known.changes(report), known.changed(report)
    text = renderer.fragment(
        "policies_tried.html",
        changes=changes[:CHANGES_SHOWN],
        more=max(0, changed - CHANGES_SHOWN),
        changed=changed,
        count=await known.count(document) or 0,
        nodes=[one.address for one in report.done],
        warnings=_unreported(report),
        document=document.decode(),
        confirmed=POLICIES,
    )
    headers = {"Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"}
    return web.Response(text=text, headers=headers)


def _unreported(report: Report) -> list[str]:
    """Sentences about the nsqds that did not report what they would change."""
    failed = [f"{one.address}: {error_of(one)}." for one in report.errors]
    failed += [f"{address}: {why}." for address, why in report.warnings.items()]
    return failed + ([f"{report.failed}."] if report.failed else [])


async def settings(request: PageRequest, topic: str, channel: str = "") -> dict[str, Any]:
    """Rows of a topic's or channel's settings for its page, and a text about missing answers.

    Both are empty if the page is not being opened, no nsqd has policies, or no policy applies.
    """
    nothing: dict[str, Any] = {"settings": [], "settings_untold": ""}
    if not request.is_opened or not request.snapshot.has_log:
        return nothing
    try:
        async with asyncio.timeout(SETTINGS_SECONDS):
            found = await known.holding(request.services.fleet, topic, channel)
    except TimeoutError:
        return {**nothing, "settings_untold": "The nsqds did not report the settings in time."}
    rows = setting_rows(found)
    untold = ", ".join(found.errors) if rows else ""
    return {"settings": rows, "settings_untold": f"Unknown for {untold}." if untold else ""}


def setting_rows(found: AppliedSettings) -> list[dict[str, Any]]:
    """Rows for the settings that a policy decided: one each, or one per value if nsqds differ."""
    keys = dict.fromkeys(key for held in found.nodes.values() for key in held)
    rows = []
    for key in keys:
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
