"""Counts what a request and a publish pass in nsqd, from the bytes received to the answer.

Only the event loop's thread counts: a sync may run in it, or in a thread.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import sparq
from sparq.protocol.commands import pub
from tests.nsqd.daemon import Daemon, connected

SPARQ = f"{Path(sparq.__file__).parent}/"
ROUNDS = 5
PAUSE_CALLS_MAX, PAUSE_FILES_MAX = 80, 15
PUB_CALLS_MAX, PUB_FILES_MAX = 90, 17


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
    """`POST /channel/pause` is answered once its record in the ledger is synced."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    # Of several rounds the shortest: a tick of the broker's timer may come in between.
    found = [
        await calls_of(lambda: nsqd.post("/channel/pause?topic=t&channel=c")) for _ in range(ROUNDS)
    ]
    calls, files = min(found)
    assert calls <= PAUSE_CALLS_MAX
    assert len(files) <= PAUSE_FILES_MAX, files


async def test_a_publish_passes_few_files_and_calls(nsqd: Daemon) -> None:
    """PUB is answered once its message is stored."""
    async with connected(nsqd) as client:
        found = [await calls_of(lambda: client.ask(pub("t", b"x"))) for _ in range(ROUNDS)]
    calls, files = min(found)
    assert calls <= PUB_CALLS_MAX
    assert len(files) <= PUB_FILES_MAX, files
