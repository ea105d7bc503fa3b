"""A broker in the test's process, clients that send it bytes, and a manual clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sparq.broker import stats
from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.broker.policies import NAMES
from sparq.broker.stats import ChannelStats, TopicStats
from sparq.broker.turn import TopicTask
from sparq.log.disk import Disk
from sparq.options.units import SECOND
from sparq.protocol import commands, layout
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.parser import CommandParser
from sparq.testing import ManualClock, MemoryDisk
from tests.support.v2_stream import V2Stream, decode_message

BEGIN_WALL_NS = 1_790_000_000_000_000_000
BEGIN_MONO_NS = 50 * SECOND
PATH = "/data"
STOPS_MAX = 200


@dataclass(frozen=True)
class Message:
    """A delivered message."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

    @property
    def index(self) -> int:
        """Its position in the log."""
        return int(self.id, 16) & layout.INDEX_LIMIT


def changed(options: BrokerOptions, values: Mapping[str, Any]) -> BrokerOptions:
    """Copy the options with other values, including settings of topics and channels."""
    settings = {name: value for name, value in values.items() if name in NAMES}
    others = {name: value for name, value in values.items() if name not in NAMES}
    if settings:
        others["settings"] = replace(options.settings, **settings)
    return replace(options, **others)


class Ticket:
    """Records the answers to publishes."""

    def __init__(self) -> None:
        self.answers: list[RemoteError | None] = []

    def answered(self, error: RemoteError | None) -> None:
        """Record an answer: None for OK, or the error."""
        self.answers.append(error)


class BrokerHarness:
    """A broker on a simulated disk, which a test starts, drives and crashes."""

    TURNS_MAX = 200

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        data_path: str = PATH,
        clock: ManualClock | None = None,
        base: BrokerOptions | None = None,
        **options: Any,
    ) -> None:
        self.disk: Any = MemoryDisk() if disk is None else disk
        self.data_path = data_path
        self.clock = clock or ManualClock(BEGIN_WALL_NS, BEGIN_MONO_NS)
        self.options = changed(base or BrokerOptions(), options)
        self.report: list[str] = []
        self.start()

    def start(self, **options: Any) -> None:
        """Start a new broker on the data path."""
        self.options = changed(self.options, options)
        self.clients: list[Client] = []
        self.tasks: list[TopicTask] = []
        self.broker = Broker(self.options, self.disk, self.data_path, self.clock.now(), seed=1)
        self.report = self.broker.load(self.clock.now())
        self.turn()

    def crash(self, **options: Any) -> None:
        """Kill the broker without a clean stop, and start another on the files it wrote."""
        self.start(**options)

    def restart(self) -> None:
        """Stop the broker cleanly and start it again."""
        self.close()
        self.broker.closed()
        self.start()

    def close(self) -> None:
        """Do all of a clean stop but the final `Broker.closed()`."""
        for _ in range(STOPS_MAX):
            closed = self.broker.close(self.clock.now())
            self.turn()
            if closed:
                return
        raise AssertionError("the broker does not close")

    def end_turn(self) -> None:
        """End a turn; its disk work waits for the next `turn`."""
        self.tasks += self.broker.end_turn(self.clock.now())

    def run(self, tasks: list[TopicTask]) -> None:
        """Run disk work that the end of a turn has returned."""
        for topic_task in tasks:
            topic_task.task.run()
            topic_task.finish(self.clock.now())

    def act(self, action: str, *arguments: object) -> None:
        """Perform an administrator's action, such as "delete_topic", and run its turns."""
        getattr(self.broker, action)(*arguments, self.clock.now())
        self.turn()

    def wake(self, topic: str, channel: str) -> None:
        """Make the next turn process a channel, as commands do."""
        found = self.broker.topics[topic]
        found.wake(found.channels[channel])

    def checkpoint(self, name: str) -> None:
        """Replace a topic's ledger by a checkpoint of its state."""
        topic = self.broker.topics[name]
        assert topic.writer is not None
        task = topic.writer.ledger.checkpoint_task(topic.state(self.clock.now()))
        assert task is not None
        topic.submit(task, partial(topic.writer.finish, task))
        self.turn()

    def turn(self) -> None:
        """Run turns until no work is left."""
        for _ in range(self.TURNS_MAX):
            self.end_turn()
            tasks, self.tasks = self.tasks, []
            by_task = {id(topic_task.task): topic_task for topic_task in tasks}
            for ran in self.broker.journal.run([topic_task.task for topic_task in tasks]):
                for task in ran:
                    by_task[id(task)].finish(self.clock.now())
            for ticket, error in self.broker.take_published():
                ticket.answered(error)
            for client in self.clients:
                client.collect()
            if not tasks and not self.broker.turn.is_busy:
                return
        raise AssertionError("the broker does not come to rest")

    def advance(self, seconds: float) -> None:
        """Advance the clock without a tick of the broker."""
        self.clock.advance(int(seconds * SECOND))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, then let the broker process everything that is due."""
        self.advance(seconds)
        self.broker.tick(self.clock.now())
        self.turn()

    def connect(self) -> Client:
        """Connect a new client."""
        client = Client(self)
        self.clients.append(client)
        return client

    def consumer(self, topic: str, channel: str, rdy: int = 0, **identify: Any) -> Client:
        """Connect a client and subscribe it."""
        client = self.connect()
        if identify:
            client.say(commands.identify(json.dumps(identify).encode()))
        client.say(commands.sub(topic, channel))
        if rdy:
            client.say(commands.rdy(rdy))
        return client

    def publish(self, topic: str, *bodies: bytes, defer_ms: int = 0) -> None:
        """Publish through the HTTP API's path, and check that it succeeds."""
        ticket = Ticket()
        self.broker.publish(
            topic, BodySlices.of(list(bodies)), self.clock.now(), ticket, defer_ms=defer_ms
        )
        self.turn()
        assert ticket.answers == [None]

    def topic(self, name: str) -> TopicStats:
        """The topic's stats, including its channels."""
        topic = self.broker.topics[name]
        figures = stats.of_topic(topic, self.clock.now())
        figures.channels = [self.channel(name, channel) for channel in topic.channels]
        return figures

    def channel(self, topic: str, name: str) -> ChannelStats:
        """The channel's stats, including its clients."""
        held = self.broker.topics[topic]
        channel = held.channels[name]
        figures = stats.of_channel(channel, held.options.mem_queue_size, self.clock.now())
        sessions = channel.sessions.values()
        figures.clients = [stats.of_client(session, topic) for session in sessions]
        return figures


class Client:
    """A client connection: bytes in, frames out."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.session = harness.broker.connect("10.0.0.1:5555", harness.clock.now())
        self.parser = CommandParser(harness.broker.limits)
        self.stream = V2Stream()
        self.received: list[tuple[int, bytes]] = []
        self.gone = False

    def say(self, data: bytes, *, turn: bool = True) -> None:
        """Send bytes; the broker executes them, and runs its turns unless `turn` is False."""
        broker, now = self.harness.broker, self.harness.clock.now()
        self.parser.feed(data)
        try:
            while not self.session.closing and (command := self.parser.next()) is not None:
                broker.execute(self.session, command, now)
                self.parser.state = self.session.state
        except RemoteError as error:
            broker.fail(self.session, error)
        if turn:
            self.harness.turn()

    def collect(self) -> None:
        """Decode the broker's output for this client."""
        if not self.gone:
            for part in self.harness.broker.take_output(self.session):
                self.stream.feed(bytes(part))
                self.received += self.stream.frames()

    def take_frames(self) -> list[tuple[int, bytes]]:
        """Return and remove all received frames."""
        received, self.received = self.received, []
        return received

    def answers(self) -> list[bytes]:
        """Return and remove the received responses and errors; messages remain."""
        answers = [data for kind, data in self.received if kind != layout.FRAME_MESSAGE]
        self.received = [part for part in self.received if part[0] == layout.FRAME_MESSAGE]
        return answers

    def messages(self) -> list[Message]:
        """Return and remove the received messages; answers remain."""
        found = [
            Message(*decode_message(data))
            for kind, data in self.received
            if kind == layout.FRAME_MESSAGE
        ]
        self.received = [part for part in self.received if part[0] != layout.FRAME_MESSAGE]
        return found

    def bodies(self) -> list[bytes]:
        """Return the bodies of the received messages, and remove the messages."""
        return [message.body for message in self.messages()]

    def finish(self, messages: list[Message]) -> None:
        """FIN these messages in one chunk."""
        self.say(b"".join(commands.fin(message.id) for message in messages))

    def close(self) -> None:
        """Drop the connection."""
        self.gone = True
        self.harness.clients.remove(self)
        self.harness.broker.disconnect(self.session, self.harness.clock.now())
        self.harness.turn()


def refusal(harness: BrokerHarness, *bodies: bytes, topic: str = "t") -> str:
    """Publish the bodies as one batch; returns the error's text, empty if it succeeds."""
    ticket = Ticket()
    harness.broker.publish(topic, BodySlices.of(list(bodies)), harness.clock.now(), ticket)
    harness.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text
