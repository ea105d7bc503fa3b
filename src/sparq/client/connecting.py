"""The common part of a consumer and a producer: connections to given and listed nsqds.

Each has a `discovery`, which finds nsqds with nsqlookupds, and a `pool`, which keeps a connection
to each; ``_serve`` says what the connections are for.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable

from sparq.client.arguments import read_sources
from sparq.client.config import Config
from sparq.client.discovery import Discovery, Filter
from sparq.client.errors import ConnectionLostError
from sparq.client.handling import require_callable
from sparq.client.pool import Pool, background


class Connecting(ABC):
    """Keeps connections to the given nsqds and to those that nsqlookupds list."""

    def __init__(
        self,
        nsqds: str | Iterable[str],
        lookupds: str | Iterable[str],
        topic: str | None,
        config: Config,
        keep: Filter | None,
    ) -> None:
        """Check the arguments; ``topic``: connect to nsqds that have it; None: to all."""
        require_callable(discovery_filter=keep)
        self.config = config
        self._sources = read_sources(nsqds, lookupds)
        self._rng = random.Random()  # noqa: S311 - spreads load in time, guards nothing
        self._lookups = Discovery(self._sources[1], topic, config, self._rng, keep)
        self._pool = Pool(
            self._sources[0],
            self._serve,
            self._lookups.recheck,
            max_delay=config.max_reconnect_delay,
            rng=self._rng,
        )
        self._discovering: asyncio.Task[None] | None = None

    @abstractmethod
    async def _serve(self, address: str) -> ConnectionLostError:
        """Connect, use the connection, and return why it was lost."""

    @abstractmethod
    def _require_started(self) -> None:
        """Raise ClosedError unless it is started."""

    def _connect(self) -> None:
        self._discovering = background(self._lookups.run(self._pool.update), "discovery")
        self._pool.start()

    async def _disconnect(self) -> None:
        if self._discovering is not None:
            self._discovering.cancel()
            await asyncio.gather(self._discovering, return_exceptions=True)
        await self._pool.close()

    @property
    def errors(self) -> dict[str, str]:
        """Why an nsqd is not connected or an nsqlookupd query failed, by address or URL."""
        return {**self._lookups.errors, **self._pool.errors}

    async def until_connected(self, timeout_seconds: float = 0.0) -> None:
        """Wait until every given nsqd is connected, or was connected before.

        Without this call, an nsqd that is down raises no error: connecting is retried. nsqds that
        an nsqlookupd lists are not waited for.

        Args:
            timeout_seconds: time limit; 0: until the first attempt has failed or succeeded.

        Raises:
            ConnectionLostError: an nsqd could not be reached; the text names it.
            WrongPeerError: a peer is not an nsqd.
            ClosedError: the producer or consumer is closed, or the consumer was not started.
        """
        self._require_started()
        await self._pool.reached(timeout_seconds)
