"""One nsqd on a disk image, under load, with about ten power cuts to examine later.

A cut stops the process (SIGSTOP), lets publishers and consumers read the answers sent so far,
copies the image at one moment, and resumes the process. The load before a cut is therefore never in
an orderly state, and what is recorded with each copy was acknowledged before the copy was made.

There are two topics. Channel `late` of `proof` has no consumer, so every acknowledged message must
be on the disk. `brief` has only a channel with consumers, so its segments are deleted all the time.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import NsqdServer
from tests.support.v2_client import Message

from proofs.actors import Consumer, Publisher
from proofs.checker import FINISHED, ChannelHistory, Command, History, Outcome
from proofs.power_parts import image
from proofs.workload import RunningActors, daemon

PROOF, BRIEF = "proof", "brief"
LIVE, LATE = "live", "late"
CHANNELS = {PROOF: (LIVE, LATE), BRIEF: (LIVE,)}
PUBLISHERS = {PROOF: (0, 1, 2, 3), BRIEF: (1, 2)}
SYNC_TIMEOUT_MS = 100
FLAGS = (
    "--max-bytes-per-file=300000",
    "--msg-timeout=60s",
    f"--sync-timeout={SYNC_TIMEOUT_MS}ms",
    "--node-id=77",
)
LOAD_SECONDS = (0.03, 0.25)
FIRST_LOAD_SECONDS = 0.3
OLD_SECONDS = SYNC_TIMEOUT_MS / 1000 + 1.0
"""A FIN answered longer ago than this has been synced: the sync interval plus one second. Only time
in which nsqd can run is counted, since it cannot sync while it is stopped for a cut."""
SETTLE_TURNS = 4
STOP_SECONDS_MAX = 30.0


class Watcher(Consumer):
    """A consumer that also records the highest index delivered."""

    highest_id = 0

    def delivered(self, message: Message) -> bytes:
        """Record the index, then handle the message as usual."""
        self.highest_id = max(self.highest_id, int(message.id, 16))
        return super().delivered(message)


@dataclass(slots=True)
class Cut:
    """The disk as a power cut would have left it, and what was known at that moment.

    Attributes:
        image: the copy.
        histories: by topic, at that moment. Unanswered commands are unknown, and only FINs answered
            long enough ago to have been synced are included.
        young: by topic and channel: number of FINs answered more recently.
        highest_ids: by topic, the highest id delivered.
        may_take: whether the power cut may lose messages that were answered or delivered.
    """

    image: Path
    histories: dict[str, History]
    young: dict[str, int]
    highest_ids: dict[str, int]
    may_take: bool


@dataclass(slots=True)
class Episode:
    """One nsqd, starting on an empty disk.

    Attributes:
        folder: holds the image and its copies; a tmpfs.
        module: sparq's nsqd, or one with a guard switched off.
        sync_every: value of its flag.
        kind: the kind of its file system.
    """

    seed: int
    folder: Path
    module: str
    sync_every: int
    kind: str
    histories: dict[str, History] = field(default_factory=dict)
    consumers: list[Watcher] = field(default_factory=list)
    publishers: list[Publisher] = field(default_factory=list)
    ages: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)
    stopped_seconds: float = 0.0

    def cuts(self, count: int) -> list[Cut]:
        """Run the load, and make `count` cuts."""
        disk = self.folder / "disk"
        image.copy(self.folder / "empty", disk)
        with image.mounted(disk, self.folder / "mount", self.kind) as device:
            data = self.folder / "mount" / "data"
            data.mkdir(mode=0o700)
            flags = (*FLAGS, f"--data-path={data}", f"--sync-every={self.sync_every}")
            with daemon(self.module, self.folder, flags) as server:
                server.start()
                return asyncio.run(self.load(server, disk, device, count))

    async def load(self, server: NsqdServer, disk: Path, device: str, count: int) -> list[Cut]:
        """Run the actors, and make one cut after another."""
        chance = random.Random(f"{self.seed} cuts")
        for topic, channels in CHANNELS.items():
            await asyncio.to_thread(self.prepare, server, topic, channels)
        cuts = []
        async with RunningActors(*self.publishers, *self.consumers):
            aging = asyncio.create_task(self.note_ages())
            await asyncio.sleep(FIRST_LOAD_SECONDS)
            for number in range(count):
                await asyncio.sleep(chance.uniform(*LOAD_SECONDS))
                cuts.append(await self.cut(server, disk, device, number))
            aging.cancel()
            # Stop the actors together with their nsqd, so that none of them waits for it.
            server.kill9()
        return cuts

    def prepare(self, server: NsqdServer, topic: str, channels: tuple[str, ...]) -> None:
        """Create the topic and its actors."""
        server.post(f"/topic/create?topic={topic}")
        history = self.histories[topic] = History(run=self.seed & 0xFFFFFFFF)
        for channel in channels:
            server.post(f"/channel/create?topic={topic}&channel={channel}")
            history.channels[channel] = ChannelHistory()
        for number in PUBLISHERS[topic]:
            self.publishers.append(Publisher(server.tcp, topic, history, number))
        for number in range(2):
            consumer = Watcher(server.tcp, topic, LIVE, history, f"{topic} {number}")
            self.consumers.append(consumer)

    async def note_ages(self) -> None:
        """Record the lengths of the histories, so that a cut can tell which FINs are old."""
        while True:
            so_far = {key: len(noted.events) for key, noted in self.channels()}
            self.ages.append((self.running_seconds(), so_far))
            await asyncio.sleep(0.02)

    def running_seconds(self) -> float:
        """Return the time on a clock that stops while nsqd is stopped."""
        return time.monotonic() - self.stopped_seconds

    def channels(self) -> Iterator[tuple[str, ChannelHistory]]:
        """Yield every channel, as "topic/channel", with its history."""
        for topic, history in self.histories.items():
            for channel, noted in history.channels.items():
                yield f"{topic}/{channel}", noted

    async def cut(self, server: NsqdServer, disk: Path, device: str, number: int) -> Cut:
        """Stop nsqd, read the answers sent so far, copy the image, and resume nsqd."""
        began = time.monotonic()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await asyncio.to_thread(wait_stopped, server.pid)
            for _ in range(SETTLE_TURNS):
                await asyncio.sleep(0.001)
            copy = self.folder / f"cut{number}"
            image.copy_at_one_moment(disk, device, copy)
            return self.noted(copy, began - self.stopped_seconds)
        finally:
            self.stopped_seconds += time.monotonic() - began
            os.kill(server.pid, signal.SIGCONT)

    def noted(self, copy: Path, now: float) -> Cut:
        """Return the cut with the current histories; `now` is a time on the clock of `ages`."""
        latest = now - OLD_SECONDS
        old: dict[str, int] = {}
        while self.ages and self.ages[0][0] <= latest:
            _, old = self.ages.popleft()
        young: dict[str, int] = {}
        histories = {topic: History(history.run) for topic, history in self.histories.items()}
        for publisher in self.publishers:
            histories[publisher.topic].publishers[publisher.number] = known(publisher)
        for key, noted in self.channels():
            topic, _, channel = key.partition("/")
            copied, young[key] = aged(noted, old.get(key, 0))
            copied.in_flight_at_kills = sum(
                one.unfinished for one in self.consumers if one.noted is noted
            )
            histories[topic].channels[channel] = copied
        highest = {
            topic: max(one.highest_id for one in self.consumers if one.topic == topic)
            for topic in histories
        }
        return Cut(copy, histories, young, highest, may_take=self.sync_every > 1)


def known(publisher: Publisher) -> list[Command]:
    """Return a publisher's commands with what is known of them now."""
    under_way = [Command(first, count, Outcome.UNKNOWN) for first, count in publisher.unanswered]
    return [*publisher.commands, *under_way]


def aged(noted: ChannelHistory, old: int) -> tuple[ChannelHistory, int]:
    """Return a copy with FINs among the first `old` events only, and the number of later FINs."""
    recent = noted.events[old:]
    deliveries = array("Q", [event for event in recent if not event & FINISHED])
    copied = ChannelHistory(
        noted.events[:old] + deliveries,
        corrupt=noted.corrupt,
        foreign=noted.foreign,
        requeued=noted.requeued,
        refused=noted.refused,
    )
    return copied, len(recent) - len(deliveries)


def wait_stopped(pid: int) -> None:
    """Return once every thread of the process is stopped, in the kernel too."""
    tasks = Path(f"/proc/{pid}/task")
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while time.monotonic() < deadline:
        # A thread may end while its state is read.
        with suppress(OSError):
            texts = [stat.read_text() for stat in tasks.glob("*/stat")]
            if {text.rpartition(")")[2].split()[0] for text in texts} <= {"T", "t"}:
                return
        time.sleep(0.0005)
    raise AssertionError(f"nsqd did not stand still in {STOP_SECONDS_MAX:.0f} s")
