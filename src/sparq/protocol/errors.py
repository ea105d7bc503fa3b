"""All errors that are reported to peers, in one table, and the exception that carries one.

1. A ``RemoteError`` is the peer's fault, or a refusal that the peer must be informed of; it never
   means a bug in sparq.
2. The table says whether an error ends the connection. There is one exception: a publish that
   storage refused keeps its connection, so that a full disk does not also make every producer
   reconnect in a loop (a difference from Go nsqd).
3. Codes without ``E_`` belong to the HTTP API, where the code alone is the message.
4. The error of a publish that is refused because of a drain ends with one of two fixed texts
   (`drained`): another nsqd accepts the same publish, and this nsqd is healthy.
"""

from typing import Final, NamedTuple


class ErrorKind(NamedTuple):
    """Properties of an error code: whether it ends the connection, and its HTTP status."""

    fatal: bool
    http_status: int


_FATAL: Final = ErrorKind(fatal=True, http_status=400)
_REFUSED: Final = ErrorKind(fatal=True, http_status=503)
_HARMLESS: Final = ErrorKind(fatal=False, http_status=400)


def _http(status: int) -> ErrorKind:
    return ErrorKind(fatal=False, http_status=status)


ERRORS: Final[dict[str, ErrorKind]] = {
    "E_INVALID": _FATAL,
    "E_BAD_PROTOCOL": _FATAL,
    "E_BAD_BODY": _FATAL,
    "E_BAD_TOPIC": _FATAL,
    "E_BAD_CHANNEL": _FATAL,
    "E_BAD_MESSAGE": _FATAL,
    "E_PUB_FAILED": _REFUSED,
    "E_MPUB_FAILED": _REFUSED,
    "E_DPUB_FAILED": _REFUSED,
    "E_SUB_FAILED": _FATAL,
    "E_IDENTIFY_FAILED": _FATAL,
    "E_AUTH_DISABLED": _FATAL,
    "E_AUTH_FAILED": _FATAL,
    "E_AUTH_FIRST": _FATAL,
    "E_AUTH_ERROR": _FATAL,
    "E_UNAUTHORIZED": _FATAL,
    "E_FIN_FAILED": _HARMLESS,
    "E_REQ_FAILED": _HARMLESS,
    "E_TOUCH_FAILED": _HARMLESS,
    # Range reading, an extension of sparq. A refused reader may retry on the same connection.
    "E_ATTACH_FAILED": _HARMLESS,
    "E_RANGE_FAILED": _HARMLESS,
    "E_COMMIT_FAILED": _HARMLESS,
    # HTTP only.
    "INVALID_REQUEST": _http(400),
    "MISSING_ARG_TOPIC": _http(400),
    "MISSING_ARG_CHANNEL": _http(400),
    "INVALID_TOPIC": _http(400),
    "INVALID_ARG_TOPIC": _http(400),
    "INVALID_ARG_CHANNEL": _http(400),
    "INVALID_DEFER": _http(400),
    "INVALID_OPTION": _http(400),
    "INVALID_VALUE": _http(400),
    "MSG_EMPTY": _http(400),
    "UNAUTHORIZED": _http(401),
    "LIMIT_REACHED": _http(403),
    "TOPIC_NOT_FOUND": _http(404),
    "CHANNEL_NOT_FOUND": _http(404),
    "NOT_FOUND": _http(404),
    "METHOD_NOT_ALLOWED": _http(405),
    "MSG_TOO_BIG": _http(413),
    "BODY_TOO_BIG": _http(413),
    "BAD_BODY": _http(413),
    "BAD_MESSAGE": _http(413),
    "INTERNAL_ERROR": _http(500),
    "EXITING": _http(503),
    "DRAINING": _http(503),
    "TOPIC_DRAINING": _http(503),
    "PUB_FAILED": _http(503),
}


DRAINING: Final = "nsqd is draining"
TOPIC_DRAINING: Final = "topic is draining at this nsqd"


class RemoteError(Exception):
    """An error that is reported to the peer: a code of the table and a text.

    Attributes:
        code: the error's code, a key of ``ERRORS``.
        text: the text after the code; bytes that are not UTF-8 are kept as surrogate escapes.
        fatal: whether the connection ends after the error is sent.
        unanswered: set by the client if a publish is refused: number of its sends without an
            answer; if above 0, the message may be stored.
    """

    unanswered = 0

    def __init__(self, code: str, text: str = "", fatal: bool | None = None) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.fatal = ERRORS[code].fatal if fatal is None else fatal

    @property
    def http_status(self) -> int:
        """The status of an HTTP answer with this error."""
        return ERRORS[self.code].http_status

    def frame_text(self) -> bytes:
        """The data of an error frame: the code, a space and the text."""
        text = f"{self.code} {self.text}" if self.text else self.code
        return text.encode("utf-8", "surrogateescape")

    def __str__(self) -> str:
        return self.frame_text().decode("utf-8", "replace")

    @property
    def drained(self) -> str:
        """`DRAINING` or `TOPIC_DRAINING` if a drain is why a publish was refused; else ""."""
        for reason in (DRAINING, TOPIC_DRAINING):
            if self.text.endswith(f" failed {reason}"):
                return reason
        return ""
