"""One HTTP connection: aiohttp's, but what aiohttp answers by itself looks like the site's answers.

It does so where no handler is asked: 400 to what is not HTTP, 500 where the site itself fails. Such
an answer has the headers of the site and does not name the versions of Python and aiohttp.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

LINE_BYTES_MAX = 64 << 10
"""The longest request line, and the longest header: a topic's name may come percent-encoded."""

logger = logging.getLogger(__name__)


class _OneLine(logging.Filter):
    """Logs a request that is not HTTP in one line: it is no bug of ours, and may come often."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record, but of a bad request only what was wrong."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args = "HTTP: %s: %s", (record.getMessage(), error.message[:200])
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


logger.addFilter(_OneLine())


class Connection(web.RequestHandler):
    """A connection of a site."""

    __slots__ = ("_headers",)

    def __init__(
        self,
        server: web.Server,
        headers: Mapping[str, str],
        *,
        head_seconds: float,
        linger_seconds: float,
    ) -> None:
        """`headers`: of answers that no handler makes. Must be called in the running loop."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=head_seconds,
            lingering_time=linger_seconds,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type] # aiohttp documents None: no log
            logger=logger,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
        self._headers = headers

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's answer to what no handler is asked about, with the headers of the site."""
        response = super().handle_error(request, status, exc, message)
        response.headers.update(self._headers)
        return response
