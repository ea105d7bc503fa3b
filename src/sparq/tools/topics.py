"""The topics that nsqlookupds know and a pattern picks.

1. All nsqlookupds are asked at once and their answers united; one that fails costs its own answer
   only, and is told of when it begins to fail.
2. They are asked as consumers ask them (`client.lookup`), so an answer is bounded in bytes; it is
   bounded in topics, too. What cannot be a topic's name is left out.
3. A pattern has Go's syntax and matches anywhere in a name, in time that is linear in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

import aiohttp
from yarl import URL

from sparq.client import lookup
from sparq.client.address import lookupd_url
from sparq.client.config import Config
from sparq.client.reasons import http_reason
from sparq.protocol.names import is_valid_name
from sparq.protocol.patterns import Pattern

log = logging.getLogger(__name__)

TOPICS_MAX: Final = 10_000
"""Each costs a consumer and a file: more come of a mistake, or of malice."""


def question(lookupd: str) -> URL:
    """What to ask an nsqlookupd, given as ``host:port`` or as a URL.

    Raises:
        ValueError: it is neither.
    """
    url = URL(lookupd_url(lookupd))
    if url.path in ("", "/"):
        return url.with_path("/topics").with_query(url.query)
    return (url.parent / "topics").with_query(url.query)


class Topics:
    """Asks which topics there are.

    Args:
        lookupds: the nsqlookupds, ``host:port`` or URL.
        pattern: which topics count.
        config: TLS, and the secret that nsqlookupds are shown.
        connect_seconds: for each connection.
        request_seconds: for each question as a whole.

    Raises:
        ValueError: an address is not one.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        pattern: Pattern,
        config: Config,
        *,
        connect_seconds: float,
        request_seconds: float,
    ) -> None:
        self._questions = [question(lookupd) for lookupd in lookupds]
        self._pattern = pattern
        self._config = config
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, connect=connect_seconds)
        self._failing: set[URL] = set()

    async def known(self) -> list[str]:
        """The topics that count, in alphabetical order; those of the nsqlookupds that answer."""
        async with lookup.session(self._config, self._timeout) as session:
            answers = await asyncio.gather(*(self._ask(session, url) for url in self._questions))
        return sorted(filter(self._pattern.search, set().union(*answers)))

    async def _ask(self, session: aiohttp.ClientSession, url: URL) -> set[str]:
        try:
            found = topics_in(await lookup.document_at(session, url, self._config))
        except lookup.FAILURES as error:
            if url not in self._failing:
                log.error("nsqlookupd %s: %s", lookup.shown(url), http_reason(error))
            self._failing.add(url)
            return set()
        self._failing.discard(url)
        return found


def topics_in(answer: Any) -> set[str]:
    """The topics that an answer to ``/topics`` lists.

    Raises:
        ValueError: the answer has another form, or lists more than ``TOPICS_MAX``.
    """
    listed = answer.get("topics") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise ValueError("an answer without a list of topics")
    if len(listed) > TOPICS_MAX:
        raise ValueError(f"an answer with more than {TOPICS_MAX} topics")
    found = {topic for topic in listed if isinstance(topic, str) and is_valid_name(topic)}
    if len(found) < len(listed):
        log.warning("left out %d topics without a legal name", len(listed) - len(found))
    return found
