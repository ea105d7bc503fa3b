"""These tests run nsqd in the test process, on uvloop."""

from tests.support.in_process import nsqd, nsqds_are_stopped, pytest_asyncio_loop_factories

__all__ = ["nsqd", "nsqds_are_stopped", "pytest_asyncio_loop_factories"]
