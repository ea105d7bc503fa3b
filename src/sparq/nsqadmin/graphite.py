"""Queries graphite for nsqadmin's users: rates in the form of NSQ's API, and proxied images.

Answers are limited in size, and redirects are not followed. An answer is passed on as an image,
JSON, CSV or plain text only: an HTML page from graphite would count as a page of nsqadmin.
"""

from __future__ import annotations

import json
import logging
from typing import Final

import aiohttp
from aiohttp import web
from yarl import URL

from sparq.client.lookup import http_reason
from sparq.daemon.http import HttpError
from sparq.protocol.bounded import collected

ANSWER_BYTES_MAX: Final = 16 << 20
SECONDS: Final = 20.0
SHOWN: Final = ("image/png", "image/jpeg", "image/gif", "application/json", "text/csv")
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
NO_RATE: Final = "N/A"

logger = logging.getLogger(__name__)


class Graphite:
    """One graphite server; `url` may contain user and password."""

    def __init__(self, url: str, connect_seconds: float) -> None:
        self._base = URL(url)
        self._timeout = aiohttp.ClientTimeout(total=SECONDS, connect=connect_seconds)

    async def rate(self, target: str, interval_seconds: int) -> str:
        """Fetch a target's rate per second in the last whole interval; `N/A` if unknown.

        Raises:
            HttpError: 500 INTERNAL_ERROR if graphite gives no usable answer; the reason is logged.
        """
        # Not the interval that is under way: its counts are incomplete.
        query = {
            "from": f"-{2 * interval_seconds}sec",
            "until": f"-{interval_seconds}sec",
            "format": "json",
            "target": target,
        }
        try:
            status, _, body = await self._ask(self._base.joinpath("render") % query)
            if status != web.HTTPOk.status_code:
                raise ValueError(f"status {status}")
            found = json.loads(body)
        except (*FAILURES, RecursionError) as error:
            logger.error("GRAPHITE: %s", http_reason(error))
            raise HttpError(500, "INTERNAL_ERROR") from None
        try:
            value = float(found[0]["datapoints"][0][0])
        except (LookupError, TypeError, ValueError):
            value = None
        return NO_RATE if value is None or value < 0 else f"{value / interval_seconds:.2f}"

    async def render(self, query: str) -> web.Response:
        """Fetch graphite's answer to `/render` with this query.

        Raises:
            HttpError: 502 UPSTREAM_ERROR if graphite does not answer.
        """
        url = URL(f"{str(self._base).rstrip('/')}/render?{query}", encoded=True)
        try:
            status, kind, body = await self._ask(url)
        except FAILURES as error:
            logger.error("GRAPHITE: %s", http_reason(error))
            raise HttpError(502, "UPSTREAM_ERROR: graphite does not answer") from None
        shown = kind if kind in SHOWN else "text/plain"
        return web.Response(status=status, body=body, headers={"Content-Type": shown})

    async def _ask(self, url: URL) -> tuple[int, str, bytes]:
        async with (
            aiohttp.ClientSession(timeout=self._timeout) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            body = await collected(response.content.iter_chunked(1 << 16), ANSWER_BYTES_MAX)
            return response.status, response.content_type, body
