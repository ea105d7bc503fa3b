"""Errors on the client's side of a connection; an error that nsqd sends is a ``RemoteError``.

```
SparqClientError
├── ConnectionLostError       the connection ended; unanswered commands may have been executed
├── WrongPeerError            the peer is not an nsqd (the HTTP port, for example)
├── TlsError                  TLS is configured and could not be established
├── AuthRequiredError         nsqd requires AUTH, and no secret is set, or there is no TLS for it
├── PublishError              a publish was given up; says how often it was sent and not answered
├── ProducerFullError         max_pending_bytes wait to be published; this publish was not accepted
├── ClosedError               the producer or consumer is closed, or the consumer not started
└── AlreadyRespondedError     a message was finished or requeued before
```
"""

from __future__ import annotations

import os
import socket

from sparq.wire.errors import AuthRequiredError, SparqClientError, TlsError, WrongPeerError

__all__ = [
    "AlreadyRespondedError",
    "AuthRequiredError",
    "ClosedError",
    "ConnectionLostError",
    "ProducerFullError",
    "PublishError",
    "SparqClientError",
    "TlsError",
    "WrongPeerError",
]


class ConnectionLostError(SparqClientError):
    """The connection ended.

    Attributes:
        executed: False if nsqd certainly did not execute the command; None if unknown.
    """

    def __init__(self, text: str, executed: bool | None = None) -> None:
        super().__init__(text)
        self.executed = executed


class PublishError(SparqClientError):
    """A publish was given up without an OK.

    Attributes:
        attempts: number of sends.
        unanswered: number of sends without an answer; if above 0, the message may be stored.
    """

    def __init__(self, text: str, *, attempts: int, unanswered: int) -> None:
        super().__init__(text)
        self.attempts = attempts
        self.unanswered = unanswered


class ProducerFullError(SparqClientError):
    """``publish_nowait`` would exceed ``max_pending_bytes``; the publish was not accepted."""


class ClosedError(SparqClientError):
    """The producer or consumer is closed and cannot be reused, or the consumer is not started."""


class AlreadyRespondedError(SparqClientError):
    """The message was already finished or requeued."""


def reason_of(error: Exception) -> str:
    """Return why a connection could not be made, as text for people."""
    # The error of `asyncio.timeout` has no errno. The system's ETIMEDOUT is a TimeoutError as well,
    # but has an errno, and so a text of its own below.
    if isinstance(error, TimeoutError) and not error.errno:
        return str(error) or "no answer in time"
    if isinstance(error, socket.gaierror):  # its number is not an errno
        return str(error.strerror).lower()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
