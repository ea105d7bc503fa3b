"""sparq's own client as a witness: a producer and a consumer, each over a network of its own.

They show that the library comes back by itself. What its producer sends again after a loss may be
there twice, so that only losses and strangers are counted.
"""

import asyncio
import random
from dataclasses import dataclass, field

from proofs import bodies
from proofs.witness import Actor
from sparq.client import Config, Consumer, Producer
from sparq.client.errors import PublishError
from sparq.protocol.errors import RemoteError

TOPIC, CHANNEL = "library", "c"
PUBLISHER = 77
WORKERS = 8
CONFIG = Config(max_reconnect_delay=1.0)


@dataclass(slots=True)
class Shelf:
    """What was acknowledged to the producer, and what came to the consumer; numbers of messages."""

    run: int
    attempted: int = 0
    acknowledged: set[int] = field(default_factory=set)
    came: set[int] = field(default_factory=set)
    strange: int = 0

    @property
    def missing(self) -> int:
        """Acknowledged, and not come yet."""
        return len(self.acknowledged - self.came)


class OwnProducer(Actor):
    """Publishes one message after the other, several at a time."""

    def __init__(self, address: str, shelf: Shelf) -> None:
        super().__init__(address)
        self.shelf = shelf
        self.busy = 0
        self.chance = random.Random(f"{shelf.run} library")

    async def live(self) -> None:
        async with Producer(self.address, config=CONFIG) as producer:
            await asyncio.gather(*(self.publish(producer) for _ in range(WORKERS)))

    async def publish(self, producer: Producer) -> None:
        shelf = self.shelf
        self.busy += 1
        while not self.stopping:
            number = shelf.attempted
            shelf.attempted += 1
            author = bodies.Author(shelf.run, PUBLISHER, number)
            try:
                await producer.publish(TOPIC, bodies.write(author, self.chance))
            except (PublishError, RemoteError):
                # No answer, or that of an nsqd to which only a part of the command came.
                continue
            shelf.acknowledged.add(number)
        self.busy -= 1


class OwnConsumer(Actor):
    """Finishes whatever comes."""

    def __init__(self, address: str, shelf: Shelf) -> None:
        super().__init__(address)
        self.shelf = shelf

    async def live(self) -> None:
        shelf = self.shelf
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
                if author is None or author[:2] != (shelf.run, PUBLISHER):
                    shelf.strange += 1
                else:
                    shelf.came.add(author.number)
                message.finish()
