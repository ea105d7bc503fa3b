"""The nsqlookupds of a consumer or producer: asked by `discovery`, once there are any.

Who is given nsqds only asks nobody over HTTP, and starts without what that takes (aiohttp: a
quarter of a second).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from sparq.client.config import Config

if TYPE_CHECKING:
    from sparq.client.discovery import Discovery, Filter


class Lookups:
    """A `Discovery` that is made, and its module loaded, when the first nsqlookupd is given.

    Attributes:
        errors: why an nsqlookupd gives no answer that can be used, by its URL.
    """

    def __init__(
        self,
        lookupds: Sequence[str],
        topic: str | None,
        config: Config,
        rng: random.Random,
        keep: Filter | None = None,
    ) -> None:
        self.errors: dict[str, str] = {}
        self._topic = topic
        self._config = config
        self._rng = rng
        self._filter = keep
        self._discovery: Discovery | None = None
        self._given = asyncio.Event()
        for lookupd in lookupds:
            self.add(lookupd)

    @property
    def count(self) -> int:
        """How many nsqlookupds are asked."""
        return self._discovery.count if self._discovery is not None else 0

    def add(self, lookupd: str) -> None:
        """As `Discovery.add`."""
        discovery = self._discovery or self._made()
        discovery.add(lookupd)
        self._discovery = discovery
        self._given.set()

    def _made(self) -> Discovery:
        made: type[Discovery] = import_module("sparq.client.discovery").Discovery
        discovery = made([], self._topic, self._config, self._rng, self._filter)
        discovery.errors = self.errors
        return discovery

    def remove(self, lookupd: str) -> None:
        """As `Discovery.remove`."""
        if self._discovery is None:
            raise ValueError(f"nsqlookupd {lookupd} is not asked")
        self._discovery.remove(lookupd)

    def recheck(self) -> None:
        """As `Discovery.recheck`."""
        if self._discovery is not None:
            self._discovery.recheck()

    async def run(self, found: Callable[[set[str]], None]) -> None:
        """As `Discovery.run`; with nobody to ask it waits until there is."""
        await self._given.wait()
        assert self._discovery is not None
        await self._discovery.run(found)
