"""Requests that these tests are allowed to make change the log levels of this process."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_levels_are_restored() -> Iterator[None]:
    """Restore the log levels after each test."""
    loggers = [logging.getLogger(name) for name in ("", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
