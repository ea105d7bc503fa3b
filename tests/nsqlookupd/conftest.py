"""The tests run on the loop that the daemon runs on: uvloop's transports are not asyncio's."""

from collections.abc import Callable
from typing import Any

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], Any]]:
    """The loops of the tests in this folder."""
    return {"uvloop": uvloop.new_event_loop}
