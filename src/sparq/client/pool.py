"""The pool: one connection to every given or discovered nsqd, reconnected when lost.

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
   at warning, once. A program that needs the given nsqds waits with ``reached``.
6. The pool does not know the purpose of a connection: ``serve`` connects, uses the connection and
   returns when it is lost, optionally with the reason. An exception (see ``FAILURES``) means that
   no connection was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

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


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a background task; it should return or be cancelled, and an exception is logged.

    No code awaits it while it runs: without the log line, a failure would show only at garbage
    collection. ``SystemExit`` and ``KeyboardInterrupt`` end the loop and are not logged.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
        log.error("%s failed", task.get_name(), exc_info=error)


class Pool:
    """Keeps connections to a changing set of addresses.

    Attributes:
        given: the addresses to connect to even if they are not listed.
        errors: the reason why an address is not connected, as text; no entry if connected.
    """

    def __init__(
        self,
        given: Iterable[str],
        serve: Callable[[str], Awaitable[Exception | None]],
        lost: Callable[[], None],
        *,
        max_delay: float,
        rng: random.Random,
    ) -> None:
        self.errors: dict[str, str] = {}
        self.given = set(given)
        self._listed: Mapping[str, float] = {}
        self._removed: set[str] = set()
        self._serve = serve
        self._max_delay = max_delay
        self._rng = rng
        self._lost = lost
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._reached: set[str] = set()
        self._wrong: set[str] = set()
        self._news = asyncio.Event()
        self._started = self._closed = False

    @property
    def wanted(self) -> list[str]:
        """The addresses that are connected or being connected to."""
        return [address for address in self.given | self._listed.keys() if self._wanted(address)]

    def start(self) -> None:
        """Start to connect."""
        self._started = True
        self._keep_wanted()

    def add(self, address: str) -> None:
        """Keep a connection to this address, listed or not; no effect if it is already kept."""
        self._removed.discard(address)
        self.given.add(address)
        self._news.set()
        self._keep_wanted()

    def remove(self, address: str) -> None:
        """Stop connecting to this address; a connection stays until it ends or is dropped.

        Raises:
            ValueError: the address is not given, listed or connected.
        """
        if address not in self.given | self._listed.keys() | self._keepers.keys():
            raise ValueError(f"nsqd {address} is not among the addresses")
        self.given.discard(address)
        self._removed.add(address)

    async def drop(self, address: str) -> None:
        """Close the connection to a removed address, or end the attempts to connect."""
        keeper = self._keepers.get(address)
        if keeper is not None:
            keeper.cancel()
            # Not `await keeper`: its CancelledError would look like a cancellation of this task.
            await asyncio.wait([keeper])
            self._keep_wanted()  # the address may have been added again in the meantime

    def connected(self, address: str, facts: Mapping[str, Any]) -> None:
        """Note and log a new connection; ``facts`` is nsqd's answer to IDENTIFY."""
        again = " again" if address in self._reached else ""
        version = facts.get("version", "unknown version")
        log.info("nsqd %s: connected%s (%s)", address, again, version, extra={"nsqd": address})
        self._reached.add(address)
        self._news.set()

    async def reached(self, seconds: float) -> None:
        """Wait until each given address is connected, or was connected before.

        Raises:
            ConnectionLostError: an address could not be reached within ``seconds`` (0: on the
                first attempt); the text names it.
            WrongPeerError: a peer is not an nsqd.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while missing := self.given - self._reached:
            left = deadline - clock()
            wrong = missing & self._wrong
            failed = missing & self.errors.keys() if left <= 0 else set()
            if wrong or failed:
                within = f" within {seconds:g} s" if seconds and not wrong else ""
                text = "; ".join(
                    f"no connection to nsqd {address}{within}: {self.errors[address]}"
                    for address in sorted(wrong or failed)
                )
                raise WrongPeerError(text) if wrong else ConnectionLostError(text)
            self._news.clear()
            # After the deadline, the result of the current attempt decides; it has a timeout.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else None):
                    await self._news.wait()

    def update(self, listed: Mapping[str, float]) -> None:
        """Set the addresses that discovery lists now, each with the loop time it was asked at."""
        self._listed = listed
        self._news.set()
        self._keep_wanted()

    def retire(self) -> None:
        """Make no new connections; existing ones stay."""
        self._closed = True

    async def close(self) -> None:
        """Cancel every keeper, and with it its ``serve`` and connection."""
        self._closed = True
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    def _wanted(self, address: str) -> bool:
        known = address in self.given or address in self._listed
        return known and not self._closed and address not in self._removed

    def _keep_wanted(self) -> None:
        if not self._started:
            return
        for address in self.given | self._listed.keys():
            if address not in self._keepers and self._wanted(address):
                keeper = background(self._keep(address), f"connection to {address}")
                self._keepers[address] = keeper
                keeper.add_done_callback(partial(self._ended, address))

    def _ended(self, address: str, keeper: asyncio.Task[None]) -> None:
        del self._keepers[address]
        self.errors.pop(address, None)
        # It may be listed again by now. A keeper that a bug ended is not restarted endlessly.
        if not keeper.cancelled() and keeper.exception() is None:
            self._keep_wanted()

    async def _keep(self, address: str) -> None:
        clock = asyncio.get_running_loop().time
        delay = FIRST_DELAY
        while self._wanted(address):
            began = clock()
            is_lost = False
            try:
                lost = await self._serve(address)
                is_lost = True
                if self._wanted(address):
                    self._failed(address, str(lost or "connection lost"))
            except FAILURES as error:
                if isinstance(error, WrongPeerError):
                    self._wrong.add(address)
                self._failed(address, reason_of(error))
            if clock() - began > delay:
                delay = FIRST_DELAY
            await asyncio.sleep(delay * self._rng.uniform(0.5, 1))
            delay = min(delay * 2, self._max_delay)
            if is_lost:
                # Not before the delay: an nsqd that deletes a topic closes its connections first,
                # and reports the deletion to its nsqlookupds right afterwards.
                self._lost()
                await self._asked_since(address, clock())

    async def _asked_since(self, address: str, when: float) -> None:
        """Wait until an answer asked since then lists the address, or until it is not wanted."""
        while self._wanted(address) and address not in self.given:
            if self._listed[address] >= when:
                return
            self._news.clear()
            await self._news.wait()

    def _failed(self, address: str, reason: str) -> None:
        """Note why there is no connection; log a reason once, not with each attempt."""
        # Without the address: the log line and the texts made from `errors` name it themselves.
        reason = reason.removeprefix(f"nsqd {address}").lstrip(": ")
        reason = reason.replace(f"connection to {address} lost", "connection lost", 1)
        if self.errors.get(address) != reason:
            log.warning("nsqd %s: %s", address, reason, extra={"nsqd": address})
        self.errors[address] = reason
        self._news.set()
