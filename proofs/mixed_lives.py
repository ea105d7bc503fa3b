"""The life of one topic in the mixed run, from its creation until it is deleted or left behind.

Each life has its own history, and its messages carry its number: a message that is delivered in a
later life of the same name is a ghost. In a life that ends with a drain, every acknowledged message
must be delivered. Messages may be lost if the topic or channel is emptied, moved by `seek` or
deleted during work, or ephemeral. Even then a delivered message must be intact, of this life, and
not finished before. Only a kill may make nsqd forget the FINs of an ephemeral channel.
"""

import asyncio
import enum
import random
from contextlib import suppress
from dataclasses import dataclass, field

from proofs.checker import Verdict, check, lost_commands
from proofs.daemon_fixture import RunningActors
from proofs.history import FINISHED, History, Outcome
from proofs.mixed_actors import (
    POLL_SECONDS,
    Hanger,
    Place,
    Reader,
    Writer,
    ask,
    post_until_answered,
)

COMMANDS = (2, 12)
WORK_SECONDS = (0.1, 1.0)
EPHEMERAL_SHARE, HANG_SHARE, POST_SHARE, PAUSE_SHARE = 0.1, 0.3, 0.6, 0.4
DELETED_SHARE = 0.5
SEEKS = ("earliest", "latest", "0", "time:2020-01-01T00:00:00Z")


class Fate(enum.Enum):
    """How a life ends."""

    DRAINED = "everything is consumed"
    EMPTIED = "the topic or a channel is emptied under way"
    MOVED = "a channel is moved in the log"
    DELETED = "the topic or a channel is deleted under way"
    ABANDONED = "all go, and what is unread stays"


FATES = (Fate.DRAINED,) * 6 + (Fate.EMPTIED, Fate.MOVED, Fate.DELETED, Fate.ABANDONED)


@dataclass(slots=True)
class Life:
    """One life.

    Attributes:
        number: unique in the run; its messages carry it.
        is_gone: whether the topic was deleted at the end, after all actors had stopped.
        verdicts: the checker's verdicts, by channel.
        lost: descriptions of lost messages.
    """

    place: Place
    name: str
    number: int
    chance: random.Random
    fate: Fate = field(init=False)
    topic: str = field(init=False)
    channels: tuple[str, ...] = field(init=False)
    history: History = field(init=False)
    is_gone: bool = False
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = self.chance
        self.fate = chance.choice(FATES)
        self.topic = self.name + "#ephemeral" * (chance.random() < EPHEMERAL_SHARE)
        ends = ["#ephemeral" * (chance.random() < EPHEMERAL_SHARE) for _ in "ab"]
        names = tuple(map("".join, zip("ab", ends, strict=True)))
        self.channels = names[: chance.randint(1, 2)]
        self.history = History(run=self.number, delays=True)

    def may_lose(self, channel: str) -> bool:
        """Whether messages of the channel may be missing at the end."""
        is_ephemeral = "#" in self.topic or "#" in channel
        return self.fate is not Fate.DRAINED or is_ephemeral

    def may_return(self, channel: str) -> bool:
        """Whether the channel may deliver a finished message again: only after a `seek`."""
        return self.fate is Fate.MOVED and channel == self.channels[0]

    def settle(self, channels: tuple[str, ...], history: History) -> None:
        """Make this the life of a topic that is only drained, with these channels and history."""
        self.fate, self.topic = Fate.DRAINED, self.name
        self.channels, self.history = channels, history

    def describe(self) -> str:
        """Topic, number and fate, for the report."""
        return f"{self.topic}, life {self.number} ({self.fate.value}):"

    def path(self, action: str, channel: str = "", more: str = "") -> str:
        """Path of a request about the topic, or about one of its channels."""
        query = f"?topic={self.topic}" + (f"&channel={channel}" if channel else "")
        return f"/{'channel' if channel else 'topic'}/{action}{query}{more}".replace("#", "%23")

    async def live(self) -> None:
        """Run the whole life: delete and create the topic, work, check, and maybe delete it."""
        for topic in (self.name, f"{self.name}%23ephemeral"):
            await post_until_answered(self.place, f"/topic/delete?topic={topic}")
        await post_until_answered(self.place, self.path("create"))
        for channel in self.channels:
            await post_until_answered(self.place, self.path("create", channel))
        await self.work()
        verdicts = check(self.history)
        self.verdicts = {name: verdicts[name] for name in self.channels if name in verdicts}
        self.lost = [
            f"{self.describe()} {line}"
            for line in lost_commands(self.history)
            if not self.may_lose(line.partition(":")[0])
        ]
        if self.fate is Fate.DRAINED and self.chance.random() < DELETED_SHARE:
            await post_until_answered(self.place, self.path("delete"))
            self.is_gone = True

    async def work(self) -> None:
        """Run the writer, the readers and hanging consumers until the end of the life."""
        writer = Writer(self.place, self.topic, self.history, self.chance.randint(*COMMANDS))
        readers = [
            Reader(self.place, self.topic, channel, self.history, f"{self.number} {channel} {copy}")
            for channel in self.channels
            for copy in range(self.chance.randint(1, 2))
        ]
        hangers = [
            Hanger(self.place, self.topic, channel, self.chance)
            for channel in self.channels
            if self.chance.random() < HANG_SHARE
        ]
        async with RunningActors(writer, *readers, *hangers):
            await asyncio.sleep(self.chance.uniform(*WORK_SECONDS))
            await self.disturb(writer)
            await self.end(writer, readers)

    async def disturb(self, writer: Writer) -> None:
        """Pause and unpause, publish over HTTP, and request the stats, at random."""
        channel = self.chance.choice((*self.channels, ""))
        pauses = self.chance.random() < PAUSE_SHARE
        if pauses:
            await post_until_answered(self.place, self.path("pause", channel))
        if self.chance.random() < POST_SHARE:
            await writer.post()
        with suppress(ConnectionError):
            await ask(self.place, "GET", self.path("x").replace("/topic/x", "/stats"))
        if pauses:
            await asyncio.sleep(self.chance.uniform(*WORK_SECONDS) / 2)
            await post_until_answered(self.place, self.path("unpause", channel))

    async def end(self, writer: Writer, readers: list[Reader]) -> None:
        """End the life as its fate says."""
        channel = self.chance.choice((*self.channels, ""))
        if self.fate is Fate.EMPTIED:
            await post_until_answered(self.place, self.path("empty", channel))
        elif self.fate is Fate.MOVED:
            to = f"&to={self.chance.choice(SEEKS)}"
            await post_until_answered(self.place, self.path("seek", self.channels[0], to))
        elif self.fate is Fate.DELETED:
            for actor in (writer, *readers):
                actor.stopping = True  # an actor that reconnects would create the topic again
            await post_until_answered(self.place, self.path("delete", channel))
            return
        if self.fate is Fate.DRAINED:
            await self.drain(writer, readers)
        await asyncio.gather(*(reader.leave() for reader in readers))

    async def drain(self, writer: Writer, readers: list[Reader]) -> None:
        """Wait up to `place.patience` seconds until all acknowledged messages are finished."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.place.patience):
                while not (  # noqa: ASYNC110 - many actors, no one event
                    writer.stopping
                    and not writer.unanswered
                    and all(reader.is_done for reader in readers)
                    and self.has_all()
                ):
                    await asyncio.sleep(POLL_SECONDS)

    def has_all(self) -> bool:
        """Whether each channel that may not lose messages got all acknowledged ones."""
        sent = {
            publisher << 32 | number
            for publisher, commands in self.history.publishers.items()
            for command in commands
            if command.outcome is Outcome.OK
            for number in range(command.first, command.first + command.count)
        }
        return all(
            sent <= {event for event in self.history.channels[name].events if not event & FINISHED}
            for name in self.channels
            if not self.may_lose(name)
        )
