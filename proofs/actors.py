"""Publishers and consumers in one event loop, and the history that they record.

They survive every kill of nsqd. An actor that loses its connection records what is unknown, and
reconnects. Nothing is ever published twice, so a body that comes twice was delivered twice.

Each actor makes its random choices with its own generator, seeded with the run and its name.
"""

import asyncio
import random
from collections import deque
from dataclasses import dataclass

from tests.support.v2_client import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    OK,
    AsyncV2Client,
    Message,
    decode_message,
)

from proofs import bodies
from proofs.checker import Command, History, Outcome
from sparq.protocol.commands import mpub, pub, sub

RECONNECT_SECONDS = 0.02
READ_AHEAD_BYTES = 1 << 20
REQUEUE_SHARE = 0.01
REQUEUE_MS_MAX = 200
MARKER_REFUSED = b"E_PUB_FAILED"


@dataclass(frozen=True, slots=True)
class Habit:
    """How a publisher works: messages per command (1: PUB), and unanswered commands at a time."""

    batch_max: int
    window: int


HABITS = (Habit(1, 1), Habit(40, 1), Habit(1, 64), Habit(20, 8))
READY_COUNTS = (1, 200, 2500)


async def connect(address: str) -> AsyncV2Client:
    """Connect, with no time limit for waiting on the daemon; raises ConnectionError."""
    return await AsyncV2Client.connect(address, seconds=None, limit=READ_AHEAD_BYTES)


class Actor:
    """Connects, works until the connection breaks, and reconnects, until it is stopped."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.stopping = False
        self.connections = 0

    async def live(self) -> None:
        """Run one life, over as many connections as needed."""
        while not self.stopping:
            try:
                connection = await connect(self.address)
            except ConnectionError:
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            self.connections += 1
            try:
                await self.work(connection)
            except ConnectionError:
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                self.broken()
                connection.abort()

    async def work(self, connection: AsyncV2Client) -> None:
        """Work on this connection until it breaks or the actor is stopped."""
        raise ConnectionError(f"{self} does not work on {connection}")

    def broken(self) -> None:
        """Record what is unknown now that the connection is gone."""


class Publisher(Actor):
    """Publishes by its habit; answers are matched to commands in order."""

    def __init__(self, address: str, topic: str, history: History, number: int) -> None:
        super().__init__(address)
        self.topic = topic
        self.history = history
        self.number = number
        self.habit = HABITS[number % len(HABITS)]
        self.chance = random.Random(f"{history.run} publisher {number}")
        self.commands = history.publishers.setdefault(number, [])
        self.next_number = 0
        self.unanswered: deque[tuple[int, int]] = deque()

    async def work(self, connection: AsyncV2Client) -> None:
        while not self.stopping or self.unanswered:
            while len(self.unanswered) < self.habit.window and not self.stopping:
                await connection.send_all(self.command())
            for kind, data in await connection.frames():
                self.answered(kind, data)

    def command(self) -> bytes:
        """Return the next command; it is recorded as unanswered before it is sent."""
        count = self.chance.randint(1, self.habit.batch_max)
        first, self.next_number = self.next_number, self.next_number + count
        self.unanswered.append((first, count))
        batch = [
            bodies.write(bodies.Author(self.history.run, self.number, number), self.chance)
            for number in range(first, first + count)
        ]
        if self.habit.batch_max == 1:
            return pub(self.topic, batch[0])
        return mpub(self.topic, batch)

    def answered(self, kind: int, data: bytes) -> None:
        first, count = self.unanswered.popleft()
        is_ok = (kind, data) == OK
        self.note(first, count, Outcome.OK if is_ok else Outcome.REFUSED)

    def note(self, first: int, count: int, outcome: Outcome) -> None:
        self.commands.append(Command(first, count, outcome, self.history.kills))

    def broken(self) -> None:
        for first, count in self.unanswered:
            self.note(first, count, Outcome.UNKNOWN)
        self.unanswered.clear()


class Consumer(Actor):
    """Consumes and finishes; after each run of FINs it publishes a marker and waits for its OK.

    nsqd does not answer a FIN. But it executes a connection's commands in order: once the marker's
    OK is received, nsqd has accepted every FIN before it, and they must survive a kill.

    With delays (see `History`), a delivery that arrives after a later delivery of the same message
    counts only once its FIN was answered: nsqd may have sent it before it took the message back.
    """

    def __init__(self, address: str, topic: str, channel: str, history: History, name: str) -> None:
        super().__init__(address)
        self.topic = topic
        self.channel = channel
        self.history = history
        self.noted = history.channel(channel)
        self.chance = random.Random(f"{history.run} consumer {name}")
        self.ready_count = READY_COUNTS[hash_of(name) % len(READY_COUNTS)]
        # A durable topic answers after a sync, an ephemeral one without touching the disk.
        markers = f"{topic}.markers" + "#ephemeral" * (hash_of(name) % 2)
        self.marker = pub(markers, b"a run of FINs ends here")
        self.unfinished = 0
        self.unmarked: list[int] = []
        self.marked: deque[list[int]] = deque()
        self.overtaken: set[int] = set()

    async def work(self, connection: AsyncV2Client) -> None:
        await connection.send_all(sub(self.topic, self.channel))
        await connection.send_all(b"RDY %d\n" % self.ready_count)
        subscribed = False
        while not self.stopping:
            answers: list[bytes] = []
            for kind, data in await connection.frames():
                if kind == FRAME_MESSAGE:
                    answers.append(self.delivered(decode_message(data)))
                elif kind == FRAME_ERROR:
                    self.answered_by_error(data)
                elif subscribed:
                    self.acknowledged()
                else:
                    subscribed = True
            await self.answer(connection, answers)

    async def answer(self, connection: AsyncV2Client, answers: list[bytes]) -> None:
        """Send the FINs and REQs of a run, followed by a marker."""
        if answers:
            self.marked.append(self.unmarked)
            self.unmarked = []
            await connection.send_all(b"".join([*answers, self.marker]))

    def delivered(self, message: Message) -> bytes:
        """Record a delivery, and return the command that answers it."""
        author = bodies.read(message.body)
        if author is None:
            self.noted.corrupt += 1
        elif author.run != self.history.run:
            self.noted.foreign += 1
        else:
            if self.noted.is_overtaken(author.key, message.attempts):
                self.overtaken.add(author.key)
            else:
                self.noted.delivered(author.key)
            self.unfinished += 1
            if self.chance.random() < REQUEUE_SHARE:
                self.noted.requeued += 1
                self.unfinished -= 1
                self.overtaken.discard(author.key)
                return b"REQ %s %d\n" % (message.id, self.chance.randint(0, REQUEUE_MS_MAX))
            self.unmarked.append(author.key)
        return b"FIN %s\n" % message.id

    def answered_by_error(self, data: bytes) -> None:
        """Handle a refused FIN or REQ, or a marker refused by the disk: the next replaces it."""
        if data.startswith(MARKER_REFUSED):
            self.unmarked[:0] = self.marked.popleft()
        else:
            self.noted.refused += 1

    def acknowledged(self) -> None:
        """Note that a marker was answered: the FINs before it hold from now on."""
        keys = self.marked.popleft()
        for key in self.overtaken.intersection(keys):
            self.noted.delivered(key)
        self.overtaken.difference_update(keys)
        self.noted.finished(keys)
        self.unfinished -= len(keys)

    def broken(self) -> None:
        self.noted.in_flight_at_kills += self.unfinished
        self.unfinished = 0
        self.unmarked = []
        self.marked.clear()
        self.overtaken.clear()


def hash_of(name: str) -> int:
    """Return a hash of the name that is the same in every process."""
    return sum(name.encode())
