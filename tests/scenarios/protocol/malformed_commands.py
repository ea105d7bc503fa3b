"""Malformed V2 commands, the exact bytes of their answers, and whether the connection ends.

The errors are those of docs/protocol.md, "V2: clients and nsqd"; numbers are nsqd's defaults. A
case has the bytes that a client sends after its magic, and the answers before the error. The
connection then either ends, or stays open. `test_auth.py` tests the errors of authorization.
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
GIB = 1 << 30
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


def sized(name: bytes, body: bytes) -> bytes:
    return name + b"\n" + i32(len(body)) + body


def identify(body: bytes) -> bytes:
    return sized(b"IDENTIFY", body)


def mpub(*parts: bytes, size: int | None = None) -> bytes:
    body = b"".join(parts)
    return b"MPUB malformed\n" + i32(len(body) if size is None else size) + body


def quoted(command: str, kind: str, name: str) -> str:
    """The error text for an invalid name."""
    twice = "E_BAD_TOPIC " if command == "MPUB" else ""
    return f'E_BAD_{kind.upper()} {twice}{command} {kind} name "{name}" is not valid'


LINES = [
    Case(b"\n", "E_INVALID invalid command "),
    Case(b"\r\n", "E_INVALID invalid command "),
    Case(b" PUB\n", "E_INVALID invalid command "),
    Case(b"BOGUS a b\n", "E_INVALID invalid command BOGUS"),
    Case(b"BOGUS\r\n", "E_INVALID invalid command BOGUS"),
    Case(b"pub t\n", "E_INVALID invalid command pub"),
    Case(b"pub malformed\n", "E_INVALID invalid command pub"),
    Case(b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
    Case(b"PING\n", "E_INVALID invalid command PING"),
    Case(b"NOP\r\n", "", stays=True),
    Case(b"NOP and more words\n", "", stays=True),
    Case(b"NOP " + b"x" * (16_384 - 5) + b"\n", "", stays=True),
]
BODIES = [
    case
    for name in ("IDENTIFY", "AUTH")
    for word in [name.encode()]
    for case in [
        Case(word + b"\n", f"E_BAD_BODY {name} failed to read body size", cut=True),
        Case(word + b"\n\0\0", f"E_BAD_BODY {name} failed to read body size", cut=True),
        Case(word + b"\n" + i32(0), f"E_BAD_BODY {name} invalid body size 0"),
        Case(word + b"\n" + i32(-1), f"E_BAD_BODY {name} invalid body size -1"),
        Case(
            word + b"\n" + i32(5242881),
            f"E_BAD_BODY {name} body too big 5242881 > 5242880",
        ),
        Case(word + b"\n" + i32(9) + b"{", f"E_BAD_BODY {name} failed to read body", cut=True),
    ]
]
AUTH = [
    Case(b"AUTH key\n", "E_INVALID AUTH invalid number of parameters"),
    Case(b"AUTH \n", "E_INVALID AUTH invalid number of parameters"),
    Case(sized(b"AUTH", b"key"), "E_AUTH_DISABLED AUTH disabled"),
    Case(sized(b"AUTH\r", b"key"), "E_AUTH_DISABLED AUTH disabled"),
]
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"
IDENTIFY = [
    *(
        Case(identify(body), UNDECODABLE)
        for body in (b"{", b"{x}", b"[]", b'"x"', b"1", b"{} x", b"NaN")
    ),
    *(
        Case(identify(b'{"%b":%b}' % (key, value)), UNDECODABLE)
        for key, value in (
            (b"heartbeat_interval", b'"x"'),
            (b"heartbeat_interval", b"1000.5"),
            (b"heartbeat_interval", b"9223372036854775808"),
            (b"client_id", b"1"),
            (b"feature_negotiation", b'"true"'),
            (b"tls_v1", b"1"),
            (b"sample_rate", b"2147483648"),
            (b"user_agent", b"[]"),
        )
    ),
    *(
        Case(
            identify(b'{"%b":%d}' % (key.encode(), value)),
            f"E_BAD_BODY IDENTIFY {key.replace('_', ' ')} ({value}) is invalid",
        )
        for key, values in {
            "heartbeat_interval": (-2, 1, 999, 60_001),
            "output_buffer_timeout": (-2, 1, 24, 30_001),
            "output_buffer_size": (-2, 1, 63, 65_537),
            "sample_rate": (-1, 100),
            "msg_timeout": (-1, 1, 999, 900_001),
        }.items()
        for value in values
    ),
    Case(  # of several invalid values, the first in NSQ's order is reported
        identify(b'{"msg_timeout":1,"output_buffer_size":1,"output_buffer_timeout":1}'),
        "E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid",
    ),
    Case(
        identify(b'{"feature_negotiation":true,"snappy":true,"deflate":true}'),
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
    ),
    Case(
        identify(b'{"heartbeat_interval":-1}') + SUB,
        "E_INVALID cannot SUB with heartbeats disabled",
        answer=OK,
    ),
    Case(
        identify(b'{"heartbeat_interval":-1}') + b"SUB\n",
        "E_INVALID cannot SUB with heartbeats disabled",
        answer=OK,
    ),
    Case(identify(b"{}") * 2, "", stays=True, answer=OK * 2),
    Case(identify(b'{"unknown":[1],"short_id":2,"client_id":null}'), "", stays=True, answer=OK),
]
CANNOT = {
    "init": ("RDY", "FIN", "REQ", "TOUCH", "CLS"),
    "subscribed": ("IDENTIFY", "AUTH", "SUB", "ATTACH"),
    "closing": ("IDENTIFY", "AUTH", "SUB", "CLS", "ATTACH"),
}
STATES = [
    Case(f"{name}{more}\n".encode(), f"E_INVALID cannot {name} in current state", state)
    for state, names in CANNOT.items()
    for name in names
    for more in ("", " x")
] + [
    Case(SUB, "E_INVALID cannot SUB in current state", "subscribed"),
    Case(b"RDY 1\n", "E_INVALID cannot RDY in current state"),
    Case(b"FIN " + ID + b"\n", "E_INVALID cannot FIN in current state"),
    Case(b"REQ " + ID + b" 0\n", "E_INVALID cannot REQ in current state"),
    Case(b"TOUCH " + ID + b"\n", "E_INVALID cannot TOUCH in current state"),
]
NAMES = [
    Case(sent, quoted(command, kind, name))
    for name in ("w$re", "c$", "", "t" * 65, "a#b", "#ephemeral", "t" * 55 + "#ephemeral")
    for word in [name.encode()]
    for command, kind, sent in (
        ("SUB", "topic", b"SUB %b ch\n" % word),
        ("SUB", "channel", b"SUB malformed %b\n" % word),
        ("PUB", "topic", b"PUB %b\n" % word),
        ("MPUB", "topic", b"MPUB %b\n" % word),
        ("DPUB", "topic", b"DPUB %b 1\n" % word),
        ("ATTACH", "topic", b"ATTACH %b ch\n" % word),
        ("ATTACH", "channel", b"ATTACH malformed %b\n" % word),
        ("ENDS", "topic", b"ENDS %b\n" % word),
        ("READ", "topic", b"READ %b %b 0 1 9\n" % (word, HEX)),
        ("COMMIT", "topic", b"COMMIT %b ch 1 1\n" % word),
        ("COMMIT", "channel", b"COMMIT malformed %b 1 1\n" % word),
    )
] + [
    Case(b'PUB a"b\\\n', 'E_BAD_TOPIC PUB topic name "a\\"b\\\\" is not valid'),
    Case(b"PUB a\tb\xff\n", 'E_BAD_TOPIC PUB topic name "a\\tb\\xff" is not valid'),
]
TOO_FEW = [
    Case(sent, f"E_INVALID {sent.split()[0].decode()} insufficient number of {noun}", state)
    for sent, noun, state in (
        (b"SUB\n", "parameters", "init"),
        (b"SUB malformed\n", "parameters", "init"),
        (b"PUB\n", "parameters", "init"),
        (b"MPUB\n", "parameters", "init"),
        (b"DPUB\n", "parameters", "init"),
        (b"DPUB malformed\n", "parameters", "init"),
        (b"FIN\n", "params", "subscribed"),
        (b"REQ\n", "params", "subscribed"),
        (b"REQ " + ID + b"\n", "params", "subscribed"),
        (b"TOUCH\n", "params", "subscribed"),
        (b"FIN\n", "params", "closing"),
        (b"ATTACH malformed\n", "parameters", "init"),
        (b"ENDS\n", "parameters", "init"),
        (b"ENDS malformed time\n", "parameters", "init"),
        (b"ENDS malformed after 1\n", "parameters", "init"),
        (b"READ malformed\n", "parameters", "init"),
        (b"COMMIT malformed ch 1\n", "parameters", "init"),
    )
]
NUMBERS = [
    Case(b"RDY x\n", "E_INVALID RDY could not parse count x", "subscribed"),
    Case(b"RDY -1\n", "E_INVALID RDY could not parse count -1", "subscribed"),
    Case(b"RDY 1.5\n", "E_INVALID RDY could not parse count 1.5", "subscribed"),
    Case(b"RDY +1\n", "E_INVALID RDY could not parse count +1", "subscribed"),
    Case(b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500", "subscribed"),
    Case(
        b"RDY 9223372036854775808\n",
        "E_INVALID RDY count -9223372036854775808 out of range 0-2500",
        "subscribed",
    ),
    Case(b"RDY 2500\nRDY 0\nRDY \nRDY 0 x\n", "", "subscribed", stays=True),
    Case(b"RDY x\n", "", "closing", stays=True),
    Case(b"REQ " + ID + b" x\n", "E_INVALID REQ could not parse timeout x", "subscribed"),
    Case(b"REQ " + ID + b" -5\n", "E_INVALID REQ could not parse timeout -5", "subscribed"),
    Case(b"DPUB malformed x\n", "E_INVALID DPUB could not parse timeout x"),
    Case(b"DPUB malformed -1\n", "E_INVALID DPUB could not parse timeout -1"),
    Case(b"DPUB malformed 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    Case(b"DPUB malformed 3600100\n", "E_INVALID DPUB timeout 3600100 out of range 0-3600000"),
    Case(b"DPUB malformed \n" + i32(1) + b"x", "", stays=True, answer=OK),
    Case(b"DPUB malformed 3600000\n" + i32(1) + b"x", "", stays=True, answer=OK),
    Case(b"ENDS malformed soon\n", "E_INVALID ENDS could not parse kind soon"),
    Case(b"ENDS malformed time x\n", "E_INVALID ENDS could not parse time x"),
    Case(b"ENDS malformed after x 1\n", "E_INVALID ENDS could not parse index x"),
    Case(b"ENDS malformed after 1 -1\n", "E_INVALID ENDS could not parse count -1"),
    Case(b"READ malformed " + HEX + b" x 1 9\n", "E_INVALID READ could not parse first x"),
    Case(b"READ malformed " + HEX + b" 0 x 9\n", "E_INVALID READ could not parse end x"),
    Case(b"READ malformed " + HEX + b" 0 1 \n", "E_INVALID READ could not parse max bytes "),
    Case(b"COMMIT malformed ch x 1\n", "E_INVALID COMMIT could not parse epoch x"),
    Case(b"COMMIT malformed ch 1 x\n", "E_INVALID COMMIT could not parse index x"),
]
IDS = [
    Case(b"%b %b%b\n" % (command, word, more), "E_INVALID invalid message ID", state)
    for command, more in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b""))
    for word in (b"", b"abc", ID + b"0")
    for state in ("subscribed", "closing")
] + [
    Case(
        b"%b %b%b\n" % (command, word, more),
        f"E_{name}_FAILED {name} {word.decode()} failed ID not in flight",
        state,
        stays=True,
    )
    for command, more in ((b"FIN", b""), (b"REQ", b" 0"), (b"REQ", b" "), (b"TOUCH", b""))
    for name in [command.decode()]
    for word in (ID, b"ABCDEF0123456789", b"0123456789abcdeg", b"ABCDEFGHIJKLMNOP")
    for state in ("subscribed", "closing")
]
MESSAGES = [
    case
    for name, more in (("PUB", ""), ("DPUB", " 1"))
    for line in [f"{name} malformed{more}\n".encode()]
    for case in [
        Case(line, f"E_BAD_MESSAGE {name} failed to read message body size", cut=True),
        Case(line + b"\0", f"E_BAD_MESSAGE {name} failed to read message body size", cut=True),
        Case(line + i32(0), f"E_BAD_MESSAGE {name} invalid message body size 0"),
        Case(line + i32(-1), f"E_BAD_MESSAGE {name} invalid message body size -1"),
        Case(line + i32(-GIB * 2), f"E_BAD_MESSAGE {name} invalid message body size {-GIB * 2}"),
        Case(line + i32(1048577), f"E_BAD_MESSAGE {name} message too big 1048577 > 1048576"),
        Case(line + i32(2) + b"x", f"E_BAD_MESSAGE {name} failed to read message body", cut=True),
    ]
]
MULTIPLE = [
    Case(b"MPUB malformed\n", "E_BAD_BODY MPUB failed to read body size", cut=True),
    Case(mpub(size=0), "E_BAD_BODY MPUB invalid body size 0"),
    Case(mpub(size=-1), "E_BAD_BODY MPUB invalid body size -1"),
    Case(mpub(size=5242881), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
    Case(mpub(size=9), "E_BAD_BODY MPUB failed to read message count", cut=True),
    Case(mpub(i32(0)), "E_BAD_BODY MPUB invalid message count 0"),
    Case(mpub(i32(-1)), "E_BAD_BODY MPUB invalid message count -1"),
    Case(mpub(i32(1048576)), "E_BAD_BODY MPUB invalid message count 1048576"),
    Case(mpub(i32(1048576), size=100), "E_BAD_BODY MPUB invalid message count 1048576"),
    Case(mpub(i32(1), size=9), "E_BAD_MESSAGE MPUB failed to read message(0) body size", cut=True),
    Case(
        mpub(i32(2), i32(1), b"x", i32(0)),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    Case(
        mpub(i32(2), i32(1), b"a", i32(0)),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    Case(mpub(i32(1), i32(-7)), "E_BAD_MESSAGE MPUB invalid message(0) body size -7"),
    Case(
        mpub(i32(1), i32(1048577), size=2000000),
        "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
    ),
    Case(mpub(i32(1), i32(2), b"x"), "E_BAD_MESSAGE MPUB failed to read message body", cut=True),
    # The declared size is only checked against the limits.
    Case(mpub(i32(1), i32(1), b"x", size=5242880), "", stays=True, answer=OK),
]
RANGES = [
    Case(b"ENDS nowhere\n", "E_RANGE_FAILED ENDS failed topic nowhere not found", stays=True),
    Case(
        b"READ nowhere " + HEX + b" 0 1 9\n",
        "E_RANGE_FAILED READ failed topic nowhere not found",
        stays=True,
    ),
    Case(
        b"COMMIT nowhere ch 1 1\n",
        "E_COMMIT_FAILED COMMIT failed channel nowhere:ch not found",
        stays=True,
    ),
]
CASES = [
    *(LINES + BODIES + AUTH + IDENTIFY + STATES + NAMES),
    *(TOO_FEW + NUMBERS + IDS + MESSAGES + MULTIPLE + RANGES),
]
NEEDS_TLS = [
    Case(
        sent + b"\n",
        f"E_INVALID cannot {sent.split(b' ')[0].decode()} in current state (TLS required)",
    )
    for sent in (
        *(b"AUTH", b"SUB t c", b"SUB", b"PUB t", b"MPUB t", b"DPUB t 1", b"RDY 1", b"FIN x"),
        *(b"REQ x 1", b"TOUCH x", b"CLS", b"NOP", b"ATTACH t c", b"ENDS t", b"READ t", b"COMMIT"),
        *(b"BOGUS a", b""),
    )
]
