"""The nsqds that a consumer or producer is connected to: those given, and those discovered.

Discovery polls every nsqlookupd for nsqds:

1. Each nsqlookupd is polled independently, and the union of all answers is reported as soon as one
   arrives. So the loss of one nsqlookupd loses no nsqd, and one that hangs delays no other. While
   one fails, its last answer stays valid.
   Each address is reported with the time at which the newest answer that lists it was asked for.
   While no nsqlookupd answers (each has failed, or has been silent for ``PATIENCE_SECONDS``), the
   last answers count as asked for by these queries.
2. The first query is sent at once; the second after a random part of ``jitter`` x interval, so that
   consumers started together do not query together; then one query per interval.
3. After the loss of an nsqd (``recheck``), and while an nsqlookupd fails, it is queried sooner:
   after 1 s, 2 s, 4 s and so on up to the interval, each wait up to ``jitter`` longer. So an nsqd
   that comes back is found after about as long as it was away. These early queries reach an
   nsqlookupd at most once per second.
4. nsqlookupds can be added and removed at any time. The answers of a removed one no longer count.
5. With ``on_draining`` (a producer's), nsqds listed as draining are reported separately and are
   not among the nsqds found. What an nsqlookupd says about draining counts until a query fails.
6. Without nsqlookupds nothing is queried, and the HTTP client (aiohttp, a quarter of a second) is
   not loaded.

The format of an answer is defined in ``protocol.lookup``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sparq.client.arguments import parse_addresses, read_sources, require_callable
from sparq.client.config import Config
from sparq.client.errors import (
    ConnectionLostError,
    SparqClientError,
    WrongPeerError,
    reason_of,
)
from sparq.client.log_fields import FieldLogger
from sparq.protocol.errors import RemoteError
from sparq.protocol.lookup import producers, question, shown

if TYPE_CHECKING:
    from sparq.client.lookup import NsqlookupdClient

log = FieldLogger(__name__)
connections = FieldLogger("sparq.client.pool")
"""The name in docs/observing_clients.md, so that programs can set the level of each apart."""

RECHECK_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 5.0

ASKER: Final = "sparq.client.lookup"

Found = Callable[[Mapping[str, float]], None]
"""Takes the listed addresses, each with the loop time at which it was asked for."""

Filter = Callable[[list[str]], Iterable[str]]
"""Takes the sorted listed addresses; returns the addresses to connect to."""


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


class Discovery:
    """Polls the nsqlookupds and reports the addresses of all nsqds that they list.

    Attributes:
        errors: the reason of the last failure of each failing nsqlookupd, by its URL.
        polls: the nsqlookupds queried, by the URL of the query.
        on_draining: called with the draining nsqds before each report, which then leaves them out;
            None: draining nsqds are reported like others.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        topic: str | None,
        config: Config,
        rng: random.Random,
        keep: Filter | None = None,
    ) -> None:
        self.errors: dict[str, str] = {}
        self.on_draining: Callable[[frozenset[str]], None] | None = None
        self._route, self._query = ("lookup", {"topic": topic}) if topic else ("nodes", {})
        self._config = config
        self._rng = rng
        self._filter = keep
        self._found: Found | None = None
        self.polls: dict[str, _Poll] = {}
        for lookupd in lookupds:
            self.add(lookupd)

    def add(self, lookupd: str) -> None:
        """Add an nsqlookupd; no effect if it is already queried.

        Raises:
            ValueError: the address is neither ``host:port`` nor a URL.
        """
        url = question(lookupd, self._route, **self._query)
        if url in self.polls:
            return
        # Loaded here rather than with the first query, which would block the event loop.
        import_module(ASKER)
        poll = self.polls[url] = _Poll(url, self._config, self._rng)
        if self._found is not None:
            self._start(poll)

    def remove(self, lookupd: str) -> None:
        """Stop querying an nsqlookupd and drop its answers.

        Raises:
            ValueError: the nsqlookupd is not queried.
        """
        poll = self.polls.pop(question(lookupd, self._route, **self._query), None)
        if poll is None:
            raise ValueError(f"nsqlookupd {lookupd} is not among the addresses")
        self.errors.pop(poll.place, None)
        if poll.task is not None:
            poll.task.cancel()
        # If it was the last one, no later answer would report the change.
        if poll.asked_at is not None:
            self._report()

    def recheck(self) -> None:
        """Query all nsqlookupds soon: a connection was lost."""
        for poll in self.polls.values():
            poll.hasten()

    def start(self, found: Found) -> None:
        """Poll from now on; pass listed addresses to ``found``."""
        self._found = found
        for poll in self.polls.values():
            self._start(poll)

    def _start(self, poll: _Poll) -> None:
        poll.task = background(self._ask_often(poll), f"polling {poll.place}")

    async def close(self) -> None:
        """End all queries."""
        tasks = [poll.task for poll in self.polls.values() if poll.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_often(self, poll: _Poll) -> None:
        loop = asyncio.get_running_loop()
        async with import_module(ASKER).NsqlookupdClient(self._config) as asker:
            while True:
                poll.began = loop.time()
                silent = loop.call_later(PATIENCE_SECONDS, self._does_not_answer, poll)
                try:
                    await self._ask(asker, poll)
                finally:
                    silent.cancel()
                await poll.pause()

    async def _ask(self, asker: NsqlookupdClient, poll: _Poll) -> None:
        try:
            found, unusable = producers(await asker.ask(poll.url))
        except (ConnectionError, ValueError) as error:
            # Logged once when it starts to fail, not with each poll.
            if poll.place not in self.errors:
                extra = {"nsqlookupd": poll.place}
                log.warning("nsqlookupd %s: %s", poll.place, error, extra=extra)
                # Only then: each call starts the waits at 1 s again, and so they would not grow.
                poll.hasten()
            self.errors[poll.place] = str(error)
            self._does_not_answer(poll)
        else:
            if unusable:
                text = "left out %d producers without a usable address: %.200r"
                log.warning(text, len(unusable), unusable[0])
            poll.listed, poll.asked_at = {one.address for one in found}, poll.began
            poll.draining = {one.address for one in found if one.draining}
            poll.unanswered_since = None
            self.errors.pop(poll.place, None)
            self._report()

    def _does_not_answer(self, poll: _Poll) -> None:
        poll.unanswered_since = poll.began
        # Not kept, unlike the answer: an nsqd that still drains refuses the next publish, but one
        # that no longer does would be skipped for as long as the nsqlookupd fails.
        was_draining, poll.draining = poll.draining, set()
        if was_draining or not any(each.unanswered_since is None for each in self.polls.values()):
            self._report()

    def _report(self) -> None:
        if self._found is None:
            return
        polls = list(self.polls.values())
        draining = frozenset[str]().union(*(poll.draining for poll in polls))
        answering = [poll for poll in polls if poll.unanswered_since is None]
        if answering:
            since = min(
                [each.asked_at for each in answering if each.asked_at is not None], default=0.0
            )
        else:  # the last answers count as asked for by the queries without an answer
            since = min([each.unanswered_since or 0.0 for each in polls], default=0.0)
        listed: dict[str, float] = {}
        for poll in polls:
            asked_at = poll.asked_at or 0.0
            newest = asked_at if answering else max(asked_at, since)
            for address in poll.listed if self.on_draining is None else poll.listed - draining:
                listed[address] = max(newest, listed.get(address, newest))
        if self._filter is not None:
            try:
                kept = parse_addresses(self._filter(sorted(listed)))
            except Exception:
                # The filter is user code: if it raises, the connections stay as they are.
                log.exception("the discovery filter failed")
                return
            # An address of the filter's own counts as listed by every nsqlookupd that answers.
            listed = {each: listed.get(each, since) for each in kept}
        if self.on_draining is not None:
            self.on_draining(draining)
        self._found(listed)


class _Poll:
    """One nsqlookupd: its last answer, and when it is queried next.

    Attributes:
        url: the query.
        place: the URL without parts that may be secret.
        task: sends the queries.
        listed: the nsqds in its last answer.
        asked_at: when that answer was asked for; loop time; None: there is no answer yet.
        draining: those of them that drain.
        unanswered_since: when the query was sent that it has not answered; None: it answers.
        began: when its last query was sent; loop time.
    """

    def __init__(self, url: str, config: Config, rng: random.Random) -> None:
        self.url, self.place = url, shown(url)
        self.task: asyncio.Task[None] | None = None
        self.listed: set[str] = set()
        self.asked_at: float | None = None
        self.draining: set[str] = set()
        self.unanswered_since: float | None = None
        self.began = 0.0
        self._interval = config.lookupd_poll_interval
        self._jitter = config.lookupd_poll_jitter
        self._rng = rng
        self._wait = rng.uniform(0, self._jitter * self._interval)
        self._haste = self._interval
        self._early = asyncio.Event()

    def hasten(self) -> None:
        """Make the next query early."""
        self._early.set()

    async def pause(self) -> None:
        """Wait until the next query is due."""
        now = asyncio.get_running_loop().time()
        soon = min(RECHECK_SECONDS, self._wait)
        # Slept even if hastened: otherwise each lost connection could cause a query at once.
        await asyncio.sleep(soon)
        due = max(self.began + self._wait, now + soon)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._early.wait()
        self._wait = self._next_wait()

    def _next_wait(self) -> float:
        """Return the next wait in seconds: short after a loss or failure, then doubling."""
        if self._early.is_set():
            self._early.clear()
            self._haste = RECHECK_SECONDS
        wait, self._haste = self._haste, min(2 * self._haste, self._interval)
        longer = 1 + self._jitter * self._rng.random() if wait < self._interval else 1.0
        return min(wait * longer, self._interval)


FAILURES = (OSError, TimeoutError, SparqClientError, RemoteError, UnicodeError)
"""Errors of a failed attempt; UnicodeError is raised for an invalid host name."""

FIRST_DELAY = 0.1


class Connecting(ABC):
    """Keeps connections to the given nsqds and to those that nsqlookupds list.

    1. Each address has one keeper task: it connects, waits for the loss, and reconnects. The delay
       grows exponentially from 0.1 s to ``max_reconnect_delay``, with a random reduction of up to
       half, and is reset once an attempt or connection has lasted longer than the delay.
    2. A discovered nsqd that is no longer listed keeps its connection, since only a loss shows that
       it is gone. Once lost, it is only tried again by an answer asked after the loss: a consumer
       that connects by an older one would create a topic again that has just been deleted there. A
       given nsqd is never dropped.
    3. So an nsqd that is given, or listed since its loss, is connected within
       ``max_reconnect_delay`` after it has come back (plus the ``dial_timeout`` of an attempt that
       had started before).
    4. Addresses can be added and removed at any time. A removed address is not connected to, even
       if listed, until it is added again.
    5. Each new connection is logged at info, with nsqd's version; each reason for a failure is
       logged at warning, once. A program that needs the given nsqds waits with ``until_connected``.
    6. ``_serve`` says what a connection is for: it connects, uses the connection and returns when
       it is lost, with the reason. An exception (see ``FAILURES``) means that no connection was
       made.

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
        connections.info(
            "nsqd %s: connected%s (%s)", address, again, version, extra={"nsqd": address}
        )
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
            connections.warning("nsqd %s: %s", address, reason, extra={"nsqd": address})
        self._failures[address] = reason
        self._news.set()
