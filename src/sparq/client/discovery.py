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

What an answer may be is said in ``lookup``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from typing import Final

import aiohttp
from yarl import URL

from sparq.client.address import parse_addresses
from sparq.client.config import Config
from sparq.client.log_fields import FieldLogger
from sparq.client.lookup import FAILURES, ask, question, session, shown
from sparq.client.pool import background
from sparq.client.reasons import http_reason

log = FieldLogger(__name__)

RECHECK_SECONDS: Final = 1.0

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
    ) -> None:
        self.errors: dict[str, str] = {}
        self._topic = topic
        self._config = config
        self._rng = rng
        self._filter = keep
        self._found: Callable[[set[str]], None] = lambda addresses: None
        self._answers: dict[URL, set[str]] = {}
        self._polls = {question(lookupd, topic): self._poll() for lookupd in lookupds}
        self._asking: dict[URL, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def count(self) -> int:
        """How many nsqlookupds are asked."""
        return len(self._polls)

    def add(self, lookupd: str) -> None:
        """Ask this one, too; it may be asked already.

        Raises:
            ValueError: it is neither ``host:port`` nor a URL.
        """
        self._polls.setdefault(question(lookupd, self._topic), self._poll())
        self._changed.set()

    def remove(self, lookupd: str) -> None:
        """Ask this one no more, and forget what it has said.

        Raises:
            ValueError: it is not asked.
        """
        url = question(lookupd, self._topic)
        if url not in self._polls:
            raise ValueError(f"nsqlookupd {lookupd} is not asked")
        del self._polls[url]
        self._answers.pop(url, None)
        self.errors.pop(shown(url), None)
        if (task := self._asking.pop(url, None)) is not None:
            task.cancel()

    def recheck(self) -> None:
        """Ask soon: something has changed."""
        for poll in self._polls.values():
            poll.hasten()

    async def run(self, found: Callable[[set[str]], None]) -> None:
        """Poll until cancelled, telling ``found`` what is listed; nothing with nobody to ask."""
        self._found = found
        async with session(self._config) as asking:
            try:
                while True:
                    self._changed.clear()
                    self._ask_all(asking)
                    await self._changed.wait()
            finally:
                tasks = list(self._asking.values())
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _poll(self) -> _Poll:
        config = self._config
        return _Poll(config.lookupd_poll_interval, config.lookupd_poll_jitter, self._rng)

    def _ask_all(self, asking: aiohttp.ClientSession) -> None:
        for url in self._polls.keys() - self._asking.keys():
            work = self._ask_often(asking, url, self._polls[url])
            self._asking[url] = background(work, f"questions to {shown(url)}")

    async def _ask_often(self, asking: aiohttp.ClientSession, url: URL, poll: _Poll) -> None:
        while True:
            poll.begin()
            await self._ask(asking, url, poll)
            await poll.pause()

    async def _ask(self, asking: aiohttp.ClientSession, url: URL, poll: _Poll) -> None:
        try:
            self._answers[url] = await ask(asking, url, self._config)
        except FAILURES as error:
            place, text = shown(url), http_reason(error)
            # Once for each time that it begins to fail, not once a poll.
            if place not in self.errors:
                log.warning("nsqlookupd %s: %s", place, text, extra={"nsqlookupd": place})
                poll.hasten()
            self.errors[place] = text
        else:
            self.errors.pop(shown(url), None)
            self._report()

    def _report(self) -> None:
        listed = set().union(*self._answers.values())
        if self._filter is not None:
            try:
                listed = set(parse_addresses(self._filter(sorted(listed))))
            except Exception:
                # The filter is the user's: whatever it raises, the connections stay as they are.
                log.exception("the discovery filter failed")
                return
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
