"""Error messages about peers that did not answer, as text for people."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

import aiohttp

from sparq.wire.errors import tls_reason

LENGTH_MAX: Final = 200


def http_reason(error: Exception) -> str:
    """Return why a daemon did not answer over HTTP: one printable line, without its address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        cause = error.__cause__
        return one_line(f"TLS: {tls_reason(cause) if isinstance(cause, ssl.SSLError) else error}")
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        if isinstance(error.os_error, socket.gaierror):  # its number is not an errno
            return str(error.os_error.strerror).lower()
        return os.strerror(error.os_error.errno).lower()
    if isinstance(error, aiohttp.ClientResponseError):
        if "E_BAD_PROTOCOL" in error.message:  # aiohttp quotes the first bytes of the answer
            return (
                "it speaks NSQ's TCP protocol: give the HTTP port (by default nsqd's is 4151,"
                " nsqlookupd's 4161)"
            )
        return "an answer that is not HTTP: is this the port for HTTP?"
    return one_line(str(error) or type(error).__name__)


def one_line(text: str) -> str:
    """Make a peer's text safe to print: at most 200 characters, non-printable ones as blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LENGTH_MAX])
