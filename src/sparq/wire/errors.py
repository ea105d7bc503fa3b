"""Errors of connections, and the meanings of nsqd's error codes.

1. They are for programs that use the client. Invalid bytes are reported to the code that reads
   them as `LayerError`.
2. ``RemoteError`` carries nsqd's code and text, which say what happened at nsqd; ``RefusedError``
   adds what it means for the client. One table has an entry per code: NSQ's codes, then sparq's.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Final

from sparq.protocol.errors import ERRORS, RemoteError

# Python puts OpenSSL's library and error before the text, and its own source line after it.
_BRACKETS: Final = re.compile(r"^\[[\w: ]+\] | \(\w+\.c:\d+\)$")


class SparqClientError(Exception):
    """Base of the client's own errors."""


class WrongPeerError(SparqClientError):
    """The peer does not speak nsqd's protocol."""


class TlsError(SparqClientError):
    """TLS was requested but failed: not offered, not trusted, or refused by the peer."""


class AuthRequiredError(SparqClientError):
    """nsqd requires AUTH, and no secret is configured, or it would be sent without TLS."""


def tls_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason for an error, without the parts in brackets."""
    # Why a certificate was rejected: more exact than the reason, which only says that it was.
    message = getattr(error, "verify_message", "")
    if message:
        return message
    reason = getattr(error, "reason", None)  # only OpenSSL's own errors have one
    return (reason or _BRACKETS.sub("", str(error))).replace("_", " ").lower()


# Refusals

_STORAGE: Final = "nsqd could not store the message, for example because its disk is full or it \
is shutting down: publish to another nsqd or try again later; nsqd's log says more"
_LATE: Final = "the message is no longer in flight here, for example because its msg_timeout \
has passed; nsqd delivers it again: respond sooner, touch() it, or raise msg_timeout"
_RANGE: Final = "the requested range is no longer in the log: start again from its beginning"

MEANINGS: Final[Mapping[str, str]] = {
    "E_INVALID": "nsqd does not accept this command now or in this form, for example a delay above "
    "its --max-req-timeout, or a connection without TLS if it requires TLS (option tls_v1)",
    "E_BAD_PROTOCOL": "the peer does not speak NSQ's protocol V2: is this nsqd's TCP address?",
    "E_BAD_BODY": "the request is larger than nsqd's --max-body-size, is malformed, or has an "
    "option that nsqd does not accept: send less at a time, or change that option",
    "E_BAD_TOPIC": "invalid topic name: use 1 to 64 characters from [.a-zA-Z0-9_-], optionally "
    "followed by #ephemeral",
    "E_BAD_CHANNEL": "invalid channel name: use 1 to 64 characters from [.a-zA-Z0-9_-], optionally "
    "followed by #ephemeral",
    "E_BAD_MESSAGE": "a message is empty or larger than nsqd's --max-msg-size: send a smaller one, "
    "or raise that limit",
    "E_PUB_FAILED": _STORAGE,
    "E_MPUB_FAILED": _STORAGE + "; Go's nsqd may have stored the first messages of the batch",
    "E_DPUB_FAILED": _STORAGE,
    "E_SUB_FAILED": "the channel has the maximum number of consumers (--max-channel-consumers), "
    "or is being deleted: the client tries again",
    "E_IDENTIFY_FAILED": "nsqd could not set up TLS or compression: request snappy or deflate, "
    "not both; nsqd's log says more",
    "E_AUTH_DISABLED": "this nsqd does not use AUTH: do not set auth_secret for it",
    "E_AUTH_FAILED": "the secret was not accepted: check auth_secret, and that nsqd can reach "
    "an authd",
    "E_AUTH_FIRST": "this nsqd requires AUTH: set auth_secret",
    "E_AUTH_ERROR": "nsqd could not answer AUTH: nsqd's log says more",
    "E_UNAUTHORIZED": "the secret is valid, but not for this topic and channel: allow them in "
    "authd or in the token file",
    "E_FIN_FAILED": _LATE,
    "E_REQ_FAILED": _LATE,
    "E_TOUCH_FAILED": _LATE,
    "E_ATTACH_FAILED": "the channel has consumers, or its topic has no log to read by ranges: "
    "stop the consumers, or read another channel",
    "E_RANGE_FAILED": _RANGE,
    "E_COMMIT_FAILED": "another reader holds the channel now, or the index is not in its log",
}
UNKNOWN: Final = "unknown error code: see the documentation of that nsqd"


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
