"""A plugin of pytest: each test is coverage's context while it runs, and its duration is stored.

With contexts, coverage's data tells which tests reach a line. `proofs/coverage.py` starts pytest
with this plugin; the file for the durations is in `SPARQ_DURATIONS`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

_seconds: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Its fixtures count as the test's own."""
    measuring = coverage.Coverage.current()
    assert measuring is not None
    measuring.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measuring.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Set-up, call and tear-down together."""
    _seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # seconds are floats


def pytest_sessionfinish() -> None:
    """Store the durations."""
    Path(os.environ["SPARQ_DURATIONS"]).write_text(json.dumps(_seconds), encoding="utf-8")
