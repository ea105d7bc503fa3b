"""sparq's own client in a proof: a producer and a consumer, each over its own connections.

They show that the library reconnects by itself. Its producer sends messages again after a lost
connection, which may duplicate them, so only lost and foreign messages are counted.
"""

import asyncio
import random
from dataclasses import dataclass, field

from proofs import bodies
from proofs.actors import Actor
from sparq.client import Config, Consumer, Producer
from sparq.client.errors import PublishError
from sparq.protocol.errors import RemoteError

TOPIC, CHANNEL = "library", "c"
PUBLISHER = 77
WORKERS = 8
CONFIG = Config(max_reconnect_delay=1.0)


@dataclass(slots=True)
class MessageRecord:
    """Messages that were acknowledged to the producer, and delivered to the consumer.

    Attributes:
        run: number of the run, which its messages carry.
        attempted: number of messages whose publish began.
        acknowledged, came: message numbers that were acknowledged, or delivered.
        strange: number of delivered messages that this producer did not publish in this run.
    """

    run: int
    attempted: int = 0
    acknowledged: set[int] = field(default_factory=set)
    came: set[int] = field(default_factory=set)
    strange: int = 0

    @property
    def missing(self) -> int:
        """Number of messages that were acknowledged but not delivered yet."""
        return len(self.acknowledged - self.came)


class OwnProducer(Actor):
    """Publishes one message after another in each of `WORKERS` concurrent tasks."""

    def __init__(self, address: str, record: MessageRecord) -> None:
        super().__init__(address)
        self.record = record
        self.busy = 0
        self.chance = random.Random(f"{record.run} library")

    async def live(self) -> None:
        async with Producer(self.address, config=CONFIG) as producer:
            await asyncio.gather(*(self.publish(producer) for _ in range(WORKERS)))

    async def publish(self, producer: Producer) -> None:
        record = self.record
        self.busy += 1
        while not self.stopping:
            number = record.attempted
            record.attempted += 1
            author = bodies.Author(record.run, PUBLISHER, number)
            try:
                await producer.publish(TOPIC, bodies.write(author, self.chance))
            except (PublishError, RemoteError):
                # No answer, or an error from an nsqd that received only a part of the command.
                continue
            record.acknowledged.add(number)
        self.busy -= 1


class OwnConsumer(Actor):
    """Finishes every message."""

    def __init__(self, address: str, record: MessageRecord) -> None:
        super().__init__(address)
        self.record = record

    async def live(self) -> None:
        record = self.record
        async with Consumer(
            TOPIC,
            CHANNEL,
            nsqd_tcp_addresses=self.address,
            max_in_flight=200,
            max_attempts=0,
            config=CONFIG,
        ) as consumer:
            async for message in consumer:
                author = bodies.read(message.body)
                if author is None or author[:2] != (record.run, PUBLISHER):
                    record.strange += 1
                else:
                    record.came.add(author.number)
                message.finish()
