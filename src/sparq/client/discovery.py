"""Discovery: polls every nsqlookupd for nsqds.

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

The format of an answer is defined in ``protocol.lookup``. `Connecting` is the common part of a
consumer and a producer: connections to given and listed nsqds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sparq.client.arguments import parse_addresses
from sparq.client.config import Config
from sparq.client.log_fields import FieldLogger
from sparq.client.pool import Pool, background
from sparq.protocol.lookup import ListedNsqd, producers, question, shown

if TYPE_CHECKING:
    from sparq.client.lookup import NsqlookupdClient

log = FieldLogger(__name__)

RECHECK_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 5.0

ASKER: Final = "sparq.client.lookup"

Found = Callable[[Mapping[str, float]], None]
"""Takes the listed addresses, each with the loop time at which it was asked for."""

Filter = Callable[[list[str]], Iterable[str]]
"""Takes the sorted listed addresses; returns the addresses to connect to."""


class Discovery:
    """Polls the nsqlookupds and reports the addresses of all nsqds that they list.

    Attributes:
        errors: the reason of the last failure of each failing nsqlookupd, by its URL.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        topic: str | None,
        config: Config,
        rng: random.Random,
        keep: Filter | None = None,
        *,
        on_draining: Callable[[frozenset[str]], None] | None = None,
    ) -> None:
        """Initialize; ``on_draining`` is called with the draining nsqds before each report.

        The report then leaves them out. None: draining nsqds are reported like others.
        """
        self.errors: dict[str, str] = {}
        self._topic = topic
        self._config = config
        self._rng = rng
        self._filter = keep
        self._found: Found = lambda addresses: None
        self._answers: dict[str, tuple[float, set[str]]] = {}
        self._unanswered: dict[str, float] = {}
        self._on_draining = on_draining
        self._draining: dict[str, set[str]] = {}
        self._polls: dict[str, _Poll] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        for lookupd in lookupds:
            self.add(lookupd)

    @property
    def count(self) -> int:
        """The number of nsqlookupds queried."""
        return len(self._polls)

    def add(self, lookupd: str) -> None:
        """Add an nsqlookupd; no effect if it is already queried.

        Raises:
            ValueError: the address is neither ``host:port`` nor a URL.
        """
        self._polls.setdefault(self._question(lookupd), self._poll())
        # Loaded here rather than with the first query, which would block the event loop.
        import_module(ASKER)
        self._changed.set()

    def remove(self, lookupd: str) -> None:
        """Stop querying an nsqlookupd and drop its answers.

        Raises:
            ValueError: the nsqlookupd is not queried.
        """
        url = self._question(lookupd)
        if url not in self._polls:
            raise ValueError(f"nsqlookupd {lookupd} is not among the addresses")
        del self._polls[url]
        answered = self._answers.pop(url, None) is not None
        self._draining.pop(url, None)
        self._unanswered.pop(url, None)
        self.errors.pop(shown(url), None)
        if (task := self._asking.pop(url, None)) is not None:
            task.cancel()
        # If it was the last one, no later answer would report the change.
        if answered:
            self._report()

    def recheck(self) -> None:
        """Query all nsqlookupds soon: a connection was lost."""
        for poll in self._polls.values():
            poll.hasten()

    async def run(self, found: Found) -> None:
        """Poll until cancelled; pass listed addresses to ``found``; wait without nsqlookupds."""
        self._found = found
        if not self._polls:
            await self._changed.wait()
        asker: NsqlookupdClient = import_module(ASKER).NsqlookupdClient(self._config)
        async with asker:
            try:
                while True:
                    self._changed.clear()
                    self._ask_all(asker)
                    await self._changed.wait()
            finally:
                tasks = list(self._asking.values())
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _poll(self) -> _Poll:
        config = self._config
        return _Poll(config.lookupd_poll_interval, config.lookupd_poll_jitter, self._rng)

    def _question(self, lookupd: str) -> str:
        if self._topic is None:
            return question(lookupd, "nodes")
        return question(lookupd, "lookup", topic=self._topic)

    def _ask_all(self, asker: NsqlookupdClient) -> None:
        for url in self._polls.keys() - self._asking.keys():
            work = self._ask_often(asker, url, self._polls[url])
            self._asking[url] = background(work, f"polling {shown(url)}")

    async def _ask_often(self, asker: NsqlookupdClient, url: str, poll: _Poll) -> None:
        loop = asyncio.get_running_loop()
        while True:
            poll.begin()
            silent = loop.call_later(PATIENCE_SECONDS, self._does_not_answer, url, poll)
            try:
                await self._ask(asker, url, poll)
            finally:
                silent.cancel()
            await poll.pause()

    async def _ask(self, asker: NsqlookupdClient, url: str, poll: _Poll) -> None:
        try:
            found = producers_in(await asker.ask(url))
        except (ConnectionError, ValueError) as error:
            place, text = shown(url), str(error)
            # Logged once when it starts to fail, not with each poll.
            if place not in self.errors:
                log.warning("nsqlookupd %s: %s", place, text, extra={"nsqlookupd": place})
                # Only then: each call starts the waits at 1 s again, and so they would not grow.
                poll.hasten()
            self.errors[place] = text
            self._does_not_answer(url, poll)
        else:
            self._answers[url] = poll.began, {one.address for one in found}
            self._unanswered.pop(url, None)
            self._draining[url] = {one.address for one in found if one.draining}
            self.errors.pop(shown(url), None)
            self._report()

    def _does_not_answer(self, url: str, poll: _Poll) -> None:
        self._unanswered[url] = poll.began
        # Not kept, unlike the answer: an nsqd that still drains refuses the next publish, but one
        # that no longer does would be skipped for as long as the nsqlookupd fails.
        if self._draining.pop(url, None) or self._no_answers:
            self._report()

    @property
    def _no_answers(self) -> bool:
        return self._unanswered.keys() == self._polls.keys()

    def _report(self) -> None:
        listed: dict[str, float] = {}
        for asked_at, addresses in self._answers.values():
            listed |= {each: max(asked_at, listed.get(each, asked_at)) for each in addresses}
        draining = frozenset().union(*self._draining.values())
        if self._on_draining is not None:
            listed = {each: when for each, when in listed.items() if each not in draining}
        since = self._answered_since()
        if self._no_answers:
            listed = {each: max(when, since) for each, when in listed.items()}
        if self._filter is not None:
            try:
                kept = parse_addresses(self._filter(sorted(listed)))
            except Exception:
                # The filter is user code: if it raises, the connections stay as they are.
                log.exception("the discovery filter failed")
                return
            # An address of the filter's own counts as listed by every nsqlookupd that answers.
            listed = {each: listed.get(each, since) for each in kept}
        if self._on_draining is not None:
            self._on_draining(draining)
        self._found(listed)

    def _answered_since(self) -> float:
        """Return when the oldest answer was asked for, of the nsqlookupds that answer."""
        if self._no_answers:
            return min(self._unanswered.values(), default=0.0)
        answers = self._answers.items()
        return min((when for url, (when, _) in answers if url not in self._unanswered), default=0.0)


class _Poll:
    """The poll schedule of one nsqlookupd.

    Attributes:
        began: when its last query was sent; loop time.
    """

    def __init__(self, interval: float, jitter: float, rng: random.Random) -> None:
        self._interval = interval
        self._jitter = jitter
        self._rng = rng
        self._wait = rng.uniform(0, jitter * interval)
        self._haste = interval
        self._early = asyncio.Event()
        self.began = 0.0

    def hasten(self) -> None:
        """Make the next query early."""
        self._early.set()

    def begin(self) -> None:
        """Note the time of a query."""
        self.began = asyncio.get_running_loop().time()

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
        if wait >= self._interval:
            return self._interval
        return min(wait * (1 + self._jitter * self._rng.random()), self._interval)


def producers_in(answer: Any) -> list[ListedNsqd]:
    """Return the nsqds that an nsqlookupd's answer lists.

    Raises:
        ValueError: the answer has the wrong format, or lists too many nsqds.
    """
    found, unusable = producers(answer)
    if unusable:
        log.warning(
            "left out %d producers without a usable address: %.200r", len(unusable), unusable[0]
        )
    return found


class Connecting(ABC):
    """Keeps connections to the given nsqds and to those that nsqlookupds list."""

    _pool: Pool
    _lookups: Discovery

    @abstractmethod
    def _require_started(self) -> None:
        """Raise ClosedError unless it is started."""

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
