"""The table of errors, and the error as sent to a peer."""

from sparq.protocol.errors import ERRORS, RemoteError

HARMLESS = {
    *("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"),
    *("E_ATTACH_FAILED", "E_RANGE_FAILED", "E_COMMIT_FAILED"),
}
NSQ_CODES = {
    *("E_INVALID", "E_BAD_BODY", "E_BAD_TOPIC", "E_BAD_CHANNEL", "E_BAD_MESSAGE", "E_PUB_FAILED"),
    *("E_MPUB_FAILED", "E_DPUB_FAILED", "E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"),
    *("E_SUB_FAILED", "E_IDENTIFY_FAILED", "E_AUTH_DISABLED", "E_AUTH_FAILED", "E_AUTH_FIRST"),
    *("E_AUTH_ERROR", "E_UNAUTHORIZED", "E_BAD_PROTOCOL"),
}


def test_only_listed_wire_errors_keep_the_connection_open() -> None:
    """All errors of NSQ exist, and all but those for FIN, REQ and TOUCH close the connection.

    `fatal=False` keeps the connection open: after a refusal by storage a publish may succeed.
    """
    wire = {code: RemoteError(code).fatal for code in ERRORS if code.startswith("E_")}
    assert wire.keys() >= NSQ_CODES
    assert {code for code, fatal in wire.items() if not fatal} == HARMLESS
    assert not RemoteError("E_PUB_FAILED", "PUB failed no space", fatal=False).fatal


def test_frame_text_is_code_space_text() -> None:
    """An error frame contains the code, a space and the text, or the code alone."""
    assert RemoteError("E_INVALID", "invalid command X").frame_text() == (
        b"E_INVALID invalid command X"
    )
    assert RemoteError("E_INVALID", "invalid command ").frame_text() == (
        b"E_INVALID invalid command "
    )
    assert RemoteError("E_BAD_PROTOCOL").frame_text() == b"E_BAD_PROTOCOL"


def test_an_error_frame_can_quote_invalid_utf8() -> None:
    """An error frame can quote bytes that are not UTF-8."""
    text = b"\xff\x00".decode("utf-8", "surrogateescape")

    assert RemoteError("E_INVALID", text).frame_text() == b"E_INVALID \xff\x00"
    assert str(RemoteError("E_INVALID", text)) == "E_INVALID \ufffd\x00"
