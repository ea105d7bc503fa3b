"""These tests run on uvloop, as the daemons do."""

from tests.support.in_process import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
