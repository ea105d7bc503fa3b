"""docs/decisions.md has every decision that the code refers to by number."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "decisions.md"
FOLDERS = ("src", "tests", "proofs", "bench", "deploy")
REFERENCE = re.compile(r"\bdecisions? (\d+(?:(?:, | and )\d+)*)")


def test_every_reference_is_to_a_decision() -> None:
    """The decisions are numbered in order, and every reference in the code is to one of them."""
    numbers = re.findall(r"^### Decision (\d+): \w", PAGE.read_text(encoding="utf-8"), re.M)
    assert [str(number) for number in range(1, len(numbers) + 1)] == numbers

    referred = [
        (path.relative_to(ROOT), number)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in REFERENCE.findall(path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", found)
    ]
    assert len(referred) > 30
    assert [] == [reference for reference in referred if reference[1] not in numbers]
