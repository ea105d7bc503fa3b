"""A topic for the time of a measurement, made and deleted over nsqd's HTTP interface.

1. It has a random name and is deleted at the end of the block, whatever ended it. Only a program
   that is killed leaves it behind; its name says whose it was.
2. What nsqd says of it decides whether a publish has happened: `message_count`.
"""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from sparq.client.address import lookupd_url
from sparq.client.reasons import http_reason, one_line
from sparq.tools.command_line import Failed

log = logging.getLogger(__name__)

CHANNEL: Final = "bench"
ANSWER_SIZE_MAX: Final = 8 << 20
SECONDS_MAX: Final = 30.0
"""For one answer: an nsqd under load may take its time to delete."""

FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class ScratchTopic:
    """A topic of one's own at an nsqd, with one channel at a time.

    Args:
        http_address: nsqd's ``host:port`` or URL for HTTP.

    Attributes:
        name: the topic's.
        version: what nsqd says that it is.

    Raises:
        ValueError: the address is none.
    """

    def __init__(self, http_address: str) -> None:
        self.name = f"sparq_bench_{secrets.token_hex(4)}"
        self.version = ""
        self._channels = 0
        self._address = http_address
        self._base = URL(lookupd_url(http_address))

    async def __aenter__(self) -> Self:
        """Make the topic.

        Raises:
            Failed: nsqd cannot be reached over HTTP, or refuses.
        """
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=SECONDS_MAX), cookie_jar=aiohttp.DummyCookieJar()
        )
        try:
            self.version = _version(await self._ask("GET", "info"))
            await self._ask("POST", "topic/create")
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete it."""
        try:
            await self._ask("POST", "topic/delete")
        except Failed as failure:
            at = self._base / "topic" / "delete" % {"topic": self.name}
            log.warning("topic %s is left behind, POST %s deletes it: %s", self.name, at, failure)
        finally:
            await self._session.close()

    async def new_channel(self) -> str:
        """An empty channel instead of the one before: what was under way there stays there.

        Returns:
            Its name. It gets what is published from now on.

        Raises:
            Failed: nsqd refuses.
        """
        if self._channels:
            await self._ask("POST", "channel/delete", channel=f"{CHANNEL}_{self._channels}")
        await self.empty()
        self._channels += 1
        name = f"{CHANNEL}_{self._channels}"
        await self._ask("POST", "channel/create", channel=name)
        return name

    async def empty(self) -> None:
        """Throw away what waits in the topic and is in no channel.

        Raises:
            Failed: nsqd refuses.
        """
        await self._ask("POST", "topic/empty")

    async def message_count(self) -> int:
        """How many messages were published to it.

        Raises:
            Failed: nsqd does not say.
        """
        answer = await self._ask("GET", "stats", format="json", include_clients="false")
        try:
            (topic,) = json.loads(answer)["topics"]
            return int(topic["message_count"])
        except (KeyError, TypeError, ValueError):
            raise Failed(f"{self._address}: its /stats do not list {self.name}") from None

    async def _ask(self, method: str, path: str, **query: str) -> bytes:
        url = self._base / path % {"topic": self.name, **query}
        try:
            async with self._session.request(method, url, allow_redirects=False) as response:
                answer = await response.content.read(ANSWER_SIZE_MAX)
                status = response.status
        except FAILURES as error:
            raise Failed(f"--nsqd-http-address {self._address}: {http_reason(error)}") from None
        if status != 200:
            said = one_line(answer.decode(errors="replace"))
            raise Failed(f"{self._address}: {method} /{path}: status {status} {said}")
        return answer


def _version(answer: bytes) -> str:
    """``nsqd v1.3.0``.

    Raises:
        Failed: this is no nsqd's answer.
    """
    try:
        info: dict[str, Any] = json.loads(answer)
        return one_line(f"nsqd v{info['version']}")
    except (KeyError, TypeError, ValueError):
        raise Failed("--nsqd-http-address: this is no nsqd's HTTP interface") from None
