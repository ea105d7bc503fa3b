"""What a consumer and a producer have in common: nsqds that they are to be connected to."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sparq.client.lookups import Lookups
from sparq.client.pool import Pool


class Connecting(ABC):
    """Keeps connections to nsqds that are given, and to those that nsqlookupds list."""

    _pool: Pool
    _lookups: Lookups

    @abstractmethod
    def _require_started(self) -> None:
        """Raises ClosedError: it does not connect."""

    @property
    def errors(self) -> dict[str, str]:
        """Why an nsqd is not connected, or an nsqlookupd has no answer, for each that should be."""
        return {**self._lookups.errors, **self._pool.errors}

    async def until_connected(self, timeout_seconds: float = 0.0) -> None:
        """Wait until every nsqd that was given is connected, or has been before.

        Without it nothing fails for an nsqd that is down: it is tried again and again. The nsqds
        that an nsqlookupd lists are not waited for.

        Args:
            timeout_seconds: how long it may take; 0: as long as the first attempt.

        Raises:
            ConnectionLostError: one could not be reached; the text names it.
            WrongPeerError: one is no nsqd.
            ClosedError: it is closed, or a consumer that was not started.
        """
        self._require_started()
        await self._pool.reached(timeout_seconds)
