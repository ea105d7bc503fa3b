"""Every error code of nsqd has a meaning, with advice for the user."""

import pickle

from sparq.client import RefusedError, RemoteError
from sparq.protocol.errors import ERRORS
from sparq.wire.errors import MEANINGS, UNKNOWN, remote_error


def test_every_code_has_a_meaning() -> None:
    """MEANINGS has each code of the TCP protocol and no other."""
    assert {code for code in ERRORS if code.startswith("E_")} == MEANINGS.keys()


def test_an_errors_text_contains_its_meaning() -> None:
    """The text begins with nsqd's own words, followed by the meaning."""
    error = remote_error(b"E_BAD_MESSAGE PUB message too big 9 > 8")

    assert ("E_BAD_MESSAGE", "PUB message too big 9 > 8", True) == (
        error.code,
        error.text,
        error.fatal,
    )
    assert str(error).startswith("E_BAD_MESSAGE PUB message too big 9 > 8 - a message is empty or")
    assert "--max-msg-size" in error.meaning
    unknown = remote_error(b"E_NEW what")
    assert (UNKNOWN, True) == (unknown.meaning, unknown.fatal)


def test_an_error_keeps_its_fields_when_pickled() -> None:
    """An error keeps all its fields when pickled.

    Spark sends errors from its workers to its driver.
    """
    error = pickle.loads(pickle.dumps(remote_error(b"E_FIN_FAILED FIN 1 failed")))

    assert isinstance(error, RefusedError)
    assert isinstance(error, RemoteError)
    assert (error.code, error.fatal) == ("E_FIN_FAILED", False)
    assert "touch()" in str(error)
