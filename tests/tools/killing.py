"""A tool that is killed at random moments while messages come, and started again.

1. When a kill comes is chance with a fixed seed; each comes at most `KILL_SECONDS` after the first
   message that the life in question finished.
2. Who publishes never runs far ahead: there is always something to do, and little left at the end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

from sparq.tools import commands, nsq_to_file, nsq_to_http, nsq_to_nsq
from tests.support.servers import NsqdServer
from tests.support.waiting import until_seen

TOOLS = (nsq_to_file, nsq_to_http, nsq_to_nsq)
SEED = 4150
KILL_SECONDS = 0.25
BATCH_SIZE = 250
BACKLOG = 1000
JOIN_SECONDS = 60.0
SOON = tuple(
    f"--consumer-opt={name}"
    for name in ("msg_timeout,1s", "default_requeue_delay,5ms", "max_backoff_duration,0")
)
"""What was in flight to who was killed comes again when it has timed out; no failure delays it."""


def _main(tool: str, flags: tuple[str, ...], log: str) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.exit(getattr(commands, tool)(flags))


def start(tool: ModuleType, *flags: str, log: Path = Path(os.devnull)) -> BaseProcess:
    """The tool as a process of its own, one that has imported everything already.

    It does not outlive this process, whatever becomes of the test.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(
        target=_main, args=(tool.__name__.rpartition(".")[2], flags, str(log)), daemon=True
    )
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    """Wait for its end; the exit status."""
    process.join(JOIN_SECONDS)
    return process.exitcode


class Killer:
    """Publishes to a topic, and kills who consumes it.

    Attributes:
        bodies: all that was published, none of them twice.
    """

    def __init__(self, nsqd: NsqdServer, topic: str, channel: str) -> None:
        self.bodies: list[bytes] = []
        self.chance = random.Random(SEED)
        self._nsqd = nsqd
        self._topic = topic
        self._channel = channel
        self._stopping = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Return when nothing more is published."""
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        while not self._stopping:
            await asyncio.to_thread(self._publish_if_few)
            await asyncio.sleep(0.005)  # the pace of asking how many are left

    def _publish_if_few(self) -> None:
        if len(self.bodies) - self.finished() >= BACKLOG:
            return
        first, sizes = len(self.bodies), self.chance.choices(range(200), k=BATCH_SIZE)
        batch = [b"%07d %s" % (number, b"x" * size) for number, size in enumerate(sizes, first)]
        self.bodies += batch
        self._nsqd.post(f"/mpub?topic={self._topic}", b"\n".join(batch))

    def finished(self) -> int:
        """How many messages were finished, by all lives."""
        return int(self._nsqd.channel(self._topic, self._channel).get("finish_count", 0))

    async def random_moment(self) -> None:
        """Wait for a message that is finished from now on, and a random while longer."""
        before = await asyncio.to_thread(self.finished)
        await until_seen(lambda: self.finished() > before)
        await asyncio.sleep(self.chance.uniform(0, KILL_SECONDS))  # chance is what is asked for

    async def kill(self, process: BaseProcess, *, first: Callable[[], None] | None = None) -> None:
        """Without warning, at a random moment of its work; `first` is done right before."""
        await self.random_moment()
        if first is not None:
            first()
        process.kill()
        process.join()

    async def until_all_is_finished(self) -> None:
        """Publish no more, and wait until the channel has nothing left."""
        await self.stop()

        def is_done() -> bool:
            found = self._nsqd.channel(self._topic, self._channel)
            left = found["depth"], found["in_flight_count"], found["deferred_count"]
            return (0, 0, 0) == left and found["finish_count"] >= len(self.bodies)

        await until_seen(is_done)
