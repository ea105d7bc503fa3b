"""These tests run clients on the loop of the daemons."""

from tests.support.in_process import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
