"""client.reasons: the reason why an HTTP query failed, in plain words on one line."""

import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from sparq.client.reasons import http_reason

KEY = ConnectionKey("nohost.invalid", 1, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "no answer in time"),
        (ConnectionRefusedError(111, "refused"), "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "TLS: "),
        (ValueError("status 500"), "status 500"),
        (ValueError("\x1b[2Jgone\n"), " [2Jgone "),
        (ValueError(), "ValueError"),
        (ValueError("x" * 1000), "x" * 200),
    ],
)
def test_the_reason_is_short_and_printable(error: Exception, reason: str) -> None:
    """The reason has no error numbers, addresses or control characters; at most 200 characters."""
    if isinstance(error, ssl.SSLError):
        wrapped = aiohttp.ClientConnectorSSLError(KEY, error)
        wrapped.__cause__ = error
        assert http_reason(wrapped).startswith(reason)
        assert "[" not in http_reason(wrapped)
    elif isinstance(error, OSError) and not isinstance(error, TimeoutError):
        assert reason == http_reason(aiohttp.ClientConnectorError(KEY, error))
    else:
        assert reason == http_reason(error)
