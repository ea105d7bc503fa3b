"""Helpers for tests of range reading."""

from __future__ import annotations

import json
import struct
from typing import Any

from sparq.protocol import batch, commands
from sparq.protocol.layout import FRAME_RANGE
from tests.broker.harness import BrokerHarness, Client

INDEXES = {"first", "end", "committed", "at"}


def ask(client: Client, command: bytes) -> dict[str, Any]:
    """Send a command and return its JSON answer, with its indexes as numbers."""
    client.say(command)
    (answer,) = client.answers()
    found: dict[str, Any] = json.loads(answer)
    return found | {key: int(found[key]) for key in INDEXES & found.keys()}


def attach(harness: BrokerHarness, channel: str = "c") -> tuple[Client, dict[str, Any]]:
    """Connect a range reader and attach it to a channel; returns it, and the answer."""
    reader = harness.connect()
    return reader, ask(reader, commands.attach("t", channel))


def read(client: Client, log: str, first: int, end: int, size: int) -> tuple[int, int, list[bytes]]:
    """Send a READ; returns (next, lost, bodies of the complete batches)."""
    client.say(commands.read("t", log, first, end, size))
    ((kind, data),) = client.take_frames()
    assert kind == FRAME_RANGE, data
    after, lost = struct.unpack_from(">qq", data)
    bodies: list[bytes] = []
    for stored in batch.walk(data[16:]):
        start = 0
        for stop in stored.ends.tolist():
            bodies.append(bytes(stored.frames[start + 34 : stop]))
            start = stop
    return after, lost, bodies
