"""An nsqd, publishers and consumers that work on one topic, and waiting for what they see.

1. The daemon is sparq's nsqd, or a control: an nsqd with a safeguard switched off (`controls`).
2. Actors work while their block runs; an actor that failed makes the block fail.
3. Every wait has a condition and a deadline.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.servers import NsqdServer, spawn_nsqd

from proofs.actors import HABITS, READY_COUNTS, Actor, Consumer, Publisher
from proofs.checker import Command, History, Outcome, Verdict, check, total

ROOT = Path(__file__).parent.parent
NSQD = "sparq.nsqd"
TOPIC, LIVE, LATE = "proof", "live", "late"
WAIT_SECONDS, DRAIN_SECONDS = 60.0, 120.0
POLL_SECONDS = 0.02


def python_path() -> str:
    """Return the PYTHONPATH for a process that runs a module of `proofs`."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class Control(NsqdServer):
    """An nsqd with a safeguard switched off; its module is the control's name."""

    def program(self) -> tuple[str, ...]:
        """Return the command without nsqd's flags."""
        return (*self.prefix, sys.executable, "-m", "proofs.controls", self.module)


def daemon(
    module: str, folder: Path, flags: tuple[str, ...], prefix: tuple[str, ...] = ()
) -> NsqdServer:
    """Return an nsqd that is not started yet: of a module, or a control."""
    os.environ["PYTHONPATH"] = python_path()
    return (NsqdServer if "." in module else Control)(module, folder, flags, prefix)


def started(
    folder: Path, module: str = NSQD, flags: Sequence[str] = (), prefix: tuple[str, ...] = ()
) -> NsqdServer:
    """Start this nsqd with its data in `folder`; `prefix` is put before its command."""
    if module == NSQD:
        return spawn_nsqd(folder, *flags, prefix=prefix)
    server = daemon(module, folder, (f"--data-path={folder}", *flags), prefix)
    server.start()
    return server


@contextmanager
def data_folder(keep: Path | None) -> Iterator[Path]:
    """Yield a temporary folder, which is removed afterwards, or create and yield `keep`."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="sparq-proof-") as folder:
            yield Path(folder)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DRAIN_SECONDS) -> None:
    """Wait until the condition holds.

    Raises:
        AssertionError: it did not hold in time; the message contains `what`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what} in {seconds:.0f} s"
        time.sleep(POLL_SECONDS)


async def until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Do the same in an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what} in {seconds:.0f} s"
        await asyncio.sleep(POLL_SECONDS)


def make_topic(server: NsqdServer, topic: str, channels: Iterable[str]) -> None:
    """Create a topic and channels, which get every message from now on."""
    server.post(f"/topic/create?topic={topic}")
    for channel in channels:
        server.post(f"/channel/create?topic={topic}&channel={channel}")


def is_drained(server: NsqdServer, topic: str, channels: Iterable[str]) -> bool:
    """Return whether these channels have no waiting, in-flight or deferred messages."""
    waiting = ("depth", "in_flight_count", "deferred_count")
    figures = [server.channel(topic, channel) for channel in channels]
    return all(figure and not any(figure[key] for key in waiting) for figure in figures)


class Living(Protocol):
    """What can work while a block runs."""

    async def live(self) -> None:
        """Work until it is cancelled, or has nothing more to do."""


class RunningActors:
    """Actors that work while the block runs."""

    def __init__(self, *actors: Living) -> None:
        self.actors = actors
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self.tasks = [asyncio.create_task(actor.live()) for actor in self.actors]

    async def __aexit__(self, *_: object) -> None:
        ended = [task for task in self.tasks if task.done()]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for task in ended:
            task.result()


@dataclass(slots=True)
class Workload:
    """Four publishers and three consumers on the nsqd that runs as `server`.

    Attributes:
        seed: of all random choices.
        late: whether there is also a channel that is only consumed in the end, so that its messages
            must survive on disk until then.
        delays: see `History`.
    """

    server: NsqdServer
    seed: int
    late: bool = False
    delays: bool = False
    history: History = field(init=False)
    publishers: list[Publisher] = field(init=False)
    consumers: list[Consumer] = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(run=self.seed & 0xFFFFFFFF, delays=self.delays)
        self.publishers = [
            Publisher(self.server.tcp, TOPIC, self.history, number) for number in range(len(HABITS))
        ]
        self.consumers = [self.consumer(LIVE, number) for number in range(len(READY_COUNTS))]

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the channels of the topic."""
        return (LIVE, LATE) if self.late else (LIVE,)

    def consumer(self, channel: str, number: int) -> Consumer:
        """Return a further consumer."""
        return Consumer(self.server.tcp, TOPIC, channel, self.history, f"{channel} {number}")

    def make_topic(self) -> None:
        """Create the topic and its channels."""
        make_topic(self.server, TOPIC, self.channels)

    def running(self, *more: Actor) -> RunningActors:
        """Run all actors, and `more`, as long as the block lasts."""
        return RunningActors(*self.publishers, *self.consumers, *more)

    # What the actors have seen

    def commands(self) -> Iterator[Command]:
        """Yield the commands that have an outcome."""
        for commands in self.history.publishers.values():
            yield from commands

    def count(self, outcome: Outcome) -> int:
        """Return the number of publishing commands with this outcome."""
        return sum(command.outcome is outcome for command in self.commands())

    async def goes_on(self, commands: int) -> None:
        """Wait until `commands` more are acknowledged."""
        enough = self.count(Outcome.OK) + commands
        await until(lambda: self.count(Outcome.OK) >= enough, f"{commands:,} acknowledged")

    def is_unheard(self) -> bool:
        """Return whether no publisher waits for a reply."""
        return not any(publisher.unanswered for publisher in self.publishers)

    async def drained(self, seconds: float = DRAIN_SECONDS) -> None:
        """Stop publishing, and wait until everything is consumed."""
        for publisher in self.publishers:
            publisher.stopping = True
        late = [self.consumer(LATE, number) for number in (3, 4)] if self.late else []
        async with RunningActors(*late):
            await until(self.is_unheard, "all answered")
            done = (lambda: is_drained(self.server, TOPIC, self.channels)), "drained", seconds
            await asyncio.to_thread(wait_until, *done)

    def verdict(self) -> Verdict:
        """Return the checker's verdict on all channels."""
        return total(check(self.history).values())
