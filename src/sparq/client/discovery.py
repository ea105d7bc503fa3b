"""Discovery: asks every nsqlookupd which nsqds there are, again and again.

1. All nsqlookupds are asked at once and their answers united: losing any one loses no nsqd. One
   that fails is taken to say what it said last.
2. The first round is at once; the second after a random part of ``jitter`` x interval, so that
   consumers started together do not ask together; then one each interval. A ``recheck`` (a
   connection was lost) asks sooner, but never more than once a second.
3. An answer is bounded in size, redirects are not followed, and addresses that cannot be
   addresses are left out: a broken nsqlookupd costs its own answer only.
4. Both forms of the answer are read: bare JSON, and that of nsqlookupd before 1.0, which wraps it
   in ``data``.
5. An ``https`` nsqlookupd is verified as nsqds are; the secret, if there is one, goes with each
   question (``lookupd_authorization``) and is never logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
from yarl import URL

from sparq.client.address import Address, lookupd_url, parse_address
from sparq.client.config import Config

log = logging.getLogger(__name__)

ANSWER_SIZE_MAX = 8 * 1024 * 1024
"""10,000 producers with all their fields are below 3 MiB."""

RECHECK_SECONDS = 1.0
NOT_FOUND = 404


def question(lookupd: str, topic: str | None) -> URL:
    """What to ask an nsqlookupd: the producers of a topic, or without one all nsqds.

    The address is ``host:port`` or a URL, whose path and query are kept.

    Raises:
        ValueError: it is neither.
    """
    url = URL(lookupd_url(lookupd))
    if url.path in ("", "/"):
        url = url.with_path("/nodes" if topic is None else "/lookup").with_query(url.query)
    return url if topic is None else url.update_query(topic=topic)


class Discovery:
    """Polls the nsqlookupds and reports the addresses of all nsqds that they list."""

    def __init__(
        self,
        lookupds: Iterable[str],
        topic: str | None,
        config: Config,
        rng: random.Random,
    ) -> None:
        self._questions = [question(lookupd, topic) for lookupd in lookupds]
        self._config = config
        self._rng = rng
        self._answers: dict[URL, set[str]] = {}
        self._failing: set[URL] = set()
        self._recheck = asyncio.Event()

    def recheck(self) -> None:
        """Ask soon: something has changed."""
        self._recheck.set()

    async def run(self, found: Callable[[set[str]], None]) -> None:
        """Poll until cancelled, telling ``found`` what is listed; nothing with nobody to ask."""
        if not self._questions:
            return
        interval = self._config.lookupd_poll_interval
        timeout = aiohttp.ClientTimeout(total=self._config.lookupd_poll_timeout)
        wait = self._rng.uniform(0, self._config.lookupd_poll_jitter * interval)
        headers = self._config.lookupd_headers()
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            while True:
                await asyncio.gather(*(self._ask(session, url) for url in self._questions))
                if self._answers:
                    found(set().union(*self._answers.values()))
                await self._pause(wait)
                wait = interval

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or shortly if a recheck is asked for; never less than a second for it."""
        soon = min(RECHECK_SECONDS, seconds)
        await asyncio.sleep(soon)
        try:
            async with asyncio.timeout(seconds - soon):
                await self._recheck.wait()
        except TimeoutError:
            pass
        self._recheck.clear()

    async def _ask(self, session: aiohttp.ClientSession, url: URL) -> None:
        try:
            context = self._config.tls_context() if url.scheme == "https" else True
            self._answers[url] = await _producers(session, url, context)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # Once for each time that it begins to fail, not once a poll.
            if url not in self._failing:
                log.warning("nsqlookupd %s: %s", url, str(error) or type(error).__name__)
            self._failing.add(url)
        else:
            self._failing.discard(url)


async def _producers(
    session: aiohttp.ClientSession, url: URL, context: ssl.SSLContext | bool
) -> set[str]:
    async with session.get(url, allow_redirects=False, ssl=context) as response:
        if response.status == NOT_FOUND:
            return set()
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(65_536):
            body += chunk
            if len(body) > ANSWER_SIZE_MAX:
                raise ValueError(f"an answer of more than {ANSWER_SIZE_MAX} bytes")
    return addresses_in(_parsed(body))


def _parsed(body: bytes | bytearray) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("an answer that is nested too deep") from None


def addresses_in(answer: Any) -> set[str]:
    """The nsqds that an answer of ``/lookup`` or ``/nodes`` lists, as ``host:port``.

    Raises:
        ValueError: the answer has another form.
    """
    if isinstance(answer, dict) and isinstance(answer.get("data"), dict):
        answer = answer["data"]
    producers = answer.get("producers") if isinstance(answer, dict) else None
    if not isinstance(producers, list):
        raise ValueError("an answer without a list of producers")
    found = set()
    for producer in producers:
        try:
            address = Address(str(producer["broadcast_address"]), int(producer["tcp_port"]))
            found.add(str(parse_address(str(address))))
        except (KeyError, TypeError, ValueError, OverflowError):
            log.warning("left out a producer without a usable address: %.200r", producer)
    return found
