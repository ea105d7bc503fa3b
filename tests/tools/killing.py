"""A tool that is killed at random moments while messages arrive, and started again.

1. The time of a kill is random with a fixed seed: at most `KILL_SECONDS` after the first message
   that the running process finished.
2. The publisher is never far ahead: there are always messages, and few are left at the end.
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
SHORT_TIMEOUTS = tuple(
    f"--consumer-opt={name}"
    for name in ("msg_timeout,1s", "default_requeue_delay,5ms", "max_backoff_duration,0")
)
"""Messages that a killed tool had in flight time out after 1 s; failures cause no backoff."""


def _main(tool: str, flags: tuple[str, ...], log: str) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.exit(getattr(commands, tool)(flags))


def start(tool: ModuleType, *flags: str, log: Path = Path(os.devnull)) -> BaseProcess:
    """Start the tool as a process in which everything is already imported.

    It ends with this process, whatever happens in the test.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(
        target=_main, args=(tool.__name__.rpartition(".")[2], flags, str(log)), daemon=True
    )
    process.start()
    return process


def exit_status_of(process: BaseProcess) -> int | None:
    """Wait for the end of the process; return its exit status."""
    process.join(JOIN_SECONDS)
    return process.exitcode


class Killer:
    """Publishes to a topic, and kills its consumer.

    Attributes:
        bodies: all published bodies, each of them unique.
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
        """Stop publishing; return when the last publish is done."""
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        while not self._stopping:
            await asyncio.to_thread(self._publish_if_few)
            await asyncio.sleep(0.005)  # the interval between checks

    def _publish_if_few(self) -> None:
        if len(self.bodies) - self.finished() >= BACKLOG:
            return
        first, sizes = len(self.bodies), self.chance.choices(range(200), k=BATCH_SIZE)
        batch = [b"%07d %s" % (number, b"x" * size) for number, size in enumerate(sizes, first)]
        self.bodies += batch
        self._nsqd.post(f"/mpub?topic={self._topic}", b"\n".join(batch))

    def finished(self) -> int:
        """Return the number of messages finished since the channel was created."""
        return int(self._nsqd.channel(self._topic, self._channel).get("finish_count", 0))

    async def random_moment(self) -> None:
        """Wait until the next message is finished, and then for a random time."""
        before = await asyncio.to_thread(self.finished)
        await until_seen(lambda: self.finished() > before)
        await asyncio.sleep(self.chance.uniform(0, KILL_SECONDS))  # the random time

    async def kill(self, process: BaseProcess, *, first: Callable[[], None] | None = None) -> None:
        """Send SIGKILL at a random moment of its work; `first` is called right before."""
        await self.random_moment()
        if first is not None:
            first()
        process.kill()
        process.join()

    async def until_all_is_finished(self) -> None:
        """Stop publishing, and wait until the channel is empty."""
        await self.stop()

        def is_done() -> bool:
            found = self._nsqd.channel(self._topic, self._channel)
            left = found["depth"], found["in_flight_count"], found["deferred_count"]
            return (0, 0, 0) == left and found["finish_count"] >= len(self.bodies)

        await until_seen(is_done)
