"""Work that ends at once when a tool is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Do the work, or cancel what is left of it when the event is set.

    Raises:
        Exception: whatever the work raises.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        stopping.cancel()
        outcome, _ = await asyncio.gather(working, stopping, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
