"""nsq_to_file killed at random moments: nothing that was finished is lost, nothing is mixed up."""

from __future__ import annotations

import asyncio
import random
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.servers import NsqdServer, spawn_nsqd
from tests.tools.recording import finished, forked, is_gzip, lines, publish, until_finished

TOPIC = "t"
KILLS = 3
BATCHES = 24
BATCH_SIZE = 250
KILL_SECONDS = 0.25
"""A kill comes at most so long after the first message that was finished since the start."""

PLAIN = ("--filename-format=<TOPIC>",)
GZIP = ("--gzip", "--filename-format=<TOPIC><REV>", "--rotate-size=50000", "--work-dir={work}")


async def kill_at_random(nsqd: NsqdServer, process: BaseProcess, chance: random.Random) -> None:
    """Once it has finished something, and a random while later."""
    await until_finished(nsqd, TOPIC, finished(nsqd, TOPIC) + 1)
    await asyncio.sleep(chance.uniform(0, KILL_SECONDS))
    process.kill()
    process.join()


@pytest.mark.parametrize("kind", [PLAIN, GZIP], ids=["plain", "gzip"])
async def test_kill_9_loses_nothing_that_was_finished(
    tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """Every message is finished at the end, by one of its lives; all are in the files, whole."""
    chance = random.Random()
    bodies = [b"%06d %s" % (n, b"x" * chance.randrange(200)) for n in range(BATCHES * BATCH_SIZE)]
    with spawn_nsqd(tmp_path, "--mem-queue-size=100000") as nsqd:
        flags = [f"--nsqd-tcp-address={nsqd.tcp}", f"--topic={TOPIC}", "--sync-interval=100ms"]
        flags += [f"--output-dir={tmp_path / 'out'}", "--consumer-opt=msg_timeout,1s"]
        flags += [flag.format(work=tmp_path / "work") for flag in kind]
        publishing = asyncio.create_task(publish_all(nsqd, bodies))
        for _ in range(KILLS):
            await kill_at_random(nsqd, forked(*flags), chance)
        process = forked(*flags)
        await publishing
        await until_finished(nsqd, TOPIC, len(bodies))
        process.terminate()
        process.join(60)
        assert 0 == process.exitcode
        channel = nsqd.channel(TOPIC, "nsq_to_file")

    assert (0, 0) == (channel["depth"], channel["in_flight_count"])
    found = {*lines(tmp_path / "out"), *(lines(tmp_path / "work") if kind is GZIP else ())}
    assert [] == [body for body in bodies if body not in found]
    torn = found.difference(bodies)
    assert all(any(body.startswith(line) for body in bodies) for line in torn)
    assert len(torn) <= KILLS
    assert all(is_gzip(path) for path in (tmp_path / "out").glob("*.gz"))


async def publish_all(nsqd: NsqdServer, bodies: list[bytes]) -> None:
    """A batch at a time, so that it takes as long as the kills do."""
    for at in range(0, len(bodies), BATCH_SIZE):
        await asyncio.to_thread(publish, nsqd, TOPIC, bodies[at : at + BATCH_SIZE])
        while at - finished(nsqd, TOPIC) > BATCH_SIZE * 4:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
