"""Checks of the security table, the tests' marks and the summary of a run."""

from types import SimpleNamespace
from typing import Any

from tests.scenarios.security import rows


def test_every_row_has_a_check() -> None:
    """At least one test is marked with each row."""
    found = {name for name, _ in rows.marked()}

    assert [] == [name for name in rows.ROWS if name not in found]


def test_every_marked_row_is_in_the_table() -> None:
    """Every marked row is in the table: a misspelt one would not be counted."""
    assert [] == [place for name, place in rows.marked() if name not in rows.ROWS]


def test_make_security_runs_every_check() -> None:
    """Every marked test is in a file or folder that `make security` runs."""
    paths = rows.run_paths()
    assert "tests/scenarios/security" in paths
    files = {place.rpartition(":")[0] for _, place in rows.marked()}

    assert [] == [file for file in sorted(files) if not file.startswith(tuple(paths))]


def test_a_run_counts_checks_and_lists_the_skipped_ones() -> None:
    """A check fails with one failed case; one without a passed case is skipped, with the reason."""
    report: Any = rows.Report()
    cases = [
        ("a.py::good[1]", "passed", "call"),
        ("a.py::good[2]", "skipped", "setup"),
        ("a.py::bad[1]", "passed", "call"),
        ("a.py::bad[2]", "failed", "call"),
        ("b.py::left", "skipped", "setup"),
        ("b.py::plain", "passed", "call"),
    ]
    for name, outcome, when in cases:
        facts = {"passed": False, "failed": False, "skipped": False, outcome: True}
        longrepr = ("b.py", 1, "Skipped: needs a thing")
        figures: list[tuple[str, object]] = [(rows.CHECK, True)] if "plain" not in name else []
        if name == "a.py::good[1]":
            figures.append(("figure", f"X-1: {name}"))
        report.pytest_runtest_logreport(
            SimpleNamespace(
                nodeid=name, when=when, longrepr=longrepr, user_properties=figures, **facts
            )
        )

    assert [
        "security checks 3, passed 1, skipped 1",
        "  X-1: a.py::good[1]",
        "  skipped: b.py::left: needs a thing",
    ] == report.lines()
    assert [] == rows.Report().lines()
