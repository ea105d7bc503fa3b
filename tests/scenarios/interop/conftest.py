"""Collects the outcome of each test of a client's feature, for docs/clients.md.

A run in which every such test had an outcome (none skipped, none failed) writes the page. The text
is the same as before unless a client, its version or the tables in `matrix` changed.
"""

from collections.abc import Generator

import pytest

from tests.scenarios.interop import matrix

OUTCOMES: dict[matrix.Cell, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "feature(name): tests this feature of a foreign client")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the outcome of a cell; an expected failure must have the known symptom."""
    report = yield
    marker = item.get_closest_marker("feature")
    if marker is not None and isinstance(item, pytest.Function) and report.when == "call":
        one = (item.callspec.params["name"], marker.args[0])
        if report.passed:
            OUTCOMES[one] = matrix.WORKS
        elif hasattr(report, "wasxfail") and call.excinfo is not None:
            if matrix.SYMPTOMS[one] in str(call.excinfo.value):
                OUTCOMES[one] = matrix.FAILS
            else:
                report.outcome = "failed"
                report.longrepr = item.repr_failure(call.excinfo)
                del report.wasxfail
    return report


def pytest_sessionfinish() -> None:
    """Write the page if every cell has an outcome."""
    if set(OUTCOMES) == matrix.tested_cells():
        matrix.write(OUTCOMES)
