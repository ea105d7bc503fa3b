"""Query nsqlookupds with asyncio: connections, TLS and the secret for `protocol.lookup`.

An ``https`` nsqlookupd is verified as nsqds are. The secret, if configured, is sent with each query
over ``https`` (``lookupd_authorization``, ``auth_without_tls``). Cookies are not kept.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from sparq.client.config import Config
from sparq.client.errors import reason_of
from sparq.protocol import lookup
from sparq.protocol.bounded import collected
from sparq.protocol.names import one_line
from sparq.wire.errors import tls_reason
from sparq.wire.layer_options import check_lookupd_status

CHUNK_SIZE: Final = 65_536
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class NsqlookupdClient:
    """Queries nsqlookupds; an async context manager, as it keeps connections open.

    Args:
        config: TLS, the secret, and the timeout of a query.
        timeout: timeout of a query, in place of the config's.
    """

    def __init__(self, config: Config, timeout: aiohttp.ClientTimeout | None = None) -> None:
        self._config = config
        self._timeout = timeout or aiohttp.ClientTimeout(total=config.lookupd_poll_timeout)

    async def __aenter__(self) -> Self:
        """Open the HTTP session."""
        self._session = aiohttp.ClientSession(
            timeout=self._timeout,
            headers=lookup.HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._session.close()

    async def ask(self, url: str) -> Any:
        """Return an nsqlookupd's answer to a `lookup.question`.

        Raises:
            ConnectionError: there is no usable answer; the text says why.
        """
        try:
            # `lookup.question` has quoted the URL already.
            return await self._answer(URL(url, encoded=True))
        except FAILURES as error:
            raise ConnectionError(http_reason(error)) from error

    async def _answer(self, url: URL) -> Any:
        is_tls = url.scheme == "https"
        context: ssl.SSLContext | bool = self._config.tls_context() if is_tls else True
        headers = self._config.lookupd_headers(str(url))
        asking = self._session.get(url, allow_redirects=False, ssl=context, headers=headers)
        async with asking as response:
            check_lookupd_status(self._config, str(url), response.status)
            chunks = response.content.iter_chunked(CHUNK_SIZE)
            body = await collected(chunks, lookup.ANSWER_BYTES_MAX)
        return lookup.answer(response.status, body)


def http_reason(error: Exception) -> str:
    """Return why a daemon did not answer over HTTP: one printable line, without its address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        cause = error.__cause__
        return one_line(f"TLS: {tls_reason(cause) if isinstance(cause, ssl.SSLError) else error}")
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return reason_of(error.os_error)
    if isinstance(error, aiohttp.ClientResponseError):
        if "E_BAD_PROTOCOL" in error.message:  # aiohttp quotes the first bytes of the answer
            return (
                "it speaks NSQ's TCP protocol: give the HTTP port (by default nsqd's is 4151,"
                " nsqlookupd's 4161)"
            )
        return "an answer that is not HTTP: is this the port for HTTP?"
    return one_line(str(error) or type(error).__name__)
