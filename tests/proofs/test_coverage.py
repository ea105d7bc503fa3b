"""`make coverage`, with one file of tests: its figures, and which test reaches a line."""

from pathlib import Path

import pytest
from coverage import CoverageData

from proofs import coverage

ROOT = Path(__file__).parents[2]
TESTS = "tests/protocol/test_durations.py"
MODULE = "src/sparq/protocol/durations.py"


def test_the_page_has_each_module_and_its_branches(tmp_path: Path) -> None:
    """Statements and branches of a module, its package's total, and one row for all others."""
    page = tmp_path / "coverage.md"

    assert 0 == coverage.main([TESTS, "--data", str(tmp_path), "--page", str(page)])

    rows = {
        line.split("|")[1].strip(): line for line in page.read_text().splitlines() if "|" in line
    }
    branches, missed = (int(cell) for cell in rows["protocol.durations"].split("|")[4:6])
    assert branches > 0
    assert missed < branches
    assert {"**protocol**", "**log**", "**broker**", "all other packages"} < set(rows)


def test_each_line_knows_its_tests(tmp_path: Path) -> None:
    """A line of a function has the ids of the tests that reach it; the data is used again."""
    reach = coverage.measured([[TESTS]], tmp_path)

    data = CoverageData(str(reach.data))
    data.read()
    reached = data.contexts_by_lineno(MODULE)
    names = set().union(*reached.values()) - {""}
    assert names
    assert names <= set(reach.seconds)
    assert all(name.startswith(f"{TESTS}::") for name in names)

    before = reach.data.stat().st_mtime_ns
    assert reach == coverage.measured([[TESTS]], tmp_path)
    assert before == reach.data.stat().st_mtime_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from sparq.log.disk import Disk", True),
        ("from tests.broker.house import House", True),
        ("from sparq.client import Consumer", False),
        ("from sparq.log.disk import Disk\nfrom tests.support import servers", False),
        ("from sparq.protocol import names\ndef test_it(nsqd): ...", False),
    ],
)
def test_scenarios_with_daemons_are_left_out(tmp_path: Path, text: str, expected: bool) -> None:
    """A scenario counts if it calls protocol, log or broker itself, and starts no daemon."""
    path = tmp_path / "test_scenario.py"
    path.write_text(text, encoding="utf-8")

    assert expected == coverage.is_in_process(path)
