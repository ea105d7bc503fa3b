"""The table of NSQ's behaviours matches the marks in the tests.

Only a reader can judge whether a marked test asserts its behaviour; these tests check the names.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import behaviours
from tests.support.behaviours import ALL, LEFT_OUT, TESTS, Report, marked


def marks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, place in marked(sorted(TESTS.rglob("*.py"))):
        found.setdefault(name, []).append(place)
    return found


def test_every_behaviour_has_a_test_or_a_reason() -> None:
    """Every behaviour that NSQ's tests assert has a test or a reason here."""
    found = marks()

    assert [] == [name for name in ALL if name not in found and name not in LEFT_OUT]


def test_every_mark_names_a_behaviour() -> None:
    """A mark with a misspelt name would count for nothing."""
    assert {} == {name: places for name, places in marks().items() if name not in ALL}


def test_behaviours_with_a_reason_have_no_test() -> None:
    """A behaviour that a test asserts needs no reason."""
    assert set() == set(LEFT_OUT) - set(ALL)
    assert set() == set(LEFT_OUT) & set(marks())


def test_no_behaviour_is_listed_twice() -> None:
    """No name occurs twice, so that the count is right."""
    assert len(set(ALL)) == len(ALL)


def test_a_run_reports_its_covered_behaviours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only passed tests count; one failure voids a behaviour; each uncovered one has its reason."""
    monkeypatch.setattr(behaviours, "ALL", ("good", "bad", "skipped", "nobody", "argued"))
    monkeypatch.setattr(behaviours, "LEFT_OUT", {"argued": "for this reason"})
    monkeypatch.setattr(behaviours, "is_whole_run", lambda _config: True)
    outcomes = [("a", "good", "passed"), ("b", "bad", "failed"), ("c", "bad", "passed")]
    outcomes.append(("d", "skipped", "skipped"))
    report: Any = Report()
    lines: list[str] = []
    for node, name, outcome in outcomes:
        marks = [SimpleNamespace(args=(name,))]
        item = SimpleNamespace(user_properties=[], iter_markers=lambda _, m=marks: m)
        report.pytest_runtest_setup(item)
        facts = {"passed": outcome == "passed", "failed": outcome == "failed"}
        facts |= {"nodeid": node, "when": "call", "user_properties": item.user_properties}
        report.pytest_runtest_logreport(SimpleNamespace(**facts))
    report.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), SimpleNamespace())

    assert [
        "behaviours: 1 of 5 covered",
        "  left out: bad: its test failed",
        "  left out: skipped: its test was skipped",
        "  left out: nobody: no test is marked with it",
        "  left out: argued: for this reason",
    ] == lines
