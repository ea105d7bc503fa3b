"""Helpers for the checks of flags."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from sparq.nsqd.options import NsqdOptions
from sparq.options.declare import flags_of
from tests.support.flag_rows import FlagServer, Row
from tests.support.v2_client import V2Client

WAIT_SECONDS = 30.0
ERROR = 1


def identify(**asked: Any) -> bytes:
    """Encode an IDENTIFY with feature negotiation."""
    body = json.dumps({"feature_negotiation": True, **asked}).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def granted(server: FlagServer, **asked: Any) -> dict[str, Any]:
    """Return nsqd's answer to IDENTIFY."""
    with V2Client(server) as line:
        kind, answer = line.ask(identify(**asked))
        assert kind == 0, answer
        found: dict[str, Any] = json.loads(answer)
        return found


def refused(server: FlagServer, text: str, *commands: bytes) -> None:
    """Assert that the last of these commands gets this error, and no earlier one gets an error."""
    with V2Client(server) as line:
        for command in commands[:-1]:
            kind, answer = line.ask(command)
            assert kind != ERROR, answer
        assert line.ask(commands[-1]) == (ERROR, text.encode())


def help_says(flag: str, words: str) -> Callable[[FlagServer], None]:
    """Return a check for a flag without an effect: it is accepted, and `--help` says so."""

    def check(server: FlagServer) -> None:
        assert server.request("GET", "/ping")[0] == 200
        texts = {found.name: found.help for found in flags_of(NsqdOptions)}
        assert words in texts[flag]

    return check


def tcp_address(server: FlagServer) -> None:
    """nsqd serves V2 clients on this address."""
    assert granted(server)["version"] == "1.3.0"


def http_address(server: FlagServer) -> None:
    """nsqd serves HTTP on this address."""
    assert server.get_json("/info")["tcp_port"] == server.tcp_port


ADDRESSES = (
    Row("tcp-address", "{tcp}", tcp_address),
    Row("http-address", "{http}", http_address),
)
