"""The pool: one connection to every nsqd that is given or discovered, made again when lost.

1. An address has one keeper task: it connects, waits for the loss, and connects again. The delay
   grows exponentially from 0.1 s to ``max_reconnect_delay``, jittered downwards by up to half,
   and starts anew once a connection has lasted longer than its delay was.
2. A discovered nsqd that is listed no more keeps its connection, since a loss alone says that it
   is gone; once lost it is forgotten until it is listed again. A given one is never forgotten.
3. So an nsqd that is given, or listed, is connected within ``max_reconnect_delay`` (and the
   ``dial_timeout`` of an attempt that had begun before) after it has come back.
4. Addresses may be added and removed at any time. A removed one is left alone, listed or not,
   until it is added again.
5. Each connection that is made is logged at info, with nsqd's version; each reason why there is
   none at warning, once. Whoever cannot do without the given ones waits by ``reached``.
6. What a connection is for is none of the pool's business: ``serve`` connects, uses the connection
   and returns, the reason perhaps, when it is lost; what it raises (see ``FAILURES``) is why there
   was none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from sparq.client.errors import ConnectionLostError, SparqClientError, WrongPeerError
from sparq.client.log_fields import FieldLogger
from sparq.protocol.errors import RemoteError

log = FieldLogger(__name__)

FAILURES = (OSError, TimeoutError, SparqClientError, RemoteError, UnicodeError)
"""What there is instead of a connection; the last is raised for a name that can be no host's."""

FIRST_DELAY = 0.1


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that ends by being cancelled or by returning; any other end is a bug, and is logged.

    Nobody awaits it while it runs: a failure would show only when the garbage is collected. What
    ends the program (``SystemExit``, ``KeyboardInterrupt``) ends the loop, and needs no line.
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
        errors: why there is no connection to an address, as text; none for a connected one.
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
        self._given = set(given)
        self._listed: frozenset[str] = frozenset()
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
    def given(self) -> frozenset[str]:
        """The addresses that need not be listed."""
        return frozenset(self._given)

    @property
    def wanted(self) -> list[str]:
        """The addresses to which a connection is kept, or tried for."""
        return [address for address in self._given | self._listed if self._wanted(address)]

    def start(self) -> None:
        """Begin to connect to what is given."""
        self._started = True
        self._keep_wanted()

    def add(self, address: str) -> None:
        """Keep a connection to this address, listed or not; one may be kept already."""
        self._removed.discard(address)
        self._given.add(address)
        self._keep_wanted()

    def remove(self, address: str) -> None:
        """Connect to this address no more; a connection stays until it ends or is dropped.

        Raises:
            ValueError: it is neither given nor listed nor connected.
        """
        if address not in self._given | self._listed | self._keepers.keys():
            raise ValueError(f"nsqd {address} is not among the addresses")
        self._given.discard(address)
        self._removed.add(address)

    async def drop(self, address: str) -> None:
        """End the connection to a removed address, and the attempts to make one."""
        keeper = self._keepers.get(address)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
            self._keep_wanted()  # it may have been added again meanwhile

    def connected(self, address: str, facts: Mapping[str, Any]) -> None:
        """There is a connection, to an nsqd that has answered IDENTIFY with these facts."""
        again = " again" if address in self._reached else ""
        version = facts.get("version", "of an unknown version")
        log.info("nsqd %s: connected%s (%s)", address, again, version, extra={"nsqd": address})
        self._reached.add(address)
        self._news.set()

    async def reached(self, seconds: float) -> None:
        """Wait until each given address is connected, or has been before.

        Raises:
            ConnectionLostError: one could not be reached in so many seconds; with 0, at the first
                attempt. The text names it.
            WrongPeerError: one is no nsqd, as its last attempt found.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while missing := self._given - self._reached:
            left = deadline - clock()
            if wrong := missing & self._wrong:
                raise WrongPeerError(self._no_connection(wrong))
            if left <= 0 and (failed := missing & self.errors.keys()):
                within = f" within {seconds:g} s" if seconds else ""
                raise ConnectionLostError(self._no_connection(failed, within))
            self._news.clear()
            # Behind the deadline the attempt that is under way decides, which has a bound.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else None):
                    await self._news.wait()

    def _no_connection(self, addresses: Iterable[str], within: str = "") -> str:
        return "; ".join(
            f"no connection to nsqd {address}{within}: {self.errors[address]}"
            for address in sorted(addresses)
        )

    def update(self, listed: Iterable[str]) -> None:
        """These are what discovery lists now."""
        self._listed = frozenset(listed)
        self._keep_wanted()

    def retire(self) -> None:
        """Connect to nothing more; what is connected stays so."""
        self._closed = True

    async def close(self) -> None:
        """End every keeper, and with it whatever its ``serve`` holds."""
        self._closed = True
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    def _wanted(self, address: str) -> bool:
        known = address in self._given or address in self._listed
        return known and not self._closed and address not in self._removed

    def _keep_wanted(self) -> None:
        if not self._started:
            return
        for address in self._given | self._listed:
            if address not in self._keepers and self._wanted(address):
                keeper = background(self._keep(address), f"connection to {address}")
                self._keepers[address] = keeper
                keeper.add_done_callback(partial(self._ended, address))

    def _ended(self, address: str, keeper: asyncio.Task[None]) -> None:
        del self._keepers[address]
        self.errors.pop(address, None)
        # It may be listed again since; but what a bug has ended is not begun again in a loop.
        if not keeper.cancelled() and keeper.exception() is None:
            self._keep_wanted()

    async def _keep(self, address: str) -> None:
        clock = asyncio.get_running_loop().time
        delay = FIRST_DELAY
        while self._wanted(address):
            began = clock()
            try:
                lost = await self._serve(address)
                if self._wanted(address):
                    self._failed(address, str(lost or "connection lost"))
                self._lost()
            except FAILURES as error:
                if isinstance(error, WrongPeerError):
                    self._wrong.add(address)
                self._failed(address, reason_of(error))
            if clock() - began > delay:
                delay = FIRST_DELAY
            await asyncio.sleep(delay * self._rng.uniform(0.5, 1))
            delay = min(delay * 2, self._max_delay)

    def _failed(self, address: str, reason: str) -> None:
        """Say why there is no connection: once for each reason, not once an attempt."""
        reason = reason.removeprefix(f"nsqd {address}").lstrip(": ")
        if self.errors.get(address) != reason:
            log.warning("nsqd %s: %s", address, reason, extra={"nsqd": address})
        self.errors[address] = reason
        self._news.set()


def reason_of(error: Exception) -> str:
    """Why a connection could not be made, in words for a person."""
    if isinstance(error, TimeoutError) and not error.errno:
        return str(error) or "no answer in time"
    if isinstance(error, socket.gaierror):  # its numbers are the resolver's own
        return str(error.strerror).lower()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
