"""A temporary topic for a measurement, created and deleted through nsqd's HTTP interface.

1. It has a random name and is deleted at the end of the block, whatever ended the block. Only a
   killed program leaves it behind; its name shows where it came from.
2. nsqd's `message_count` of the topic decides whether a publish has happened.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

from yarl import URL

from sparq.client.reasons import one_line
from sparq.cluster.figures import read
from sparq.cluster.fleet import FIGURES
from sparq.cluster.upstream import Upstream, UpstreamError
from sparq.protocol.address import lookupd_url
from sparq.tools.command_line import ToolError

log = logging.getLogger(__name__)

CHANNEL: Final = "bench"
SECONDS_MAX: Final = 30.0
"""Timeout of one request: an nsqd under load may be slow to delete."""


class ScratchTopic:
    """A topic of its own at an nsqd, with one channel at a time.

    Args:
        http_address: nsqd's ``host:port`` or URL for HTTP.
        token: its HTTP token; "": none.
        tls: verifies it over HTTPS; None: by the system's authorities.

    Attributes:
        name: the topic's name.
        version: nsqd's name and version.

    Raises:
        ValueError: the address is not valid.
    """

    def __init__(
        self, http_address: str, *, token: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.name = f"sparq_bench_{secrets.token_hex(4)}"
        self.version = ""
        self._channels = 0
        self._address = http_address
        self._upstream = Upstream(request_seconds=SECONDS_MAX, token=token, tls=tls)
        self._upstream.own((http_address,))

    async def __aenter__(self) -> Self:
        """Create the topic. Raises ToolError: nsqd cannot be reached over HTTP, or refuses."""
        await self._upstream.__aenter__()
        try:
            self.version = _version(await self._ask(self._upstream.get, "info"))
            await self._post("topic/create")
        except BaseException:
            await self._upstream.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete the topic."""
        try:
            await self._post("topic/delete")
        # Not raised: it would replace the error that ended the block, if there is one.
        except ToolError as failure:
            at = URL(lookupd_url(self._address)) / "topic" / "delete" % {"topic": self.name}
            log.warning("topic %s was not deleted, do it with POST %s: %s", self.name, at, failure)
        finally:
            await self._upstream.__aexit__()

    async def new_channel(self) -> str:
        """Delete the channel, drop the topic's messages, and create an empty channel.

        Returns:
            Its name. It gets the messages that are published from now on.

        Raises:
            ToolError: nsqd refuses.
        """
        if self._channels:
            await self._post("channel/delete", channel=f"{CHANNEL}_{self._channels}")
        await self.empty()
        self._channels += 1
        name = f"{CHANNEL}_{self._channels}"
        await self._post("channel/create", channel=name)
        return name

    async def empty(self) -> None:
        """Drop the topic's messages that are in no channel. Raises ToolError: nsqd refuses."""
        await self._post("topic/empty")

    async def message_count(self) -> int:
        """Return how many messages were published. Raises ToolError: nsqd does not report it."""
        answer = await self._ask(self._upstream.read, "stats", **FIGURES)
        try:
            topic = read(answer).topic(self.name)
        except ValueError as error:
            raise ToolError(f"{self._address}: {error}") from None
        if topic is None:
            raise ToolError(f"{self._address}: its /stats does not list {self.name}")
        return topic.message_count

    async def _post(self, path: str, **query: str) -> None:
        await self._ask(self._upstream.post, path, **query)

    async def _ask(self, call: Callable[..., Awaitable[Any]], path: str, **query: str) -> Any:
        try:
            return await call(self._address, f"/{path}", topic=self.name, **query)
        except UpstreamError as error:
            where = f"/{path}: " if error.status else ""
            raise ToolError(f"--nsqd-http-address {self._address}: {where}{error.reason}") from None


def _version(info: Any) -> str:
    """Return ``nsqd v1.3.0``. Raises ToolError: the response is not from an nsqd."""
    try:
        return one_line(f"nsqd v{info['version']}")
    except (KeyError, TypeError):
        raise ToolError("--nsqd-http-address: this is not the HTTP interface of an nsqd") from None
