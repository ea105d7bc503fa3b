"""The wheel, built once for all tests that install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.deploy import wheel


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the wheel."""
    return wheel.build(tmp_path_factory.mktemp("wheel"))
