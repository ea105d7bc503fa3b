"""Every error that a peer can be told of, in one table, and the exception that carries one.

1. A ``RemoteError`` is the peer's doing or a refusal it must hear of; it never means a bug of ours.
2. Whether an error ends the connection stands in the table. Only one thing overrides it: a publish
   that storage refused keeps its connection, so that a full disk does not also make every
   producer reconnect in a loop (a difference from Go nsqd).
3. Codes without ``E_`` belong to the HTTP API, where the code alone is the message.
4. A publish that is refused for a drain has one of two fixed texts behind it (`drained`): the same
   publish is taken by another nsqd, and nothing is wrong with this one.
"""

from typing import Final, NamedTuple


class ErrorKind(NamedTuple):
    """What an error code entails: the connection's end, and its status in HTTP."""

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
    # sparq's own: range reading. A reader that was refused may try again on its connection.
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
    """A refusal that the peer is told: a code of the table and what it is about.

    Attributes:
        code: the error's code, a key of ``ERRORS``.
        text: what follows the code; bytes that are not UTF-8 stand as surrogate escapes.
        fatal: whether the connection ends once the error is sent.
    """

    def __init__(self, code: str, text: str = "", fatal: bool | None = None) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.fatal = ERRORS[code].fatal if fatal is None else fatal

    @property
    def http_status(self) -> int:
        """The status an HTTP answer has for this error."""
        return ERRORS[self.code].http_status

    def frame_text(self) -> bytes:
        """The error as the data of an error frame: the code, a space and the text."""
        text = f"{self.code} {self.text}" if self.text else self.code
        return text.encode("utf-8", "surrogateescape")

    def __str__(self) -> str:
        return self.frame_text().decode("utf-8", "replace")

    @property
    def drained(self) -> str:
        """`DRAINING` or `TOPIC_DRAINING` of a publish that is refused for that; "": it is not."""
        for reason in (DRAINING, TOPIC_DRAINING):
            if self.text.endswith(f" failed {reason}"):
                return reason
        return ""
