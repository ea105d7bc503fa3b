"""A malformed V2 command gets the exact bytes of its error, and ends the connection or not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.protocol.malformed_commands import (
    BEFORE,
    CASES,
    CLS,
    NEEDS_TLS,
    OK,
    PROBE,
    Case,
    error,
    i32,
    response,
)
from tests.support.certificates import Certificates
from tests.support.servers import Server, spawn_nsqd
from tests.support.v2_client import MAGIC, V2Client


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqd for all cases."""
    with spawn_nsqd(tmp_path_factory.mktemp("malformed")) as server:
        yield server


def check(wire: V2Client, case: Case, *, alone: bool) -> None:
    """Send the case's bytes, and compare every byte of the answers.

    Args:
        wire: a new connection.
        case: the bytes and the expected answers.
        alone: whether nothing follows the bytes until they are answered; otherwise a PUB follows
            them in the same write, which is executed only if the connection stays open.
    """
    before, answered = BEFORE[case.state]
    expected = answered + case.answer + (error(case.text) if case.text else b"")
    wire.send(MAGIC + before + case.sent + (b"" if alone or case.cut else PROBE))
    if case.cut:
        wire.socket.shutdown(socket.SHUT_WR)
    if not case.stays:
        assert expected == wire.rest()
        return
    expected += b"" if alone else OK
    assert expected == wire.receive(len(expected))
    wire.send(PROBE)
    assert OK == wire.receive(len(OK))
    if case.state == "subscribed":
        wire.send(CLS)
        assert response(b"CLOSE_WAIT") == wire.receive(len(response(b"CLOSE_WAIT")))


WAYS = [(case, alone) for case in CASES for alone in (True, False) if alone or not case.cut]


def name_of(case: Case, alone: bool) -> str:
    end = " cut" if case.cut else "" if alone else " followed"
    return f"{case.state} {case.sent[:40]!r}{end}"


@pytest.mark.behaviour("TestBadFin", "more.empty-parameters", "more.non-digit-rdy")
@pytest.mark.behaviour("TestClientHeartbeatDisableSUB")
@pytest.mark.parametrize(("case", "alone"), WAYS, ids=[name_of(*way) for way in WAYS])
def test_a_malformed_command_gets_its_exact_answer(nsqd: Server, case: Case, alone: bool) -> None:
    """The answers are exact; after them the connection ends or answers another command."""
    with V2Client(nsqd, b"") as wire:
        check(wire, case, alone=alone)


@pytest.mark.behaviour("more.line-too-long")
@pytest.mark.parametrize(
    "line",
    [b"NOP " + b"x" * 16_380 + b"\n", b"P" * 16_384, b"P" * 17_000],
    ids=["NOP", "16384 bytes", "17000 bytes"],
)
def test_a_line_over_16_kib_ends_the_connection(nsqd: Server, line: bytes) -> None:
    """A line over 16 KiB ends the connection without an error frame."""
    with V2Client(nsqd, b"") as wire:
        wire.send(MAGIC + PROBE)
        assert OK == wire.receive(len(OK))
        wire.send(line)
        # If nsqd does not read all of the line, the kernel resets the connection.
        with contextlib.suppress(ConnectionResetError):
            assert b"" == wire.rest()


@pytest.mark.parametrize("magic", [b"  V3", b"GET "])
def test_an_unknown_magic_is_refused(nsqd: Server, magic: bytes) -> None:
    """An unknown magic gets a framed E_BAD_PROTOCOL without a text, and the connection ends."""
    with V2Client(nsqd, b"") as wire:
        wire.send(magic + b"NOP\n")
        assert error("E_BAD_PROTOCOL") == wire.rest()


def test_an_incomplete_magic_gets_no_answer(nsqd: Server) -> None:
    """A magic of fewer than four bytes ends the connection without an answer."""
    with V2Client(nsqd, b"") as wire:
        wire.send(b"  V")
        wire.socket.shutdown(socket.SHUT_WR)
        assert b"" == wire.rest()


def test_another_clients_message_cannot_be_answered(nsqd: Server) -> None:
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
@pytest.mark.parametrize("case", NEEDS_TLS, ids=lambda case: repr(case.sent))
def test_only_identify_is_accepted_without_tls(guarded: Server, case: Case) -> None:
    """If TLS is required, every command except IDENTIFY gets E_INVALID before it is parsed."""
    with V2Client(guarded, b"") as wire:
        check(wire, case, alone=False)
