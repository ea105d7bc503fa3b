"""Counts what a request and a publish pass in nsqd, from the bytes received to the answer.

Only the event loop's thread counts: a sync may run in it, or in a thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import sparq
from sparq.protocol.commands import pub
from tests.nsqd.daemon import Daemon, connected
from tests.support.v2_client import OK

SPARQ = f"{Path(sparq.__file__).parent}/"
ROUNDS = 5
PUB_CALLS_MAX, PUB_FILES_MAX = 60, 14
PAUSE_CALLS_MAX, PAUSE_FILES_MAX = 84, 17
PAUSE_AGAIN_CALLS_MAX, PAUSE_AGAIN_FILES_MAX = 42, 9


async def calls_of(act: Callable[[], Awaitable[object]]) -> tuple[int, list[str]]:
    """Return how many calls an action passes, and their files; a coroutine counts once."""
    frames: dict[int, FrameType] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SPARQ):
            frames.setdefault(id(frame), frame)

    sys.setprofile(note)
    try:
        await act()
    finally:
        sys.setprofile(None)
    files = {frame.f_code.co_filename.removeprefix(SPARQ) for frame in frames.values()}
    return len(frames), sorted(files)


async def test_a_pause_passes_few_files_and_calls(nsqd: Daemon) -> None:
    """`POST /channel/pause` on a kept connection, up to its synced record; again; resumed."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.http.port)

    async def post(verb: str) -> None:
        writer.write(f"POST /channel/{verb}?topic=t&channel=c HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")

    await post("unpause")
    # Of several rounds the shortest: a tick of the broker's timer may come in between.
    first, again = [], []
    for _ in range(ROUNDS):
        first.append(await calls_of(lambda: post("pause")))
        again.append(await calls_of(lambda: post("pause")))
        await post("unpause")
    writer.close()
    for found, calls_max, files_max in (
        (first, PAUSE_CALLS_MAX, PAUSE_FILES_MAX),
        (again, PAUSE_AGAIN_CALLS_MAX, PAUSE_AGAIN_FILES_MAX),
    ):
        calls, files = min(found)
        assert calls <= calls_max
        assert len(files) <= files_max, files


async def test_a_publish_passes_few_files_and_calls(nsqd: Daemon) -> None:
    """PUB is answered once its message is stored."""
    command = pub("t", b"x")
    async with connected(nsqd) as client:
        assert OK == await client.ask(command)
        found = [await calls_of(lambda: client.ask(command)) for _ in range(ROUNDS)]
    calls, files = min(found)
    assert calls <= PUB_CALLS_MAX
    assert len(files) <= PUB_FILES_MAX, files
