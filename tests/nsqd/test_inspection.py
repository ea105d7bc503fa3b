"""Messages are shown over HTTP as they stand: a page of a channel, the log, one message, a search."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sparq.protocol.commands import fin, rdy, req, sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.waiting import until


async def get(nsqd: Daemon, path: str, **query: Any) -> dict[str, Any]:
    """A JSON answer, which must be a 200."""
    status, answer = await nsqd.ask("GET", target(path, query))
    assert status == 200, (path, query, status, answer)
    found: dict[str, Any] = json.loads(answer)
    return found


async def post(nsqd: Daemon, path: str, ids: list[str], **query: Any) -> dict[str, Any]:
    """What came of an action on messages."""
    body = json.dumps({"ids": ids}).encode()
    found: dict[str, Any] = json.loads(await nsqd.post(target(path, query), body))
    return found


def target(path: str, query: dict[str, Any]) -> str:
    """A path with its parameters; `from_` stands for `from`."""
    parts = (f"{name.rstrip('_')}={quote(str(value))}" for name, value in query.items())
    return f"{path}?{'&'.join(parts)}"


def bodies(answer: dict[str, Any]) -> list[str]:
    """The bodies of an answer's messages."""
    return [message["body"] for message in answer["messages"]]


async def channel(nsqd: Daemon, *messages: bytes) -> None:
    """A topic t with a channel c, and messages."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    if messages:
        await nsqd.post("/mpub?topic=t", b"\n".join(messages))


async def test_what_waits_is_shown(nsqd: Daemon) -> None:
    """Each message with all that is known of it, in the order of the log."""
    await channel(nsqd, b"one", b"two")

    page = await get(nsqd, "/channel/messages", topic="t", channel="c")

    first = page["messages"][0]
    assert bodies(page) == ["one", "two"]
    assert (page["state"], page["total"], page["next"], page["unreadable"]) == ("waiting", 2, None, 0)
    assert list(first) == [
        *("id", "index", "time", "timestamp", "attempts", "size"),
        *("body", "encoding", "cut", "state"),
    ]
    assert first["index"] == (await nsqd.topic("t"))["first_index"]
    assert (first["attempts"], first["size"], first["state"]) == (0, 3, "waiting")
    found = await get(nsqd, "/message", topic="t", id=first["id"], channel="c")
    assert found == first
