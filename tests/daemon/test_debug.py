"""The debug routes: their contents and their limits."""

import asyncio
import re
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import cast

import pytest

from sparq.daemon import debug
from sparq.daemon.address import listen
from sparq.daemon.debug import Debug, LoopWatch
from sparq.daemon.http import Call, Site
from tests.support.waiting import let_all_run, until

Answer = tuple[int, str]


class DebugDaemon:
    """A site with only the debug routes."""

    def __init__(self) -> None:
        self.debug = Debug()
        self.site = Site(self.debug.routes(of_nsqd=True))
        self.listener = listen("127.0.0.1:0")

    async def ask(self, method: str, target: str) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body


@pytest.fixture
async def daemon() -> AsyncIterator[DebugDaemon]:
    daemon = DebugDaemon()
    await daemon.site.start(daemon.listener)
    yield daemon
    daemon.debug.stop()
    daemon.listener.close()
    await daemon.site.stop()


def spin(ended: threading.Event) -> None:
    while not ended.is_set():
        sum(range(100))


async def test_a_cpu_profile_has_stacks_with_counts(daemon: DebugDaemon) -> None:
    """A CPU profile has collapsed stacks with counts; a second profile meanwhile is refused."""
    ended = threading.Event()
    worker = threading.Thread(target=spin, args=(ended,), name="busy-one")
    worker.start()
    profile = asyncio.create_task(daemon.ask("GET", "/debug/pprof/profile?seconds=2"))
    await until(lambda: daemon.debug._busy)
    second = await daemon.ask("GET", "/debug/pprof/heap")
    status, text = await profile
    ended.set()
    worker.join()

    assert second[0] == 500
    assert "another profile is in progress" in second[1]
    assert status == 200
    assert all(re.fullmatch(r"\S.* \d+", line) for line in text.splitlines())
    assert re.search(r"^busy-one;.*tests\.daemon\.test_debug:spin:\d+.* \d+$", text, re.M)
    assert (await daemon.ask("GET", "/debug/pprof/heap"))[0] == 200


def test_seconds_are_bounded() -> None:
    """An invalid `seconds` means 0, a large one PROFILE_SECONDS_MAX; a stop ends a profile."""

    class Asked:
        def __init__(self, seconds: str) -> None:
            self.query = {"seconds": seconds}

    texts = ("", "x", "-5", "0", "1.5", "999999999", "1e9", "nan")
    assert [debug._seconds(cast(Call, Asked(text))) for text in texts] == [
        0,
        0,
        0,
        0,
        1.5,
        debug.PROFILE_SECONDS_MAX,
        0,
        0,
    ]

    ended = threading.Event()
    ended.set()
    began = time.monotonic()
    debug.sample(100, ended)
    debug.allocations(100, ended)
    assert time.monotonic() - began < 50


async def test_the_heap_shows_objects_and_allocations(daemon: DebugDaemon) -> None:
    """The heap profile counts objects by type; with `seconds`, new allocations by line."""

    class Peculiar:
        """A type that exists only in this test."""

    kept = [Peculiar() for _ in range(20_000)]
    text = (await daemon.ask("GET", "/debug/pprof/heap"))[1]
    assert re.match(r"\d+ allocated blocks\n", text)
    assert re.search(rf"^{len(kept)} tests\.daemon\.test_debug\..*Peculiar$", text, re.M)

    profile = asyncio.create_task(daemon.ask("GET", "/debug/pprof/heap?seconds=1"))
    await until(tracemalloc.is_tracing)
    held = bytearray(30_000_000)
    status, text = await profile
    assert status == 200
    assert re.match(rf"3\d{{7}} \d+ {re.escape(__file__)}:\d+\n", text)
    assert len(held) == 30_000_000
    assert not tracemalloc.is_tracing()


async def test_tasks_and_threads_are_shown(daemon: DebugDaemon) -> None:
    """Each task is shown with the line at which it waits, each thread with its stack."""

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waits_for_ever(), name="the-waiting-one")
    await let_all_run()
    status, text = await daemon.ask("GET", "/debug/pprof/goroutine?debug=2")
    task.cancel()

    assert status == 200
    assert re.search(r"task the-waiting-one:\n    tests\.daemon\S*waits_for_ever:\d+\n", text)
    assert re.search(r"thread MainThread:\n    \S+:\d+\n", text)


async def test_blocked_loops_are_recorded(daemon: DebugDaemon) -> None:
    """setblockrate starts recording blocked loops, 0 stops it; a wrong rate gets Go's error."""
    assert await daemon.ask("GET", "/debug/pprof/block") == (200, "")
    assert await daemon.ask("PUT", "/debug/setblockrate?rate=20000000") == (200, "")
    watch = daemon.debug._watch
    assert isinstance(watch, LoopWatch)
    deadline = time.monotonic() + 30
    while not watch.stacks and time.monotonic() < deadline:
        block_the_loop()
        await let_all_run(1)
    text = (await daemon.ask("GET", "/debug/pprof/block"))[1]
    assert re.search(r"test_debug:block_the_loop:\d+ \d+$", text, re.M)

    refused = await daemon.ask("PUT", "/debug/setblockrate?rate=x")
    assert refused == (
        400,
        'invalid block rate : strconv.Atoi: parsing "x": invalid syntax',
    )
    assert (await daemon.ask("PUT", "/debug/setblockrate"))[0] == 400
    assert await daemon.ask("PUT", "/debug/setblockrate?rate=0") == (200, "")
    assert await daemon.ask("GET", "/debug/pprof/block") == (200, "")


def block_the_loop() -> None:
    """Block the event loop for 0.2 s."""
    time.sleep(0.2)


async def test_the_index_lists_the_paths(daemon: DebugDaemon) -> None:
    """The index lists the paths; `/debug/pprof` redirects to it; a wrong method is 405."""
    assert (await daemon.ask("GET", "/debug/pprof/"))[1].split("\n")[0] == "/debug/pprof/profile"
    assert (await daemon.ask("GET", "/debug/pprof"))[0] == 301
    assert (await daemon.ask("PUT", "/debug/freememory"))[0] == 405
