"""What the tests of the blocking face have in common."""

from __future__ import annotations

import logging
import threading

import pytest


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Expected losses need no lines."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def running() -> list[threading.Thread]:
    """The threads of sessions."""
    return [each for each in threading.enumerate() if each.name == "sparq session"]
