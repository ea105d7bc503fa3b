"""The tests lose connections on purpose: the client's log lines about it are not shown."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the client's log lines, unless the test sets another level."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
