"""These tests run nsqd in their own process, on its loop."""

from tests.support.in_process import nsqds_are_stopped, pytest_asyncio_loop_factories

__all__ = ["nsqds_are_stopped", "pytest_asyncio_loop_factories"]
