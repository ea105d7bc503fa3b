"""Errors of connections, and the meanings of nsqd's error codes.

1. `LayerError` reports invalid bytes to the code that reads them. The other errors are for
   programs that use the client.
2. ``RemoteError`` carries nsqd's code and text, which say what happened at nsqd; ``RefusedError``
   adds what it means for the client. One table has an entry per code: NSQ's codes, then sparq's.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Final

from sparq.protocol.errors import ERRORS, RemoteError

_BRACKETS: Final = re.compile(r"^\[[\w: ]+\] | \(\w+\.c:\d+\)$")


class LayerError(Exception):
    """TLS or compression failed: the peer's bytes are not valid, or the layer is closed."""


class SparqClientError(Exception):
    """Base of the client's own errors."""


class WrongPeerError(SparqClientError):
    """The peer does not speak nsqd's protocol."""


class TlsError(SparqClientError):
    """TLS was requested but failed: not offered, not trusted, or refused by the peer."""


class AuthRequiredError(SparqClientError):
    """nsqd requires AUTH, and no secret is configured."""


def tls_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason for an error, without the parts in brackets."""
    said = getattr(error, "verify_message", "")
    if said:
        return said
    reason = getattr(error, "reason", None)  # only OpenSSL's own errors have one
    return (reason or _BRACKETS.sub("", str(error))).replace("_", " ").lower()


# Refusals

_STORAGE: Final = "nsqd could not store it, as when its disk is full or it is shutting down: \
publish to another nsqd or later; its log says more"
_LATE: Final = "the message is not in flight here any more, as after its msg_timeout: it comes \
again; answer sooner, touch() it, or raise msg_timeout"
_RANGE: Final = "what is asked for is not there as it was: begin anew from where the log begins"

MEANINGS: Final[Mapping[str, str]] = {
    "E_INVALID": "nsqd does not take this command now or in this form, as a delay above its "
    "--max-req-timeout, or a connection without TLS where it demands it (option tls_v1)",
    "E_BAD_PROTOCOL": "the peer does not speak NSQ's protocol V2: is this nsqd's TCP address?",
    "E_BAD_BODY": "what is sent is larger than nsqd's --max-body-size, or of a form or with an "
    "option that it does not take: send less at a time, or change that option",
    "E_BAD_TOPIC": "a topic has 1 to 64 characters of .a-zA-Z0-9_- and perhaps #ephemeral behind "
    "them: change the name",
    "E_BAD_CHANNEL": "a channel has 1 to 64 characters of .a-zA-Z0-9_- and perhaps #ephemeral "
    "behind them: change the name",
    "E_BAD_MESSAGE": "a message is empty or larger than nsqd's --max-msg-size: make it smaller, "
    "or raise that",
    "E_PUB_FAILED": _STORAGE,
    "E_MPUB_FAILED": _STORAGE + "; Go's nsqd may have stored the first of the messages",
    "E_DPUB_FAILED": _STORAGE,
    "E_SUB_FAILED": "the channel has as many consumers as nsqd allows (--max-channel-consumers), "
    "or is being deleted: it is tried again",
    "E_IDENTIFY_FAILED": "nsqd could not agree to TLS or compression: ask for snappy or deflate, "
    "not both; its log says more",
    "E_AUTH_DISABLED": "this nsqd asks for no secret: leave auth_secret out for it",
    "E_AUTH_FAILED": "no authd has vouched for the secret: check auth_secret, and that nsqd "
    "reaches an authd",
    "E_AUTH_FIRST": "this nsqd asks for a secret: give auth_secret",
    "E_AUTH_ERROR": "nsqd could not answer AUTH: its log says more",
    "E_UNAUTHORIZED": "the secret is good, but not for this topic and channel: have authd allow "
    "them",
    "E_FIN_FAILED": _LATE,
    "E_REQ_FAILED": _LATE,
    "E_TOUCH_FAILED": _LATE,
    "E_ATTACH_FAILED": "the channel has consumers, or its topic has no log to read by ranges: "
    "stop them, or read another channel",
    "E_RANGE_FAILED": _RANGE,
    "E_COMMIT_FAILED": "another reader holds the channel now, or the index is none of its log",
}
UNKNOWN: Final = "sparq does not know this code: see the documentation of that nsqd"


class RefusedError(RemoteError):
    """nsqd has refused a command; the error has nsqd's code and text, and their meaning."""

    @property
    def meaning(self) -> str:
        """The meaning of the code, and what to do about it."""
        return MEANINGS.get(self.code, UNKNOWN)

    def __str__(self) -> str:
        return f"{super().__str__()} - {self.meaning}"


def remote_error(text: bytes) -> RefusedError:
    """Convert an error frame into an error; an unknown code counts as fatal."""
    code, _, rest = text.decode("utf-8", "replace").partition(" ")
    kind = ERRORS.get(code)
    return RefusedError(code, rest, fatal=kind is None or kind.fatal)
