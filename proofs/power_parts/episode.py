"""One nsqd on a disk image, under load, and its power cut some ten times: cuts to be looked at.

A cut stops the process (SIGSTOP), lets the witness read what had been answered by then, copies the
image at one moment, and lets the process go on. So the load before a cut is never a tidy one, and
what is noted with each copy is what had been acknowledged before it was made.

Two topics: of `proof` the channel `late` is consumed by nobody, so that all that was acknowledged
must be on the disk; `brief` has only a channel that is consumed, so that its segments are deleted
all the while.
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

from proofs.daemon_fixture import ROOT, Crew
from proofs.history import FINISHED, ChannelHistory, Command, History, Outcome
from proofs.power_parts import image
from proofs.witness import Consumer, Publisher

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
"""A FIN that was answered so long ago has been synced: the interval, and a second of patience. Only
time in which nsqd may run is counted: while it stands still for a cut it cannot sync."""
SETTLE_TURNS = 4
STOP_SECONDS_MAX = 30.0


class Watcher(Consumer):
    """A consumer that also notes how high the indexes have risen."""

    highest_id = 0

    def delivered(self, message: Message) -> bytes:
        """As ever."""
        self.highest_id = max(self.highest_id, int(message.id, 16))
        return super().delivered(message)


@dataclass(slots=True)
class Cut:
    """A disk as a power cut would have left it, and what was known then.

    Attributes:
        image: the copy.
        histories: by topic, as they stood: what was under way is unknown, and of the FINs those
            that were answered long enough ago to have been synced.
        young: by topic and channel: FINs that were answered since.
        highest_ids: by topic, of what had been delivered.
        may_take: whether the power cut may take messages that were answered or delivered.
    """

    image: Path
    histories: dict[str, History]
    young: dict[str, int]
    highest_ids: dict[str, int]
    may_take: bool


@dataclass(slots=True)
class Episode:
    """One nsqd, from an empty disk on.

    Attributes:
        folder: for the image and its copies; a tmpfs.
        module: sparq's nsqd, or one with a guard switched off.
        sync_every: its flag.
    """

    seed: int
    folder: Path
    module: str
    sync_every: int
    histories: dict[str, History] = field(default_factory=dict)
    consumers: list[Watcher] = field(default_factory=list)
    publishers: list[Publisher] = field(default_factory=list)
    ages: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)
    stopped_seconds: float = 0.0

    def cuts(self, count: int) -> list[Cut]:
        """Load, and so many cuts."""
        disk = self.folder / "disk"
        image.copy(self.folder / "empty", disk)
        with image.mounted(disk, self.folder / "mount") as device:
            data = self.folder / "mount" / "data"
            data.mkdir(mode=0o700)
            os.environ["PYTHONPATH"] = str(ROOT)
            flags = (*FLAGS, f"--data-path={data}", f"--sync-every={self.sync_every}")
            with NsqdServer(self.module, self.folder, flags) as server:
                server.start()
                return asyncio.run(self.load(server, disk, device, count))

    async def load(self, server: NsqdServer, disk: Path, device: str, count: int) -> list[Cut]:
        """The actors at work, cut after cut."""
        chance = random.Random(f"{self.seed} cuts")
        for topic, channels in CHANNELS.items():
            await asyncio.to_thread(self.prepare, server, topic, channels)
        cuts = []
        async with Crew(*self.publishers, *self.consumers):
            aging = asyncio.create_task(self.note_ages())
            await asyncio.sleep(FIRST_LOAD_SECONDS)
            for number in range(count):
                await asyncio.sleep(chance.uniform(*LOAD_SECONDS))
                cuts.append(await self.cut(server, disk, device, number))
            aging.cancel()
            # Together with their nsqd, so that none of them waits for it.
            server.kill9()
        return cuts

    def prepare(self, server: NsqdServer, topic: str, channels: tuple[str, ...]) -> None:
        """The topic and its actors."""
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
        """Note how far the histories are, so that a cut can tell which FINs are old."""
        while True:
            so_far = {key: len(noted.events) for key, noted in self.channels()}
            self.ages.append((self.running_seconds(), so_far))
            await asyncio.sleep(0.02)

    def running_seconds(self) -> float:
        """A clock that stands still while nsqd does."""
        return time.monotonic() - self.stopped_seconds

    def channels(self) -> Iterator[tuple[str, ChannelHistory]]:
        """Every channel, as "topic/channel", with its history."""
        for topic, history in self.histories.items():
            for channel, noted in history.channels.items():
                yield f"{topic}/{channel}", noted

    async def cut(self, server: NsqdServer, disk: Path, device: str, number: int) -> Cut:
        """Stop, read what was answered, copy, go on."""
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
        """The histories as they stand, at this time of the clock of `ages`."""
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
    """A publisher's commands as they are known at this moment."""
    under_way = [Command(first, count, Outcome.UNKNOWN) for first, count in publisher.unanswered]
    return [*publisher.commands, *under_way]


def aged(noted: ChannelHistory, old: int) -> tuple[ChannelHistory, int]:
    """A copy in which only the first `old` events may be FINs, and how many others there were."""
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
    """Return once every thread of the process stands still, in the kernel too."""
    tasks = Path(f"/proc/{pid}/task")
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while time.monotonic() < deadline:
        # A thread may end while it is looked at.
        with suppress(OSError):
            texts = [stat.read_text() for stat in tasks.glob("*/stat")]
            if {text.rpartition(")")[2].split()[0] for text in texts} <= {"T", "t"}:
                return
        time.sleep(0.0005)
    raise AssertionError(f"nsqd did not stand still in {STOP_SECONDS_MAX:.0f} s")
