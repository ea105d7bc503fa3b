"""What can go wrong on the client's side of a connection; nsqd's own refusals are ``RemoteError``.

```
SparqClientError
├── ConnectionLostError       the connection ended; what was unanswered may have been done or not
├── WrongPeerError            what answers there is not an nsqd (the HTTP port, say)
├── TlsError                  TLS was asked for and could not be had
├── AuthRequiredError         nsqd asks for AUTH, and there is no secret to answer with
├── PublishError              a publish was given up; says what is known about it
├── ProducerFullError         as much waits to be published as may; nothing of this was taken
├── ClosedError               the producer or consumer is closed, or the consumer not started
└── AlreadyRespondedError     a message was finished or requeued before
```
"""

from __future__ import annotations

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
        executed: False when nsqd certainly did not execute the command; None when unknown.
    """

    def __init__(self, text: str, executed: bool | None = None) -> None:
        super().__init__(text)
        self.executed = executed


class PublishError(SparqClientError):
    """A publish was given up without an OK.

    Attributes:
        attempts: how often it was sent.
        unanswered: how many of those had no answer; above 0 it may be stored all the same.
    """

    def __init__(self, text: str, *, attempts: int, unanswered: int) -> None:
        super().__init__(text)
        self.attempts = attempts
        self.unanswered = unanswered


class ProducerFullError(SparqClientError):
    """``publish_nowait`` found ``max_pending_bytes`` waiting already; it has taken nothing."""


class ClosedError(SparqClientError):
    """The producer or consumer was closed and is not used again, or the consumer not started."""


class AlreadyRespondedError(SparqClientError):
    """A message is finished or requeued once; this one was already."""
