"""These tests run nsqd in the test process, on the test's event loop."""

from tests.support.in_process import nsqds_are_stopped, pytest_asyncio_loop_factories

__all__ = ["nsqds_are_stopped", "pytest_asyncio_loop_factories"]
