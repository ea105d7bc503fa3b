"""Malformed and valid commands on a real socket: exact answers, and whether the connection ends.

The cases follow docs/protocol.md, "Commands", line by line. Numbers are nsqd's defaults.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.program.stdout import sparq_version
from tests.support.servers import Server, spawn_nsqd
from tests.support.v2_client import MAGIC, V2Client

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
ID = b"0123456789abcdef"
LONG = b"t" * 65


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


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqd for all cases."""
    folder: Path = tmp_path_factory.mktemp("wire")
    with spawn_nsqd(folder) as server:
        yield server


SUB = b"SUB wire ch\n"
FATAL = [
    # magic, lines and unknown commands
    ("empty line", b"\n", "E_INVALID invalid command "),
    ("unknown", b"BOGUS a b\n", "E_INVALID invalid command BOGUS"),
    ("lower case", b"pub t\n", "E_INVALID invalid command pub"),
    ("carriage return", b"BOGUS\r\n", "E_INVALID invalid command BOGUS"),
    # IDENTIFY
    ("IDENTIFY size 0", b"IDENTIFY\n" + i32(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
    ("IDENTIFY size -1", b"IDENTIFY\n" + i32(-1), "E_BAD_BODY IDENTIFY invalid body size -1"),
    (
        "IDENTIFY too big",
        b"IDENTIFY\n" + i32(5242881),
        "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880",
    ),
    (
        "IDENTIFY no JSON",
        b"IDENTIFY\n" + i32(3) + b"{x}",
        "E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    (
        "IDENTIFY wrong type",
        b"IDENTIFY\n" + i32(26) + b'{"heartbeat_interval":"x"}',
        "E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    (
        "IDENTIFY heartbeat",
        b"IDENTIFY\n" + i32(26) + b'{"heartbeat_interval":999}',
        "E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid",
    ),
    (
        "IDENTIFY buffer timeout",
        b"IDENTIFY\n" + i32(28) + b'{"output_buffer_timeout":24}',
        "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid",
    ),
    (
        "IDENTIFY buffer size",
        b"IDENTIFY\n" + i32(25) + b'{"output_buffer_size":63}',
        "E_BAD_BODY IDENTIFY output buffer size (63) is invalid",
    ),
    (
        "IDENTIFY sample rate",
        b"IDENTIFY\n" + i32(19) + b'{"sample_rate":100}',
        "E_BAD_BODY IDENTIFY sample rate (100) is invalid",
    ),
    (
        "IDENTIFY msg timeout",
        b"IDENTIFY\n" + i32(19) + b'{"msg_timeout":999}',
        "E_BAD_BODY IDENTIFY msg timeout (999) is invalid",
    ),
    ("IDENTIFY after SUB", SUB + b"IDENTIFY\n", "E_INVALID cannot IDENTIFY in current state"),
    # SUB
    ("SUB one word", b"SUB wire\n", "E_INVALID SUB insufficient number of parameters"),
    ("SUB topic", b"SUB w$re ch\n", 'E_BAD_TOPIC SUB topic name "w$re" is not valid'),
    ("SUB empty topic", b"SUB  ch\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    ("SUB channel", b"SUB wire c$\n", 'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
    (
        "SUB long",
        b"SUB " + b"t" * 65 + b" ch\n",
        f'E_BAD_TOPIC SUB topic name "{"t" * 65}" is not valid',
    ),
    ("SUB twice", SUB + SUB, "E_INVALID cannot SUB in current state"),
    (
        "SUB without heartbeats",
        b"IDENTIFY\n" + i32(25) + b'{"heartbeat_interval":-1}' + SUB,
        "E_INVALID cannot SUB with heartbeats disabled",
    ),
    (
        "SUB without heartbeats and parameters",
        b"IDENTIFY\n" + i32(25) + b'{"heartbeat_interval":-1}SUB\n',
        "E_INVALID cannot SUB with heartbeats disabled",
    ),
    # RDY
    ("RDY before SUB", b"RDY 1\n", "E_INVALID cannot RDY in current state"),
    ("RDY text", SUB + b"RDY x\n", "E_INVALID RDY could not parse count x"),
    ("RDY negative", SUB + b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
    ("RDY too many", SUB + b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
    # FIN, REQ, TOUCH, CLS
    ("FIN before SUB", b"FIN " + ID + b"\n", "E_INVALID cannot FIN in current state"),
    ("FIN alone", SUB + b"FIN\n", "E_INVALID FIN insufficient number of params"),
    ("FIN short id", SUB + b"FIN abc\n", "E_INVALID invalid message ID"),
    ("REQ before SUB", b"REQ " + ID + b" 0\n", "E_INVALID cannot REQ in current state"),
    ("REQ one word", SUB + b"REQ " + ID + b"\n", "E_INVALID REQ insufficient number of params"),
    ("REQ short id", SUB + b"REQ abc 0\n", "E_INVALID invalid message ID"),
    ("REQ text", SUB + b"REQ " + ID + b" x\n", "E_INVALID REQ could not parse timeout x"),
    ("REQ negative", SUB + b"REQ " + ID + b" -5\n", "E_INVALID REQ could not parse timeout -5"),
    ("TOUCH before SUB", b"TOUCH " + ID + b"\n", "E_INVALID cannot TOUCH in current state"),
    ("TOUCH alone", SUB + b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    ("TOUCH short id", SUB + b"TOUCH abc\n", "E_INVALID invalid message ID"),
    ("CLS before SUB", b"CLS\n", "E_INVALID cannot CLS in current state"),
    # PUB
    ("PUB alone", b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    ("PUB topic", b"PUB w$re\n", 'E_BAD_TOPIC PUB topic name "w$re" is not valid'),
    ("PUB size 0", b"PUB wire\n" + i32(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
    ("PUB size -1", b"PUB wire\n" + i32(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    (
        "PUB too big",
        b"PUB wire\n" + i32(1048577),
        "E_BAD_MESSAGE PUB message too big 1048577 > 1048576",
    ),
    # DPUB
    ("DPUB one word", b"DPUB wire\n", "E_INVALID DPUB insufficient number of parameters"),
    ("DPUB topic", b"DPUB w$re 1\n", 'E_BAD_TOPIC DPUB topic name "w$re" is not valid'),
    ("DPUB text", b"DPUB wire x\n", "E_INVALID DPUB could not parse timeout x"),
    (
        "DPUB too far",
        b"DPUB wire 3600100\n",
        "E_INVALID DPUB timeout 3600100 out of range 0-3600000",
    ),
    ("DPUB size 0", b"DPUB wire 1\n" + i32(0), "E_BAD_MESSAGE DPUB invalid message body size 0"),
    # MPUB
    ("MPUB alone", b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    ("MPUB topic", b"MPUB w$re\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "w$re" is not valid'),
    ("MPUB size 0", b"MPUB wire\n" + i32(0), "E_BAD_BODY MPUB invalid body size 0"),
    (
        "MPUB too big",
        b"MPUB wire\n" + i32(5242881),
        "E_BAD_BODY MPUB body too big 5242881 > 5242880",
    ),
    (
        "MPUB count 0",
        b"MPUB wire\n" + i32(4) + i32(0),
        "E_BAD_BODY MPUB invalid message count 0",
    ),
    (
        "MPUB count too large",
        b"MPUB wire\n" + i32(100) + i32(1048576),
        "E_BAD_BODY MPUB invalid message count 1048576",
    ),
    (
        "MPUB empty message",
        b"MPUB wire\n" + i32(13) + i32(2) + i32(1) + b"a" + i32(0),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    (
        "MPUB message too big",
        b"MPUB wire\n" + i32(2000000) + i32(1) + i32(1048577),
        "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
    ),
]


@pytest.mark.parametrize(("sent", "text"), [row[1:] for row in FATAL], ids=[r[0] for r in FATAL])
def test_a_fatal_error_is_told_and_ends_the_connection(
    nsqd: Server, sent: bytes, text: str
) -> None:
    """Each malformed command gets its exact error, after the earlier answers, and then EOF."""
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + sent)

        answer = wire.rest()

    before = OK * (sent.count(b"SUB wire ch\n") - (text == "E_INVALID cannot SUB in current state"))
    if sent.startswith(b"IDENTIFY") and b"SUB" in sent:
        before = OK
    assert answer == before + error(text)


NOT_FATAL = [
    ("FIN", b"FIN " + ID + b"\n", f"E_FIN_FAILED FIN {ID.decode()} failed ID not in flight"),
    ("REQ", b"REQ " + ID + b" 0\n", f"E_REQ_FAILED REQ {ID.decode()} failed ID not in flight"),
    (
        "TOUCH",
        b"TOUCH " + ID + b"\n",
        f"E_TOUCH_FAILED TOUCH {ID.decode()} failed ID not in flight",
    ),
    (
        "FIN no hex",
        b"FIN ABCDEFGHIJKLMNOP\n",
        "E_FIN_FAILED FIN ABCDEFGHIJKLMNOP failed ID not in flight",
    ),
]


@pytest.mark.parametrize(
    ("sent", "text"), [row[1:] for row in NOT_FATAL], ids=[r[0] for r in NOT_FATAL]
)
def test_a_harmless_error_leaves_the_connection(nsqd: Server, sent: bytes, text: str) -> None:
    """FIN, REQ and TOUCH of a message not in flight get an error; the connection stays open."""
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + SUB + sent + b"CLS\n")
        expected = OK + error(text) + response(b"CLOSE_WAIT")

        assert wire.receive(len(expected)) == expected


def test_another_magic_is_told_and_closed(nsqd: Server) -> None:
    """An unknown magic gets a framed E_BAD_PROTOCOL, then EOF."""
    with V2Client(nsqd, b"") as wire:
        wire.send(b"  V3")

        assert wire.rest() == error("E_BAD_PROTOCOL")


def test_a_line_that_is_too_long_closes_without_a_word(nsqd: Server) -> None:
    """A command line over 16 KiB ends the connection without an error frame."""
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + b"P" * 17_000)

        # If the rest of the line is still on its way, the kernel resets the connection instead.
        with contextlib.suppress(ConnectionResetError):
            assert wire.rest() == b""


def test_byte_by_byte_is_the_same_as_at_once(nsqd: Server) -> None:
    """Commands sent byte by byte get the same answers as commands sent in one write."""
    talk = MAGIC + b"PUB slow\n" + i32(3) + b"abc" + b"SUB slow ch\nRDY 1\n"
    with V2Client(nsqd, b"") as wire:
        for at in range(len(talk)):
            wire.send(talk[at : at + 1])

        assert wire.receive(20) == OK + OK
        head = wire.receive(34)
        assert struct.unpack(">iiqH", head[:18])[0::3] == (33, 1)
        assert wire.receive(3) == b"abc"
        wire.send(b"FIN " + head[18:34] + b"\nCLS\n")
        assert wire.receive(18) == response(b"CLOSE_WAIT")


def test_requeue_counts_attempts(nsqd: Server) -> None:
    """REQ 0 redelivers a message immediately, with the same id and timestamp, and attempts 2."""
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + b"PUB again\n" + i32(1) + b"x" + b"SUB again ch\nRDY 1\n")
        assert wire.receive(20) == OK + OK
        first = wire.receive(35)
        wire.send(b"REQ " + first[18:34] + b" 0\n")
        second = wire.receive(35)

        assert second[:16] == first[:16]
        assert second[16:18] == b"\x00\x02"
        assert second[18:] == first[18:]
        wire.send(b"FIN " + second[18:34] + b"\n")


def test_identify_negotiates(nsqd: Server) -> None:
    """With feature_negotiation, IDENTIFY's answer is JSON: NSQ's keys first, then sparq's."""
    body = b'{"feature_negotiation":true,"client_id":"a"}'
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + b"IDENTIFY\n" + i32(len(body)) + body)
        size = struct.unpack(">i", wire.receive(4))[0]
        answer = json.loads(wire.receive(size)[4:])

    assert answer["max_rdy_count"] == 2500
    assert answer["version"] == "1.3.0"
    assert answer["msg_timeout"] == 60000
    assert answer["auth_required"] is False
    assert list(answer)[-2:] == ["sparq_version", "sparq_range"]
    assert answer["sparq_version"] == sparq_version()
