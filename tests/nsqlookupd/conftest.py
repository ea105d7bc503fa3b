"""Run the tests on nsqlookupd's event loop, and restore log levels."""

from tests.support.in_process import log_levels_are_restored, pytest_asyncio_loop_factories

__all__ = ["log_levels_are_restored", "pytest_asyncio_loop_factories"]
