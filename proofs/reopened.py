"""Reopens a data path in this process: what a start on it reports, and what it delivers.

The broker is nsqd's own, without the process around it and its sockets. A proof can thus examine
thousands of damaged or torn data paths, on a real disk or in memory.

1. The clock moves only when the proof moves it: nothing here depends on the machine's speed.
2. Deliveries to a consumer are read as the bytes on the wire, not with sparq's own client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tests.support.v2_client import FRAME_ERROR, FRAME_MESSAGE, Message, decode_message, fin_each
from tests.support.v2_stream import V2Stream

from sparq.broker import stats
from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.broker.stats import ChannelStats, TopicStats
from sparq.log.disk import Disk
from sparq.options.units import SECOND
from sparq.protocol.commands import rdy, req, sub
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.parser import CommandParser
from sparq.testing import ManualClock

READY = 2500
TURNS_MAX = 100_000


def run_turns(broker: Broker, clock: ManualClock) -> None:
    """Run turns of a broker, and the disk work that they return, until nothing is left to do."""
    for _ in range(TURNS_MAX):
        tasks = broker.end_turn(clock.now())
        for topic_task in tasks:
            topic_task.task.run()
            broker.finish(topic_task, clock.now())
        if not tasks and not broker.busy:
            return
    raise AssertionError("the broker does not come to rest")


class Ticket:
    """Stands for a publish; its answer is taken from the broker."""

    def answered(self, error: RemoteError | None) -> None:
        """Not called here."""


class Reopened:
    """A broker on a data path.

    Attributes:
        report: what an operator reads at the start.
        errors: errors sent to its consumers.
    """

    def __init__(
        self,
        disk: Disk,
        data_path: str,
        *,
        clock: ManualClock | None = None,
        options: BrokerOptions | None = None,
    ) -> None:
        """Start on the contents of the path; raises whatever a start raises."""
        self.clock = clock or ManualClock(time.time_ns())
        self.broker = Broker(options or BrokerOptions(), disk, data_path, self.clock.now(), seed=1)
        self.report = self.broker.load(self.clock.now())
        self.errors: list[str] = []
        self.turn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop cleanly, and close the files."""
        for _ in range(TURNS_MAX):
            closed = self.broker.close()
            self.turn()
            if closed:
                break
        else:
            raise AssertionError("the broker does not close")
        for topic in self.broker.topics.values():
            topic.close()

    def turn(self) -> None:
        """Run turns until nothing is left to do."""
        run_turns(self.broker, self.clock)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and have the broker handle what is due."""
        self.clock.advance(int(seconds * SECOND))
        self.broker.tick(self.clock.now())
        self.turn()

    def publish(self, topic: str, bodies: list[bytes], defer_ms: int = 0) -> None:
        """Publish, and check that the broker stores the messages."""
        ticket, now = Ticket(), self.clock.now()
        self.broker.publish(topic, BodySlices.of(bodies), now, ticket, defer_ms=defer_ms)
        self.turn()
        answers = [error for _, error in self.broker.take_published()]
        assert answers == [None], answers

    def create(self, topic: str, channel: str) -> None:
        """Create a channel that gets every message from now on."""
        self.broker.create_topic(topic, self.clock.now())
        self.broker.create_channel(topic, channel, self.clock.now())
        self.turn()

    def consumer(self, topic: str, channel: str) -> Consumer:
        """Return a client that has subscribed, still with RDY 0."""
        return Consumer(self, topic, channel)

    def drain(self, topic: str, channel: str, *, finish: bool = True) -> list[Message]:
        """Return every message that the channel delivers, each of them finished."""
        return list(self.deliveries(topic, channel, finish=finish))

    def deliveries(self, topic: str, channel: str, *, finish: bool = True) -> Iterator[Message]:
        """Yield the messages of `drain`."""
        consumer = self.consumer(topic, channel)
        while found := consumer.take(READY):
            yield from found
            if finish:
                consumer.finish(found)
        consumer.leave()

    def topic(self, name: str) -> TopicStats:
        """Return the topic's statistics, including those of its channels."""
        topic = self.broker.topics[name]
        figures = stats.of_topic(topic, self.clock.now())
        figures.channels = [self.channel(name, channel) for channel in topic.channels]
        return figures

    def channel(self, topic: str, name: str) -> ChannelStats:
        """Return the channel's statistics."""
        held = self.broker.topics[topic]
        channel = held.channels[name]
        return stats.of_channel(channel, held.options.mem_queue_size, self.clock.now())

    def said(self) -> str:
        """Return everything that an operator could have read so far."""
        return "\n".join([*self.report, *self.broker.notes])


class Consumer:
    """A client with one subscription; it sends and receives bytes."""

    def __init__(self, home: Reopened, topic: str, channel: str) -> None:
        self.home = home
        self.session = home.broker.connect("127.0.0.1:1", home.clock.now())
        self.parser = CommandParser(home.broker.limits)
        self.stream = V2Stream()
        self.say(sub(topic, channel))
        assert self.heard() == []

    def say(self, data: bytes) -> None:
        """Send commands, and let the broker take its turns."""
        broker, now = self.home.broker, self.home.clock.now()
        self.parser.feed(data)
        while (command := self.parser.next()) is not None:
            broker.execute(self.session, command, now)
            self.parser.state = self.session.state
        self.home.turn()

    def heard(self) -> list[Message]:
        """Return the messages received; record errors."""
        for part in self.home.broker.take_output(self.session):
            self.stream.feed(bytes(part))
        found = []
        for kind, data in self.stream.frames():
            if kind == FRAME_MESSAGE:
                found.append(decode_message(data))
            elif kind == FRAME_ERROR:
                self.home.errors.append(data.decode(errors="replace"))
        if self.stream.plain:
            size = int.from_bytes(self.stream.plain[:4], "big", signed=True)
            self.home.errors.append(f"a frame of {size} bytes")
            self.stream.plain.clear()
        return found

    def take(self, count: int) -> list[Message]:
        """Return the messages delivered at this RDY; they remain in flight."""
        self.say(rdy(count))
        return self.heard()

    def finish(self, found: list[Message]) -> None:
        """Send a FIN for each message, in one chunk."""
        self.say(fin_each(found))

    def requeue(self, found: list[Message], delay_ms: int) -> None:
        """Send a REQ for each message, in one chunk."""
        self.say(b"".join([req(one.id, delay_ms) for one in found]))

    def leave(self) -> None:
        """Close the connection."""
        self.home.broker.disconnect(self.session, self.home.clock.now())
        self.home.turn()


@contextmanager
def replaced(holder: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of sparq inside the block: guards are switched off in this way."""
    usual = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, usual)
