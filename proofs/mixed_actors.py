"""The actors of the mixed run: a writer, a reader, a hanging consumer, and HTTP requests.

They extend the publisher and consumer of actors.py, and use more of the protocol: PUB, MPUB and
DPUB; IDENTIFY with settings of real clients, TOUCH, REQ, NOP, RDY up and down, CLS.

1. A reader counts a message as finished only if its FIN was not refused, and a later command on
   the same connection was answered.
2. A request that changes a topic or channel is repeated until it is answered: without an answer,
   its client cannot know whether it was executed.
"""

import asyncio
import json
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.v2_client import FRAME_ERROR, AsyncV2Client, Message

from proofs import bodies
from proofs.actors import RECONNECT_SECONDS, Actor, Consumer, Habit, Publisher
from proofs.history import History, Outcome
from sparq.protocol.commands import mpub, pub, sub

ASK_SECONDS = 20.0
POST_SECONDS = 60.0
LEAVE_SECONDS = 5.0
POLL_SECONDS = 0.02
HELD_SECONDS = (0.2, 3.0)
MARKER_TOPICS = ("markers", "markers#ephemeral")
"""nsqd answers a publish to the first after a sync, to the second without any disk access. Both are
emptied continuously."""
KINDS = {"PUB": Habit(1, 1), "DPUB": Habit(1, 4), "MPUB": Habit(20, 4)}
DEFER_MS_MAX = 800
POST_BODIES_MAX = 5
READY_COUNTS = (1, 7, 200, 2500)
IDENTIFY_SHARE, TOUCH_SHARE, RDY_SHARE = 0.6, 0.1, 0.1
FAILED_ID = re.compile(rb"E_(?:FIN|REQ|TOUCH)_FAILED \w+ ([0-9a-f]{16})")
TRANSIENT = (429, 500, 503)
"""HTTP statuses after which a request is repeated: nsqd exits, or is deleting the topic."""


@dataclass(slots=True)
class Place:
    """The addresses of an nsqd, and its refusals.

    Attributes:
        tcp, http: its addresses.
        patience: seconds to wait for a message before it counts as lost.
        refusals: number of refusals by error: its first word, or status and text over HTTP.
    """

    tcp: str
    http: str
    patience: float
    refusals: Counter[str] = field(default_factory=Counter)


async def ask(place: Place, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send one request over a new connection; returns status and body.

    Raises:
        ConnectionError: nsqd is down, or sent no answer within `ASK_SECONDS`.
    """
    host, _, port = place.http.rpartition(":")
    head = f"{method} {path} HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(ASK_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(head.encode() + body)
                answer = await reader.read()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError) as error:
        raise ConnectionError(str(error)) from error
    if not answer.startswith(b"HTTP/1.1 "):
        raise ConnectionError("no answer")
    return int(answer[9:12]), answer.partition(b"\r\n\r\n")[2]


async def post_until_answered(place: Place, path: str) -> int:
    """Repeat a POST until it is answered; returns the status: 200, or a 4xx other than 429."""
    deadline = asyncio.get_running_loop().time() + POST_SECONDS
    status = 0
    while asyncio.get_running_loop().time() < deadline:
        with suppress(ConnectionError):
            status, _ = await ask(place, "POST", path)
            if status not in TRANSIENT:
                return status
        await asyncio.sleep(RECONNECT_SECONDS)
    raise AssertionError(f"POST {path} was not done in {POST_SECONDS:.0f} s, status {status}")


def identify(chance: random.Random) -> bytes:
    """An IDENTIFY command with random settings, as clients send them."""
    said: dict[str, object] = {"client_id": "mixed", "hostname": "here", "user_agent": "mixed/1"}
    said["feature_negotiation"] = chance.random() < 0.7
    choices: dict[str, tuple[object, ...]] = {
        "heartbeat_interval": (1000, 5000, 0),
        "output_buffer_size": (-1, 64, 16_384, 0),
        "output_buffer_timeout": (-1, 25, 250, 0),
        "msg_timeout": (3000, 5000, 0),
        "sample_rate": (0,),
        "snappy": (False,),
        "deflate": (False,),
    }
    for key, values in choices.items():
        if chance.random() < 0.4:
            said[key] = chance.choice(values)
    body = json.dumps(said).encode()
    return b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


class Writer(Publisher):
    """Sends a number of PUB, DPUB and MPUB commands, then stops; `post` publishes over HTTP."""

    def __init__(self, place: Place, topic: str, history: History, commands: int) -> None:
        super().__init__(place.tcp, topic, history, 0)
        self.place = place
        self.left = commands

    def command(self) -> bytes:
        """The next command. A DPUB is a PUB with a different first line."""
        self.left -= 1
        self.stopping = self.left <= 0
        kind = self.chance.choice(tuple(KINDS))
        self.habit = KINDS[kind]
        whole = super().command()
        if kind != "DPUB":
            return whole
        milliseconds = self.chance.randint(0, DEFER_MS_MAX)
        return b"DPUB %s %d\n" % (self.topic.encode(), milliseconds) + whole.partition(b"\n")[2]

    def answered(self, kind: int, data: bytes) -> None:
        if kind == FRAME_ERROR:
            self.place.refusals[data.split(b" ")[0].decode()] += 1
        super().answered(kind, data)

    async def post(self) -> None:
        """Send one /pub or /mpub, deferred or not."""
        count = self.chance.randint(1, POST_BODIES_MAX)
        first, self.next_number = self.next_number, self.next_number + count
        authors = [bodies.Author(self.history.run, 0, first + place) for place in range(count)]
        batch = [bodies.write(author, self.chance) for author in authors]
        path = f"/pub?topic={self.topic}" if count == 1 else f"/mpub?topic={self.topic}&binary=true"
        body = batch[0] if count == 1 else mpub("t", batch).partition(b"\n")[2][4:]
        path = path.replace("#", "%23")
        if self.chance.random() < 0.5:
            path += f"&defer={self.chance.randint(0, DEFER_MS_MAX)}"
        try:
            status, answer = await ask(self.place, "POST", path, body)
        except ConnectionError:
            return self.note(first, count, Outcome.UNKNOWN)
        if status != 200:
            self.place.refusals[f"{status} {answer[:40].decode(errors='replace')}"] += 1
        self.note(first, count, Outcome.OK if status == 200 else Outcome.REFUSED)


class Reader(Consumer):
    """Finishes messages, mixed with all other commands of a consumer; leaves with CLS."""

    def __init__(self, place: Place, topic: str, channel: str, history: History, name: str) -> None:
        super().__init__(place.tcp, topic, channel, history, name)
        self.place = place
        self.ready_count = self.chance.choice(READY_COUNTS)
        self.marker = pub(self.chance.choice(MARKER_TOPICS), b"a run of FINs ends here")
        self.connection: AsyncV2Client | None = None
        self.keys: dict[bytes, int] = {}

    @property
    def is_done(self) -> bool:
        """Whether an answered command has followed every FIN."""
        return not self.unmarked and not self.marked

    async def work(self, connection: AsyncV2Client) -> None:
        if self.chance.random() < IDENTIFY_SHARE:
            await connection.send_all(identify(self.chance))
            await connection.frames()
        self.connection = connection
        await super().work(connection)

    def delivered(self, message: Message) -> bytes:
        finishing = len(self.unmarked)
        answer = super().delivered(message)
        if len(self.unmarked) > finishing:
            self.keys[message.id] = self.unmarked[-1]
        if self.chance.random() < TOUCH_SHARE:
            answer = b"TOUCH %s\n" % message.id + answer
        return answer

    async def answer(self, connection: AsyncV2Client, answers: list[bytes]) -> None:
        if answers and self.chance.random() < RDY_SHARE:
            answers.append(b"NOP\nRDY 0\nRDY %d\n" % self.ready_count)
        await super().answer(connection, answers)

    def acknowledged(self) -> None:
        super().acknowledged()
        if self.is_done:
            self.keys.clear()

    def answered_by_error(self, data: bytes) -> None:
        """Note an error. After E_FIN_FAILED or E_REQ_FAILED the message is not finished here."""
        self.place.refusals[data.split(b" ")[0].decode()] += 1
        found = FAILED_ID.match(data)
        key = self.keys.get(found[1]) if found and not data.startswith(b"E_TOUCH") else None
        for run in (*self.marked, self.unmarked):
            if key in run:
                run.remove(key)
        super().answered_by_error(data)

    def broken(self) -> None:
        super().broken()
        self.connection = None
        self.keys.clear()

    async def leave(self) -> None:
        """Send CLS, whose answer confirms the FINs before it; then abort the connection."""
        connection, self.stopping = self.connection, True
        if connection is None:
            return
        self.marked.append(self.unmarked)
        self.unmarked = []
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await connection.send_all(b"CLS\n")
                while self.marked and self.connection is connection:  # noqa: ASYNC110 - or broken
                    await asyncio.sleep(POLL_SECONDS)
        connection.abort()


class Hanger(Actor):
    """Takes messages, answers none, and disconnects after a while: the messages time out."""

    def __init__(self, place: Place, topic: str, channel: str, chance: random.Random) -> None:
        super().__init__(place.tcp)
        self.chance = chance
        self.greeting = sub(topic, channel) + b"RDY %d\n" % chance.choice((1, 5, 100))
        self.reads = chance.random() < 0.5

    async def work(self, connection: AsyncV2Client) -> None:
        """Hang for `HELD_SECONDS`, once: read nothing, or read messages without an answer."""
        self.stopping = True
        cut = self.chance.random() < 0.3
        await connection.send_all(self.greeting + (b"MPUB markers\n\x00\x00" if cut else b""))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.chance.uniform(*HELD_SECONDS)):
                while self.reads:
                    await connection.frames()
                await asyncio.sleep(max(HELD_SECONDS))
