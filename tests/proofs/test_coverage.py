"""`make coverage` with one test file: its figures, and the tests that reach a line."""

from pathlib import Path

import pytest
from coverage import CoverageData
from proofs.coverage import Reach

from proofs import coverage

TESTS = "tests/protocol/test_durations.py"
OTHER = "src/sparq/nsqd/main.py"
MODULE = "src/sparq/protocol/durations.py"


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Reach:
    """The data of one test file's run."""
    return coverage.measured([[TESTS]], tmp_path_factory.mktemp("coverage"))


def test_each_module_has_its_branches(reach: Reach) -> None:
    """A module has a row with its branches, its package has one, all others share one."""
    figures = coverage.report(reach.data, include=[MODULE, OTHER])

    table = [line.split("|") for line in coverage.table(figures)[2:]]

    rows = {cells[1].strip(): cells for cells in table}
    branches, missed = (int(cell) for cell in rows["protocol.durations"][4:6])
    assert branches > 0
    assert missed < branches
    assert ["**protocol**", "protocol.durations", "all other packages"] == [*rows]
    assert rows["**protocol**"][2:] == rows["protocol.durations"][2:]
    assert "0.0 %" == rows["all other packages"][6].strip()


def test_each_line_has_the_tests_that_reach_it(reach: Reach) -> None:
    """A function's line has the ids of the tests that reach it; a second call reuses the data."""
    data = CoverageData(str(reach.data))
    data.read()
    reached = data.contexts_by_lineno(MODULE)
    names = set().union(*reached.values()) - {""}
    assert names
    assert names <= set(reach.seconds)
    assert all(name.startswith(f"{TESTS}::") for name in names)

    before = reach.data.stat().st_mtime_ns
    assert reach == coverage.measured([[TESTS]], reach.data.parent)
    assert before == reach.data.stat().st_mtime_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from sparq.log.disk import Disk", True),
        ("from tests.broker.harness import BrokerHarness", True),
        ("from sparq.client import Consumer", False),
        ("from sparq.log.disk import Disk\nfrom tests.support import servers", False),
        ("from sparq.protocol import names\ndef test_it(nsqd): ...", False),
        ("from sparq.protocol import names\nfrom tests.support.v2_client import OK", False),
    ],
)
def test_scenarios_with_daemons_are_left_out(tmp_path: Path, text: str, expected: bool) -> None:
    """A scenario counts if it calls protocol, log or broker directly and starts no daemon."""
    path = tmp_path / "test_scenario.py"
    path.write_text(text, encoding="utf-8")

    assert expected == coverage.is_in_process(path)
