"""Valid commands on a real socket, byte by byte: answers, redeliveries and IDENTIFY."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol import SPARQ_VERSION
from tests.scenarios.protocol.malformed_commands import OK, i32, response
from tests.support.servers import Server, spawn_nsqd
from tests.support.v2_client import MAGIC, V2Client


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqd for all tests."""
    folder: Path = tmp_path_factory.mktemp("wire")
    with spawn_nsqd(folder) as server:
        yield server


def test_commands_may_arrive_byte_by_byte(nsqd: Server) -> None:
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


def test_identify_answers_with_the_settings(nsqd: Server) -> None:
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
    assert answer["sparq_version"] == SPARQ_VERSION
