"""A generated day and its tables, for all tests of the report."""

import pytest

from sparq.demo.generator import generate
from tests.pipeline.report.sample_tables import written


@pytest.fixture(scope="session")
def day():
    """A generated day, with planted visitors."""
    return generate(10_000, 3)


@pytest.fixture(scope="session")
def data(day, tmp_path_factory):
    """The data folder with its tables, with signs that URIs escape; no test may change it."""
    return written(tmp_path_factory.mktemp("tables") / "my clicks, 100%=all", day.lines)
