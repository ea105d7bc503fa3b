"""Asks nsqds whether they answer: connect, identify, and go.

NSQ has no command by which a connection that publishes could be asked, so each is asked on a
connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sparq.client.config import Config
from sparq.client.connection import open_connection
from sparq.client.errors import ConnectionLostError


async def ping(addresses: Iterable[str], config: Config, seconds: float) -> dict[str, float]:
    """The seconds that each nsqd took to answer; those that do not are left out.

    Raises:
        ConnectionLostError: none answers in time; the text says why for each.
    """
    asked = {asyncio.create_task(_ask(address, config)): address for address in addresses}
    late: set[asyncio.Task[float]] = set()
    try:
        if asked:
            _, late = await asyncio.wait(asked, timeout=seconds)
    finally:
        for task in asked:
            task.cancel()
    took, reasons = {}, {}
    for task, address in asked.items():
        if task in late:
            reasons[address] = f"no answer within {seconds:g} s"
        elif (error := task.exception()) is None:
            took[address] = task.result()
        else:
            reasons[address] = str(error) or type(error).__name__
    if not took:
        why = "; ".join(f"{at}: {why}" for at, why in reasons.items())
        raise ConnectionLostError(f"no nsqd answers ({why or 'none is known'})")
    return took


async def _ask(address: str, config: Config) -> float:
    clock = asyncio.get_running_loop().time
    began = clock()
    connection = await open_connection(address, config)
    seconds = clock() - began
    await connection.close()
    return seconds
