"""How well findings match what was planted in a day of `sparq.demo.generator`."""

from collections.abc import Iterable, Mapping
from typing import Any

from sparq.demo.generator import REASONS

Labels = Mapping[tuple[str, str], frozenset[str]]
"""(address, user agent) -> the reasons for which a visitor was planted."""


def scores(findings: Iterable[Mapping[str, Any]], labels: Labels) -> dict[str, dict[str, float]]:
    """How well findings match the labels, by reason, and of all reasons together (`all`)."""
    found = {(row["address"], row["user_agent"], row["reason"]) for row in findings}
    planted = {(*who, reason) for who, reasons in labels.items() for reason in reasons}
    scored = {}
    for name in (*REASONS, "all"):
        mine = {one for one in found if name in ("all", one[2])}
        theirs = {one for one in planted if name in ("all", one[2])}
        right = len(mine & theirs)
        scored[name] = {
            "found": len(mine),
            "planted": len(theirs),
            "precision": round(right / len(mine), 4) if mine else 1.0,
            "recall": round(right / len(theirs), 4) if theirs else 1.0,
        }
    return scored
