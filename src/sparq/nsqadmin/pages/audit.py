"""Who did what, when, from where, and with what result."""

from __future__ import annotations

import json
from typing import Any

from sparq.nsqadmin.access import FILTERS, OUTCOMES
from sparq.nsqadmin.pages.look import Look, View

LIMIT = 100


async def audit(look: Look) -> View:
    """The audit log, the newest first."""
    filters = {name: look.query.get(name, "") for name in FILTERS}
    found = await look.desk.audit.page(look.query.get("before", ""), LIMIT, filters)
    facts = {
        "entries": [(entry, _arguments(entry)) for entry in found.entries],
        "next": look.here(before=found.next) if found.next else "",
        "first": look.here(before="") if look.query.get("before") else "",
        "filters": filters,
        "outcomes": OUTCOMES,
        "is_kept": look.desk.audit.is_kept,
    }
    return View("audit.html", "Audit", facts, is_live=False)


def _arguments(entry: dict[str, Any]) -> str:
    """What was ordered beside topic and channel, in a line."""
    arguments = entry.get("arguments")
    if not arguments:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
