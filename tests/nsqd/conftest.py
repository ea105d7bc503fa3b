"""Fixtures of nsqd's tests."""

from tests.support.in_process import (
    log_levels_are_restored,
    nsqd,
    nsqds_are_stopped,
    pytest_asyncio_loop_factories,
)

__all__ = ["log_levels_are_restored", "nsqd", "nsqds_are_stopped", "pytest_asyncio_loop_factories"]
