"""What consumers and producers have in common: a connection to every given or discovered nsqd.

1. Each address has one keeper task: it connects, waits for the loss, and reconnects. The delay
   grows exponentially from 0.1 s to ``max_reconnect_delay``, with a random reduction of up to half,
   and is reset once an attempt or connection has lasted longer than the delay.
2. A discovered nsqd that is no longer listed keeps its connection, since only a loss shows that it
   is gone. Once lost, it is only tried again by an answer asked after the loss: a consumer that
   connects by an older one would create a topic again that has just been deleted there. A given
   nsqd is never dropped.
3. So an nsqd that is given, or listed since its loss, is connected within ``max_reconnect_delay``
   after it has come back (plus the ``dial_timeout`` of an attempt that had started before).
4. Addresses can be added and removed at any time. A removed address is not connected to, even if
   listed, until it is added again.
5. Each new connection is logged at info, with nsqd's version; each reason for a failure is logged
   at warning, once. A program that needs the given nsqds waits with ``until_connected``.
6. ``_serve`` says what a connection is for: it connects, uses the connection and returns when it
   is lost, with the reason. An exception (see ``FAILURES``) means that no connection was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from sparq.client.arguments import read_sources, require_callable
from sparq.client.config import Config
from sparq.client.discovery import Discovery, Filter, background
from sparq.client.errors import (
    ConnectionLostError,
    SparqClientError,
    WrongPeerError,
    reason_of,
)
from sparq.client.log_fields import FieldLogger
from sparq.protocol.errors import RemoteError

log = FieldLogger(__name__)

FAILURES = (OSError, TimeoutError, SparqClientError, RemoteError, UnicodeError)
"""Errors of a failed attempt; UnicodeError is raised for an invalid host name."""

FIRST_DELAY = 0.1


class Connecting(ABC):
    """Keeps connections to the given nsqds and to those that nsqlookupds list.

    Attributes:
        config: the options in use.
    """

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
        self._given = set(self._sources[0])
        self._listed: Mapping[str, float] = {}
        self._removed: set[str] = set()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._reached: set[str] = set()
        self._wrong: set[str] = set()
        self._failures: dict[str, str] = {}  # why an address is not connected
        self._news = asyncio.Event()
        self._is_connecting = self._is_retired = False

    @abstractmethod
    async def _serve(self, address: str) -> ConnectionLostError:
        """Connect, use the connection, and return why it was lost."""

    @abstractmethod
    def _require_started(self) -> None:
        """Raise ClosedError unless it is started."""

    @property
    def errors(self) -> dict[str, str]:
        """Why an nsqd is not connected or an nsqlookupd query failed, by address or URL."""
        return {**self._lookups.errors, **self._failures}

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
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_seconds
        while missing := self._given - self._reached:
            left = deadline - clock()
            wrong = missing & self._wrong
            failed = missing & self._failures.keys() if left <= 0 else set()
            if wrong or failed:
                within = f" within {timeout_seconds:g} s" if timeout_seconds and not wrong else ""
                text = "; ".join(
                    f"no connection to nsqd {address}{within}: {self._failures[address]}"
                    for address in sorted(wrong or failed)
                )
                raise WrongPeerError(text) if wrong else ConnectionLostError(text)
            self._news.clear()
            # After the deadline, the result of the current attempt decides; it has a timeout.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else None):
                    await self._news.wait()

    # Addresses

    @property
    def _wanted(self) -> list[str]:
        """The addresses that are connected or being connected to."""
        return [each for each in self._given | self._listed.keys() if self._is_wanted(each)]

    def _connect(self) -> None:
        self._is_connecting = True
        self._lookups.start(self._update)
        self._keep_wanted()

    def _add(self, address: str) -> None:
        """Keep a connection to this address, listed or not; no effect if it is already kept."""
        self._removed.discard(address)
        self._given.add(address)
        self._news.set()
        self._keep_wanted()

    def _remove(self, address: str) -> None:
        """Stop connecting to this address; a connection stays until it ends or is dropped.

        Raises:
            ValueError: the address is not given, listed or connected.
        """
        if address not in self._given | self._listed.keys() | self._keepers.keys():
            raise ValueError(f"nsqd {address} is not among the addresses")
        self._given.discard(address)
        self._removed.add(address)

    async def _drop(self, address: str) -> None:
        """Close the connection to a removed address, or end the attempts to connect."""
        keeper = self._keepers.get(address)
        if keeper is not None:
            keeper.cancel()
            # Not `await keeper`: its CancelledError would look like a cancellation of this task.
            await asyncio.wait([keeper])
            self._keep_wanted()  # the address may have been added again in the meantime

    def _update(self, listed: Mapping[str, float]) -> None:
        """Set the addresses that discovery lists now, each with the loop time it was asked at."""
        self._listed = listed
        self._news.set()
        self._keep_wanted()

    async def _disconnect(self) -> None:
        """Cancel every keeper, and with it its ``_serve`` and connection."""
        self._is_retired = True
        await self._lookups.close()
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    # Connections

    def _note_connected(self, address: str, facts: Mapping[str, Any]) -> None:
        """Note and log a new connection; ``facts`` is nsqd's answer to IDENTIFY."""
        again = " again" if address in self._reached else ""
        version = facts.get("version", "unknown version")
        log.info("nsqd %s: connected%s (%s)", address, again, version, extra={"nsqd": address})
        self._reached.add(address)
        self._news.set()

    def _is_wanted(self, address: str) -> bool:
        known = address in self._given or address in self._listed
        return known and not self._is_retired and address not in self._removed

    def _keep_wanted(self) -> None:
        for address in self._wanted if self._is_connecting else ():
            if address not in self._keepers:
                keeper = background(self._keep(address), f"connection to {address}")
                self._keepers[address] = keeper
                keeper.add_done_callback(partial(self._keeper_ended, address))

    def _keeper_ended(self, address: str, keeper: asyncio.Task[None]) -> None:
        del self._keepers[address]
        self._failures.pop(address, None)
        # It may be listed again by now. A keeper that a bug ended is not restarted endlessly.
        if not keeper.cancelled() and keeper.exception() is None:
            self._keep_wanted()

    async def _keep(self, address: str) -> None:
        clock = asyncio.get_running_loop().time
        delay = FIRST_DELAY
        while self._is_wanted(address):
            began = clock()
            is_lost = False
            try:
                lost = await self._serve(address)
                is_lost = True
                if self._is_wanted(address):
                    self._failed(address, str(lost))
            except FAILURES as error:
                if isinstance(error, WrongPeerError):
                    self._wrong.add(address)
                self._failed(address, reason_of(error))
            if clock() - began > delay:
                delay = FIRST_DELAY
            await asyncio.sleep(delay * self._rng.uniform(0.5, 1))
            delay = min(delay * 2, self.config.max_reconnect_delay)
            if is_lost:
                # Not before the delay: an nsqd that deletes a topic closes its connections first,
                # and reports the deletion to its nsqlookupds right afterwards.
                self._lookups.recheck()
                await self._asked_since(address, clock())

    async def _asked_since(self, address: str, when: float) -> None:
        """Wait until an answer asked since then lists the address, or until it is not wanted."""
        while self._is_wanted(address) and address not in self._given:
            if self._listed[address] >= when:
                return
            self._news.clear()
            await self._news.wait()

    def _failed(self, address: str, reason: str) -> None:
        """Note why there is no connection; log a reason once, not with each attempt."""
        # Without the address: the log line and the texts made from them name it themselves.
        reason = reason.removeprefix(f"nsqd {address}").lstrip(": ")
        reason = reason.replace(f"connection to {address} lost", "connection lost", 1)
        if self._failures.get(address) != reason:
            log.warning("nsqd %s: %s", address, reason, extra={"nsqd": address})
        self._failures[address] = reason
        self._news.set()
