"""Every malformed V2 command gets the exact bytes of its error, and ends the connection or not.

The errors are those of docs/protocol.md, "V2: clients and nsqd". A row has the bytes that a client
sends after its magic, and the answers before the error. The connection then either ends, or stays
open and answers a probe. `test_auth.py` tests the errors of authorization.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.scenarios.protocol.test_wire import ID, OK, error, i32, response
from tests.support.certificates import Certificates
from tests.support.servers import Server, spawn_nsqd
from tests.support.v2_client import MAGIC, V2Client

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


class Row(NamedTuple):
    """Bytes to send, and the expected answers.

    Attributes:
        said: the bytes.
        text: the error's text; empty: no error.
        state: the connection's state when they are sent.
        cut: whether the client shuts down its sending side after them.
        stays: whether the connection stays open.
        answer: the answers before the error or instead of it.
    """

    said: bytes
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
    Row(b"\n", "E_INVALID invalid command "),
    Row(b"\r\n", "E_INVALID invalid command "),
    Row(b" PUB\n", "E_INVALID invalid command "),
    Row(b"BOGUS a b\n", "E_INVALID invalid command BOGUS"),
    Row(b"pub malformed\n", "E_INVALID invalid command pub"),
    Row(b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
    Row(b"PING\n", "E_INVALID invalid command PING"),
    Row(b"NOP\r\n", "", stays=True),
    Row(b"NOP and more words\n", "", stays=True),
    Row(b"NOP " + b"x" * (16_384 - 5) + b"\n", "", stays=True),
]
BODIES = [
    row
    for name in ("IDENTIFY", "AUTH")
    for word in [name.encode()]
    for row in [
        Row(word + b"\n", f"E_BAD_BODY {name} failed to read body size", cut=True),
        Row(word + b"\n\0\0", f"E_BAD_BODY {name} failed to read body size", cut=True),
        Row(word + b"\n" + i32(0), f"E_BAD_BODY {name} invalid body size 0"),
        Row(word + b"\n" + i32(-1), f"E_BAD_BODY {name} invalid body size -1"),
        Row(
            word + b"\n" + i32(5242881),
            f"E_BAD_BODY {name} body too big 5242881 > 5242880",
        ),
        Row(word + b"\n" + i32(9) + b"{", f"E_BAD_BODY {name} failed to read body", cut=True),
    ]
]
AUTH = [
    Row(b"AUTH key\n", "E_INVALID AUTH invalid number of parameters"),
    Row(b"AUTH \n", "E_INVALID AUTH invalid number of parameters"),
    Row(sized(b"AUTH", b"key"), "E_AUTH_DISABLED AUTH disabled"),
    Row(sized(b"AUTH\r", b"key"), "E_AUTH_DISABLED AUTH disabled"),
]
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"
IDENTIFY = [
    *(Row(identify(body), UNDECODABLE) for body in (b"{", b"[]", b'"x"', b"1", b"{} x", b"NaN")),
    *(
        Row(identify(b'{"%b":%b}' % (key, value)), UNDECODABLE)
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
        Row(
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
    Row(  # of several invalid values, the first in NSQ's order is reported
        identify(b'{"msg_timeout":1,"output_buffer_size":1,"output_buffer_timeout":1}'),
        "E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid",
    ),
    Row(
        identify(b'{"feature_negotiation":true,"snappy":true,"deflate":true}'),
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
    ),
    Row(
        identify(b'{"heartbeat_interval":-1}') + SUB,
        "E_INVALID cannot SUB with heartbeats disabled",
        answer=OK,
    ),
    Row(identify(b"{}") * 2, "", stays=True, answer=OK * 2),
    Row(identify(b'{"unknown":[1],"short_id":2,"client_id":null}'), "", stays=True, answer=OK),
]
CANNOT = {
    "init": ("RDY", "FIN", "REQ", "TOUCH", "CLS"),
    "subscribed": ("IDENTIFY", "AUTH", "SUB", "ATTACH"),
    "closing": ("IDENTIFY", "AUTH", "SUB", "CLS", "ATTACH"),
}
STATES = [
    Row(f"{name}{more}\n".encode(), f"E_INVALID cannot {name} in current state", state)
    for state, names in CANNOT.items()
    for name in names
    for more in ("", " x")
]
NAMES = [
    Row(said, quoted(command, kind, name))
    for name in ("w$re", "", "t" * 65, "a#b", "#ephemeral", "t" * 55 + "#ephemeral")
    for word in [name.encode()]
    for command, kind, said in (
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
    Row(b'PUB a"b\\\n', 'E_BAD_TOPIC PUB topic name "a\\"b\\\\" is not valid'),
    Row(b"PUB a\tb\xff\n", 'E_BAD_TOPIC PUB topic name "a\\tb\\xff" is not valid'),
]
TOO_FEW = [
    Row(said, f"E_INVALID {said.split()[0].decode()} insufficient number of {noun}", state)
    for said, noun, state in (
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
    Row(b"RDY x\n", "E_INVALID RDY could not parse count x", "subscribed"),
    Row(b"RDY -1\n", "E_INVALID RDY could not parse count -1", "subscribed"),
    Row(b"RDY 1.5\n", "E_INVALID RDY could not parse count 1.5", "subscribed"),
    Row(b"RDY +1\n", "E_INVALID RDY could not parse count +1", "subscribed"),
    Row(b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500", "subscribed"),
    Row(
        b"RDY 9223372036854775808\n",
        "E_INVALID RDY count -9223372036854775808 out of range 0-2500",
        "subscribed",
    ),
    Row(b"RDY 2500\nRDY 0\nRDY \nRDY 0 x\n", "", "subscribed", stays=True),
    Row(b"RDY x\n", "", "closing", stays=True),
    Row(b"REQ " + ID + b" x\n", "E_INVALID REQ could not parse timeout x", "subscribed"),
    Row(b"REQ " + ID + b" -5\n", "E_INVALID REQ could not parse timeout -5", "subscribed"),
    Row(b"DPUB malformed x\n", "E_INVALID DPUB could not parse timeout x"),
    Row(b"DPUB malformed -1\n", "E_INVALID DPUB could not parse timeout -1"),
    Row(b"DPUB malformed 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    Row(b"DPUB malformed \n" + i32(1) + b"x", "", stays=True, answer=OK),
    Row(b"DPUB malformed 3600000\n" + i32(1) + b"x", "", stays=True, answer=OK),
    Row(b"ENDS malformed soon\n", "E_INVALID ENDS could not parse kind soon"),
    Row(b"ENDS malformed time x\n", "E_INVALID ENDS could not parse time x"),
    Row(b"ENDS malformed after x 1\n", "E_INVALID ENDS could not parse index x"),
    Row(b"ENDS malformed after 1 -1\n", "E_INVALID ENDS could not parse count -1"),
    Row(b"READ malformed " + HEX + b" x 1 9\n", "E_INVALID READ could not parse first x"),
    Row(b"READ malformed " + HEX + b" 0 x 9\n", "E_INVALID READ could not parse end x"),
    Row(b"READ malformed " + HEX + b" 0 1 \n", "E_INVALID READ could not parse max bytes "),
    Row(b"COMMIT malformed ch x 1\n", "E_INVALID COMMIT could not parse epoch x"),
    Row(b"COMMIT malformed ch 1 x\n", "E_INVALID COMMIT could not parse index x"),
]
IDS = [
    Row(b"%b %b%b\n" % (command, word, more), "E_INVALID invalid message ID", state)
    for command, more in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b""))
    for word in (b"", b"abc", ID + b"0")
    for state in ("subscribed", "closing")
] + [
    Row(
        b"%b %b%b\n" % (command, word, more),
        f"E_{name}_FAILED {name} {word.decode()} failed ID not in flight",
        state,
        stays=True,
    )
    for command, more in ((b"FIN", b""), (b"REQ", b" 0"), (b"REQ", b" "), (b"TOUCH", b""))
    for name in [command.decode()]
    for word in (ID, b"ABCDEF0123456789", b"0123456789abcdeg")
    for state in ("subscribed", "closing")
]
MESSAGES = [
    row
    for name, more in (("PUB", ""), ("DPUB", " 1"))
    for line in [f"{name} malformed{more}\n".encode()]
    for row in [
        Row(line, f"E_BAD_MESSAGE {name} failed to read message body size", cut=True),
        Row(line + b"\0", f"E_BAD_MESSAGE {name} failed to read message body size", cut=True),
        Row(line + i32(0), f"E_BAD_MESSAGE {name} invalid message body size 0"),
        Row(line + i32(-1), f"E_BAD_MESSAGE {name} invalid message body size -1"),
        Row(line + i32(-GIB * 2), f"E_BAD_MESSAGE {name} invalid message body size {-GIB * 2}"),
        Row(line + i32(1048577), f"E_BAD_MESSAGE {name} message too big 1048577 > 1048576"),
        Row(line + i32(2) + b"x", f"E_BAD_MESSAGE {name} failed to read message body", cut=True),
    ]
]
MULTIPLE = [
    Row(b"MPUB malformed\n", "E_BAD_BODY MPUB failed to read body size", cut=True),
    Row(mpub(size=0), "E_BAD_BODY MPUB invalid body size 0"),
    Row(mpub(size=-1), "E_BAD_BODY MPUB invalid body size -1"),
    Row(mpub(size=5242881), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
    Row(mpub(size=9), "E_BAD_BODY MPUB failed to read message count", cut=True),
    Row(mpub(i32(0)), "E_BAD_BODY MPUB invalid message count 0"),
    Row(mpub(i32(-1)), "E_BAD_BODY MPUB invalid message count -1"),
    Row(mpub(i32(1048576)), "E_BAD_BODY MPUB invalid message count 1048576"),
    Row(mpub(i32(1), size=9), "E_BAD_MESSAGE MPUB failed to read message(0) body size", cut=True),
    Row(
        mpub(i32(2), i32(1), b"x", i32(0)),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    Row(mpub(i32(1), i32(-7)), "E_BAD_MESSAGE MPUB invalid message(0) body size -7"),
    Row(
        mpub(i32(1), i32(1048577), size=2000000),
        "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
    ),
    Row(mpub(i32(1), i32(2), b"x"), "E_BAD_MESSAGE MPUB failed to read message body", cut=True),
    # The declared size is only checked against the limits.
    Row(mpub(i32(1), i32(1), b"x", size=5242880), "", stays=True, answer=OK),
]
RANGES = [
    Row(b"ENDS nowhere\n", "E_RANGE_FAILED ENDS failed topic nowhere not found", stays=True),
    Row(
        b"READ nowhere " + HEX + b" 0 1 9\n",
        "E_RANGE_FAILED READ failed topic nowhere not found",
        stays=True,
    ),
    Row(
        b"COMMIT nowhere ch 1 1\n",
        "E_COMMIT_FAILED COMMIT failed channel nowhere:ch not found",
        stays=True,
    ),
]
TABLE = [
    *(LINES + BODIES + AUTH + IDENTIFY + STATES + NAMES),
    *(TOO_FEW + NUMBERS + IDS + MESSAGES + MULTIPLE + RANGES),
]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqd for all rows."""
    with spawn_nsqd(tmp_path_factory.mktemp("malformed")) as server:
        yield server


def check(wire: V2Client, row: Row) -> None:
    """Send the row's bytes, and compare every byte of the answers."""
    before, answered = BEFORE[row.state]
    expected = answered + row.answer + (error(row.text) if row.text else b"")
    wire.send(MAGIC + before + row.said)
    if row.cut:
        wire.socket.shutdown(socket.SHUT_WR)
    else:
        wire.send(PROBE)
    if not row.stays:
        assert expected == wire.rest()
        return
    assert expected + OK == wire.receive(len(expected) + len(OK))
    wire.send(PROBE)
    assert OK == wire.receive(len(OK))


@pytest.mark.behaviour("TestBadFin", "more.empty-parameters", "more.non-digit-rdy")
@pytest.mark.behaviour("TestClientHeartbeatDisableSUB")
@pytest.mark.parametrize(
    "row", TABLE, ids=[f"{row.state} {row.said[:40]!r}{' cut' * row.cut}" for row in TABLE]
)
def test_it_is_answered_to_the_byte(nsqd: Server, row: Row) -> None:
    """The answers are exact; after them the connection ends or answers another command."""
    with V2Client(nsqd, b"") as wire:
        check(wire, row)


@pytest.mark.behaviour("more.line-too-long")
@pytest.mark.parametrize("line", [b"NOP " + b"x" * 16_380 + b"\n", b"P" * 16_384])
def test_a_line_over_16_kib(nsqd: Server, line: bytes) -> None:
    """A line over 16 KiB ends the connection without an error frame."""
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + PROBE)
        assert OK == wire.receive(len(OK))
        wire.send(line)
        # If nsqd does not read all of the line, the kernel resets the connection.
        with contextlib.suppress(ConnectionResetError):
            assert b"" == wire.rest()


@pytest.mark.parametrize("magic", [b"  V3", b"GET ", b"  v2", b"\0\0\0\0"])
def test_another_magic(nsqd: Server, magic: bytes) -> None:
    """An unknown magic gets a framed E_BAD_PROTOCOL without a text, and the connection ends."""
    with V2Client(nsqd, b"") as wire:
        wire.send(magic + b"NOP\n")
        assert error("E_BAD_PROTOCOL") == wire.rest()


def test_a_magic_cut_short(nsqd: Server) -> None:
    """A magic of fewer than four bytes ends the connection without an answer."""
    with V2Client(nsqd, b"") as wire:
        wire.send(b"  V")
        wire.socket.shutdown(socket.SHUT_WR)
        assert b"" == wire.rest()


def test_a_message_of_another_client(nsqd: Server) -> None:
    """FIN, REQ and TOUCH of another connection's message get errors that are not fatal."""
    with V2Client(nsqd, b"") as owner, V2Client(nsqd, b"") as other:
        owner.send(MAGIC + b"SUB owned ch\nPUB owned\n" + i32(1) + b"xRDY 1\n")
        assert OK + OK == owner.receive(2 * len(OK))
        message_id = owner.receive(35)[18:34]
        other.send(MAGIC + b"SUB owned ch\n")
        assert OK == other.receive(len(OK))
        for name, more in (("FIN", b""), ("REQ", b" 0"), ("TOUCH", b"")):
            other.send(name.encode() + b" " + message_id + more + b"\n")
            text = (
                f"E_{name}_FAILED {name} {message_id.decode()} failed client does not own message"
            )
            assert error(text) == other.receive(len(error(text)))
        owner.send(b"FIN " + message_id + b"\n" + CLS)
        assert response(b"CLOSE_WAIT") == owner.receive(18)


NEEDS_TLS = [
    Row(
        said + b"\n",
        f"E_INVALID cannot {said.split(b' ')[0].decode()} in current state (TLS required)",
    )
    for said in (
        *(b"AUTH", b"SUB t c", b"SUB", b"PUB t", b"MPUB t", b"DPUB t 1", b"RDY 1", b"FIN x"),
        *(b"REQ x 1", b"TOUCH x", b"CLS", b"NOP", b"ATTACH t c", b"ENDS t", b"READ t", b"COMMIT"),
        *(b"BOGUS a", b""),
    )
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An nsqd that requires TLS."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    files = Certificates.make(folder).options()
    flags = [f"--{name.replace('_', '-')}={path}" for name, path in files.items()]
    https = "--https-address=127.0.0.1:0"
    with spawn_nsqd(folder, *flags, https, "--tls-required=tcp-https") as server:
        yield server


@pytest.mark.behaviour("TestTLSRequired")
@pytest.mark.parametrize("row", NEEDS_TLS, ids=[repr(row.said) for row in NEEDS_TLS])
def test_without_tls_only_identify(guarded: Server, row: Row) -> None:
    """If TLS is required, every command except IDENTIFY gets E_INVALID before it is parsed."""
    with V2Client(guarded, b"") as wire:
        check(wire, row)
