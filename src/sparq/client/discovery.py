"""Discovery: asks every nsqlookupd which nsqds there are, again and again.

1. Each nsqlookupd is asked by itself and all answers are united, at once: losing any one loses no
   nsqd, and one that hangs delays none. One that fails is taken to say what it said last.
2. The first question is at once; the second after a random part of ``jitter`` x interval, so that
   consumers started together do not ask together; then one each interval.
3. After a loss (``recheck``) and while an nsqlookupd fails it is asked sooner: after 1 s, 2 s, 4 s
   and so on up to the interval, each up to ``jitter`` longer. So an nsqd that comes back is found
   after about as long as it was away. Haste asks no nsqlookupd more than once a second.
4. Which nsqlookupds are asked may change at any time; what one that is left had listed is listed
   no more.
5. nsqds that are listed as draining are told apart where that is asked for (``on_draining``), as a
   producer does, and then not among those that are found. What an nsqlookupd has said of that
   counts until it fails.
6. With no nsqlookupd nothing is asked, and what asking over HTTP takes (aiohttp, a quarter of a
   second) is not loaded.

What an answer may be is said in ``protocol.lookup``. `Connecting` is what a consumer and a producer
have in common: nsqds that they are to be connected to, given or listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sparq.client.address import parse_addresses
from sparq.client.config import Config
from sparq.client.log_fields import FieldLogger
from sparq.client.pool import Pool, background
from sparq.protocol.lookup import Producer, producers, question, shown

if TYPE_CHECKING:
    from sparq.client.lookup import Asker

log = FieldLogger(__name__)

RECHECK_SECONDS: Final = 1.0

ASKER: Final = "sparq.client.lookup"

Filter = Callable[[list[str]], Iterable[str]]
"""Takes the sorted addresses that are listed; returns those to connect to."""


class Discovery:
    """Polls the nsqlookupds and reports the addresses of all nsqds that they list.

    Attributes:
        errors: why an nsqlookupd gives no answer that can be used, by its URL.
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
        """`on_draining` is called with the nsqds that drain before what is found is told, which
        then is without them; None: they are found like others."""
        self.errors: dict[str, str] = {}
        self._topic = topic
        self._config = config
        self._rng = rng
        self._filter = keep
        self._found: Callable[[set[str]], None] = lambda addresses: None
        self._answers: dict[str, set[str]] = {}
        self._on_draining = on_draining
        self._draining: dict[str, set[str]] = {}
        self._polls: dict[str, _Poll] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        for lookupd in lookupds:
            self.add(lookupd)

    @property
    def count(self) -> int:
        """How many nsqlookupds are asked."""
        return len(self._polls)

    def add(self, lookupd: str) -> None:
        """Ask this one, too; it may be asked already.

        Raises:
            ValueError: it is neither ``host:port`` nor a URL.
        """
        self._polls.setdefault(self._question(lookupd), self._poll())
        # Here, and not when the first question is due: then the event loop would stand still.
        import_module(ASKER)
        self._changed.set()

    def remove(self, lookupd: str) -> None:
        """Ask this one no more, and forget what it has said.

        Raises:
            ValueError: it is not asked.
        """
        url = self._question(lookupd)
        if url not in self._polls:
            raise ValueError(f"nsqlookupd {lookupd} is not asked")
        del self._polls[url]
        self._answers.pop(url, None)
        self._draining.pop(url, None)
        self.errors.pop(shown(url), None)
        if (task := self._asking.pop(url, None)) is not None:
            task.cancel()

    def recheck(self) -> None:
        """Ask soon: something has changed."""
        for poll in self._polls.values():
            poll.hasten()

    async def run(self, found: Callable[[set[str]], None]) -> None:
        """Poll until cancelled, telling ``found`` what is listed; with nobody to ask, wait."""
        self._found = found
        if not self._polls:
            await self._changed.wait()
        asker: Asker = import_module(ASKER).Asker(self._config)
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

    def _ask_all(self, asker: Asker) -> None:
        for url in self._polls.keys() - self._asking.keys():
            work = self._ask_often(asker, url, self._polls[url])
            self._asking[url] = background(work, f"questions to {shown(url)}")

    async def _ask_often(self, asker: Asker, url: str, poll: _Poll) -> None:
        while True:
            poll.begin()
            await self._ask(asker, url, poll)
            await poll.pause()

    async def _ask(self, asker: Asker, url: str, poll: _Poll) -> None:
        try:
            found = producers_in(await asker.ask(url))
        except (ConnectionError, ValueError) as error:
            place, text = shown(url), str(error)
            # Once for each time that it begins to fail, not once a poll.
            if place not in self.errors:
                log.warning("nsqlookupd %s: %s", place, text, extra={"nsqlookupd": place})
                poll.hasten()
            self.errors[place] = text
            self._draining.pop(url, None)
        else:
            self._answers[url] = {one.address for one in found}
            self._draining[url] = {one.address for one in found if one.draining}
            self.errors.pop(shown(url), None)
            self._report()

    def _report(self) -> None:
        listed = set().union(*self._answers.values())
        draining = frozenset().union(*self._draining.values())
        if self._on_draining is not None:
            listed -= draining
        if self._filter is not None:
            try:
                listed = set(parse_addresses(self._filter(sorted(listed))))
            except Exception:
                # The filter is the user's: whatever it raises, the connections stay as they are.
                log.exception("the discovery filter failed")
                return
        if self._on_draining is not None:
            self._on_draining(draining)
        self._found(listed)


class _Poll:
    """When one nsqlookupd is asked."""

    def __init__(self, interval: float, jitter: float, rng: random.Random) -> None:
        self._interval = interval
        self._jitter = jitter
        self._rng = rng
        self._wait = rng.uniform(0, jitter * interval)
        self._haste = interval
        self._early = asyncio.Event()
        self._began = 0.0

    def hasten(self) -> None:
        """Ask soon."""
        self._early.set()

    def begin(self) -> None:
        """It is asked now."""
        self._began = asyncio.get_running_loop().time()

    async def pause(self) -> None:
        """Return when it is to be asked again."""
        now = asyncio.get_running_loop().time()
        soon = min(RECHECK_SECONDS, self._wait)
        await asyncio.sleep(soon)
        due = max(self._began + self._wait, now + soon)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._early.wait()
        self._wait = self._next_wait()

    def _next_wait(self) -> float:
        """A loss or a failure makes the next waits short, each twice the one before."""
        if self._early.is_set():
            self._early.clear()
            self._haste = RECHECK_SECONDS
        wait, self._haste = self._haste, min(2 * self._haste, self._interval)
        if wait >= self._interval:
            return self._interval
        return min(wait * (1 + self._jitter * self._rng.random()), self._interval)


def producers_in(answer: Any) -> list[Producer]:
    """The nsqds that an answer of nsqlookupd lists.

    Raises:
        ValueError: the answer has another form, or lists too many.
    """
    found, unusable = producers(answer)
    if unusable:
        log.warning(
            "left out %d producers without a usable address: %.200r", len(unusable), unusable[0]
        )
    return found


class Connecting(ABC):
    """Keeps connections to nsqds that are given, and to those that nsqlookupds list."""

    _pool: Pool
    _lookups: Discovery

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
