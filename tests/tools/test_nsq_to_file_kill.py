"""nsq_to_file killed at random moments: nothing that was finished is lost, nothing is mixed up."""

from __future__ import annotations

import asyncio
import random
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.servers import NsqdServer, spawn_nsqd
from tests.tools.recording import (
    ended,
    files,
    finished,
    is_gzip,
    lines,
    publish,
    start,
    until_finished,
)

TOPIC = "t"
KILLS = 3
BATCH_SIZE = 250
BACKLOG = 1000
KILL_SECONDS = 0.25
"""A kill comes at most so long after the first message that was finished since the start."""

PLAIN = ("--filename-format=<TOPIC>",)
GZIP = ("--gzip", "--filename-format=<TOPIC><REV>", "--rotate-size=50000", "--work-dir={work}")


class Publisher:
    """Publishes until it is stopped; `bodies` are all that it published."""

    def __init__(self, nsqd: NsqdServer) -> None:
        self.bodies: list[bytes] = []
        self._nsqd = nsqd
        self._stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            if len(self.bodies) - finished(self._nsqd, TOPIC) < BACKLOG:
                number = len(self.bodies)
                batch = [b"%07d %s" % (number + at, filling()) for at in range(BATCH_SIZE)]
                self.bodies += batch
                await asyncio.to_thread(publish, self._nsqd, TOPIC, batch)
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Return when nothing more is published."""
        self._stopping = True
        await self._task


def filling() -> bytes:
    """Some bytes, so that messages differ in size."""
    return b"x" * random.randrange(200)


async def kill_at_random(nsqd: NsqdServer, process: BaseProcess) -> None:
    """Once it has finished something, and a random while later."""
    await until_finished(nsqd, TOPIC, finished(nsqd, TOPIC) + 1)
    await asyncio.sleep(random.uniform(0, KILL_SECONDS))
    process.kill()
    process.join()


@pytest.mark.parametrize("kind", [PLAIN, GZIP], ids=["plain", "gzip"])
async def test_kill_9_loses_nothing_that_was_finished(
    tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """Every message is finished at the end, by one of its lives; all are in the files, whole."""
    out, work = tmp_path / "out", tmp_path / "work"
    with spawn_nsqd(tmp_path) as nsqd:
        flags = [f"--nsqd-tcp-address={nsqd.tcp}", f"--topic={TOPIC}", "--sync-interval=100ms"]
        flags += [f"--output-dir={out}", "--consumer-opt=msg_timeout,1s"]
        flags += [flag.format(work=work) for flag in kind]
        publisher = Publisher(nsqd)
        for _ in range(KILLS):
            await kill_at_random(nsqd, start(*flags))
        process = start(*flags)
        await publisher.stop()
        bodies = publisher.bodies
        await until_finished(nsqd, TOPIC, len(bodies))
        process.terminate()
        assert 0 == ended(process)
        channel = nsqd.channel(TOPIC, "nsq_to_file")

    assert (0, 0) == (channel["depth"], channel["in_flight_count"])
    found = set(lines(out))
    assert [] == [body for body in bodies if body not in found]
    torn = found.difference(bodies)
    assert all(any(body.startswith(line) for body in bodies) for line in torn)
    assert len(torn) <= KILLS
    assert {} == files(work)
    assert all(is_gzip(path) for path in out.glob("*.gz"))
