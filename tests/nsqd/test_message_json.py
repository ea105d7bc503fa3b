"""JSON answers with messages are built of pieces, large ones in a thread."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sparq.log.inspection import StoredMessage
from sparq.nsqd import inspection, message_json, stats_format
from tests.nsqd.daemon import start, stop
from tests.nsqd.test_inspection import channel, get


async def test_large_answers_are_encoded_in_the_inspection_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large bodies become JSON in the inspection thread: they would block the loop for ms.

    Small ones become JSON in the loop, where they need not wait for the thread.
    """
    nsqd = await start(tmp_path)
    threads: list[tuple[str, int]] = []
    make = message_json.body_of

    def noted(stored: Any) -> dict[str, Any]:
        threads.append((threading.current_thread().name, len(stored.body)))
        return make(stored)

    monkeypatch.setattr(message_json, "body_of", noted)
    await channel(nsqd, b"small")
    (one,) = (await get(nsqd, "/topic/messages", topic="t"))["messages"]
    large = '"grün"\n'.encode() * (inspection.ASIDE_BYTES // 7)
    await nsqd.post("/pub?topic=t", large)
    assert threads == [("MainThread", 5)]
    for path, query in (
        ("/topic/messages", {}),
        ("/topic/search", {}),
        ("/channel/messages", {"channel": "c"}),
        ("/message", {"id": f"{int(one['id'], 16) + 1:016x}"}),
    ):
        threads.clear()
        answer = await get(nsqd, path, topic="t", body_bytes=1 << 20, **query)
        shown = answer.get("messages", [{}, answer])
        assert shown[1]["body"] == large.decode()
        assert ("nsqd-inspect", len(large)) in threads
        assert ("MainThread", len(large)) not in threads
    await stop(nsqd)


async def test_only_bodies_make_large_pieces() -> None:
    """Pieces have less than 200 bytes here, so that the loop can do other work in between."""
    found = [StoredMessage(index, 1, 100, b"x" * 100) for index in range(1000)]
    made = message_json.bodies_of(found)
    messages = [message_json.pieces_of({"index": s.index}, made[s.index], {}) for s in found]
    pieces = list(message_json.document_of({"topic": "t"}, messages, {"next": None}))

    assert max(len(piece) for piece in pieces) < 200
    answer = json.loads(b"".join(await stats_format.encoded(pieces)))
    assert [message["index"] for message in answer["messages"]] == list(range(1000))
    assert {message["body"] for message in answer["messages"]} == {"x" * 100}
