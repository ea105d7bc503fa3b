"""Malformed V2 commands of each kind, the exact bytes of their answers, and the connection's end.

The errors are those of docs/protocol.md, "V2: clients and nsqd"; numbers are nsqd's defaults. A
case has the bytes that a client sends after its magic, and the answers before the error. The
connection then either ends, or stays open. tests/protocol/test_parser.py has every error.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
ID = b"0123456789abcdef"


def i32(number: int) -> bytes:
    """A big-endian i32."""
    return struct.pack(">i", number)


def error(text: str) -> bytes:
    """An error frame."""
    data = text.encode()
    return i32(4 + len(data)) + i32(1) + data


def response(data: bytes) -> bytes:
    """A response frame."""
    return i32(4 + len(data)) + i32(0) + data


SUB = b"SUB malformed ch\n"
CLS = b"CLS\n"
PROBE = b"PUB malformed\n" + i32(1) + b"x"
BEFORE = {
    "init": (b"", b""),
    "subscribed": (SUB, OK),
    "closing": (SUB + CLS, OK + response(b"CLOSE_WAIT")),
}
HEX = b"00" * 16


class Case(NamedTuple):
    """Bytes to send, and the expected answers.

    Attributes:
        sent: the bytes.
        text: the error's text; empty: no error.
        state: the connection's state when they are sent.
        cut: whether the client shuts down its sending side after them.
        stays: whether the connection stays open.
        answer: the answers before the error or instead of it.
    """

    sent: bytes
    text: str
    state: str = "init"
    cut: bool = False
    stays: bool = False
    answer: bytes = b""


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + i32(len(body)) + body


def mpub(*parts: bytes, size: int | None = None) -> bytes:
    body = b"".join(parts)
    return b"MPUB malformed\n" + i32(len(body) if size is None else size) + body


CASES = [
    Case(b"\r\n", "E_INVALID invalid command "),
    Case(b"BOGUS a b\n", "E_INVALID invalid command BOGUS"),
    Case(b"NOP " + b"x" * (16_384 - 5) + b"\n", "", stays=True),
    Case(b"IDENTIFY\n\0\0", "E_BAD_BODY IDENTIFY failed to read body size", cut=True),
    Case(b"IDENTIFY\n" + i32(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
    Case(b"AUTH\n" + i32(5242881), "E_BAD_BODY AUTH body too big 5242881 > 5242880"),
    Case(b"AUTH\n" + i32(3) + b"key", "E_AUTH_DISABLED AUTH disabled"),
    Case(identify(b"{x}"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
    Case(identify(b'{"msg_timeout":1}'), "E_BAD_BODY IDENTIFY msg timeout (1) is invalid"),
    Case(
        identify(b'{"feature_negotiation":true,"snappy":true,"deflate":true}'),
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
    ),
    Case(
        identify(b'{"heartbeat_interval":-1}') + SUB,
        "E_INVALID cannot SUB with heartbeats disabled",
        answer=OK,
    ),
    Case(identify(b'{"unknown":[1],"short_id":2,"client_id":null}'), "", stays=True, answer=OK),
    Case(b"FIN " + ID + b"\n", "E_INVALID cannot FIN in current state"),
    Case(SUB, "E_INVALID cannot SUB in current state", "subscribed"),
    Case(b"CLS\n", "E_INVALID cannot CLS in current state", "closing"),
    Case(b"SUB w$re ch\n", 'E_BAD_TOPIC SUB topic name "w$re" is not valid'),
    Case(b"SUB malformed a#b\n", 'E_BAD_CHANNEL SUB channel name "a#b" is not valid'),
    Case(b"MPUB c$\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "c$" is not valid'),
    Case(b"PUB a\tb\xff\n", 'E_BAD_TOPIC PUB topic name "a\\tb\\xff" is not valid'),
    Case(b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    Case(b"FIN\n", "E_INVALID FIN insufficient number of params", "closing"),
    Case(b"RDY x\n", "E_INVALID RDY could not parse count x", "subscribed"),
    Case(b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500", "subscribed"),
    Case(b"RDY x\n", "", "closing", stays=True),
    Case(b"DPUB malformed 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    Case(b"READ malformed " + HEX + b" x 1 9\n", "E_INVALID READ could not parse first x"),
    *(
        case
        for command, more in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b""))
        for name in [command.decode()]
        for state in ("subscribed", "closing")
        for case in (
            Case(command + b" abc" + more + b"\n", "E_INVALID invalid message ID", state),
            Case(
                b"%b %b%b\n" % (command, ID, more),
                f"E_{name}_FAILED {name} {ID.decode()} failed ID not in flight",
                state,
                stays=True,
            ),
        )
    ),
    Case(b"PUB malformed\n" + i32(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    Case(
        b"PUB malformed\n" + i32(2) + b"x",
        "E_BAD_MESSAGE PUB failed to read message body",
        cut=True,
    ),
    Case(mpub(size=9), "E_BAD_BODY MPUB failed to read message count", cut=True),
    Case(mpub(i32(1048576)), "E_BAD_BODY MPUB invalid message count 1048576"),
    Case(
        mpub(i32(2), i32(1), b"x", i32(0)),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    # The declared size is only checked against the limits.
    Case(mpub(i32(1), i32(1), b"x", size=5242880), "", stays=True, answer=OK),
    Case(b"ENDS nowhere\n", "E_RANGE_FAILED ENDS failed topic nowhere not found", stays=True),
    Case(
        b"COMMIT nowhere ch 1 1\n",
        "E_COMMIT_FAILED COMMIT failed channel nowhere:ch not found",
        stays=True,
    ),
]
NEEDS_TLS = [
    Case(
        sent + b"\n",
        f"E_INVALID cannot {sent.split(b' ')[0].decode()} in current state (TLS required)",
    )
    for sent in (b"AUTH", b"SUB t c", b"PUB t", b"FIN x", b"NOP", b"READ t", b"BOGUS a", b"")
]
