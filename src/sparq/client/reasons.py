"""Why something far away did not answer, in words for a person."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

import aiohttp

from sparq.wire.errors import tls_reason

LENGTH_MAX: Final = 200


def http_reason(error: Exception) -> str:
    """Why a daemon did not answer over HTTP, without its address: one line that can be printed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        cause = error.__cause__
        return one_line(f"TLS: {tls_reason(cause) if isinstance(cause, ssl.SSLError) else error}")
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        if isinstance(error.os_error, socket.gaierror):  # its numbers are the resolver's own
            return str(error.os_error.strerror).lower()
        return os.strerror(error.os_error.errno).lower()
    if isinstance(error, aiohttp.ClientResponseError):
        if "E_BAD_PROTOCOL" in error.message:  # it quotes the first bytes of the answer
            return (
                "it speaks NSQ's TCP protocol: give the HTTP port (by default nsqd's is 4151,"
                " nsqlookupd's 4161)"
            )
        return "an answer that is not HTTP: is this the port for HTTP?"
    return one_line(str(error) or type(error).__name__)


def one_line(text: str) -> str:
    """A text from somebody else, fit for a terminal: what does not print becomes a blank."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LENGTH_MAX])
