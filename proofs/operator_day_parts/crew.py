"""The crew: one producer, which finds all nsqds, and a consumer for each channel.

The handlers do with a message what its body says (`book.Kind`), and write it into the book.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from proofs.operator_day_parts.book import Answer, Book, Kind, Place
from proofs.operator_day_parts.site import CONSUMER, PUBLISHER, Site
from proofs.workload import RunningActors, until
from sparq.client import Consumer, Message, Producer
from sparq.client.errors import PublishError
from sparq.protocol.errors import RemoteError

IN_FLIGHT = 24
LATE_SECONDS = 1.5
PAUSE_SECONDS = 0.01
BETWEEN_SECONDS = 0.05
"""Each task's pause between two messages."""

ACROSS = 4
"""Tasks that publish at the same time."""

DEFERRED_SECONDS, HOUR_SECONDS = 0.5, 3_500.0
MIX = ((Kind.AGAIN, 0.1), (Kind.LATE, 0.02), (Kind.POISON, 0.02))
LATE_CHANNEL = "late"
"""Channels of this name leave some messages without an answer."""


class Crew:
    """Publishes and consumes.

    Args:
        site: the daemons.
        book: where they write down what they do.
        seed: seed of its random choices.

    Attributes:
        broken: channels whose handler cannot handle poison.
        refused: publishes that failed.
        traffic: topics to which it publishes all the time.
    """

    def __init__(self, site: Site, book: Book, seed: int) -> None:
        self.site, self.book = site, book
        self.chance = random.Random(f"{seed} crew")
        self.broken: set[Place] = set()
        self.refused: list[str] = []
        self.traffic: list[str] = []
        self.consumers: dict[Place, Consumer] = {}
        self.producer = Producer(
            lookupd_http_addresses=site.lookupd_addresses, config=site.config(PUBLISHER)
        )
        self._under_way: dict[str, int] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Crew:
        await self._stack.enter_async_context(self.producer)
        self._stack.push_async_callback(self._leave_all)
        await self._stack.enter_async_context(RunningActors(*[self] * ACROSS))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _leave_all(self) -> None:
        await asyncio.gather(*(self.leave(place) for place in [*self.consumers]))

    # Publishing

    async def live(self) -> None:
        """Publish to the topics of `traffic`, one message after another."""
        while True:
            if self.traffic:
                topic = self.chance.choice(self.traffic)
                await self.publish(topic, self._kind(), self._defer())
            await asyncio.sleep(BETWEEN_SECONDS)

    def _kind(self) -> Kind:
        value = self.chance.random()
        for kind, share in MIX:
            if (value := value - share) < 0:
                return kind
        return Kind.PLAIN

    def _defer(self) -> float:
        return DEFERRED_SECONDS * self.chance.random() if self.chance.random() < 0.05 else 0.0

    async def publish(self, topic: str, kind: Kind = Kind.PLAIN, defer: float = 0.0) -> str:
        """Publish one message; return the node that acknowledged it, or "" if none did."""
        number, body = self.book.body(kind)
        self._under_way[topic] = self._under_way.get(topic, 0) + 1
        try:
            if defer:
                receipt = await self.producer.publish_deferred(topic, body, defer)
            else:
                receipt = await self.producer.publish(topic, body)
        except (PublishError, RemoteError) as error:
            self.refused.append(f"{topic}: {error}")
            return ""
        finally:
            self._under_way[topic] -= 1
        self.book.doubtful += receipt.resent
        stays = defer >= HOUR_SECONDS
        self.book.published(topic, number, kind, receipt.nsqd, deferred=stays)
        return receipt.nsqd

    async def burst(
        self, topic: str, count: int, kind: Kind = Kind.PLAIN, defer: float = 0.0
    ) -> None:
        """Publish several messages."""
        for _ in range(count):
            await self.publish(topic, kind, defer)

    async def stop_traffic(self, topics: Sequence[str] = ()) -> None:
        """Stop publishing to these topics, or to all, and wait for the answers."""
        for topic in topics or [*self.traffic]:
            self.traffic.remove(topic)
        wanted = topics or [*self._under_way]
        await until(lambda: not any(map(self._under_way.get, wanted)), "all publishes answered")

    # Consuming

    async def join(self, place: Place, token: str = CONSUMER) -> Consumer:
        """Start the consumer of a channel."""
        options = {"msg_timeout": LATE_SECONDS} if place[1] == LATE_CHANNEL else {}
        consumer = Consumer(
            *place,
            lookupd_http_addresses=self.site.lookupd_addresses,
            handler=self._handler(place),
            concurrency=IN_FLIGHT,
            config=self.site.config(token, max_in_flight=IN_FLIGHT, stop_timeout=2.0, **options),
        )
        self.book.joined[place] = len(self.book.deliveries[place])
        await consumer.__aenter__()
        self.consumers[place] = consumer
        return consumer

    async def leave(self, place: Place) -> None:
        """Stop the consumer of a channel."""
        await self.consumers.pop(place).__aexit__(None, None, None)

    def _handler(self, place: Place) -> Callable[[Message], Awaitable[None]]:
        async def handle(message: Message) -> None:
            message.auto_respond = False
            number, kind = self.book.delivered(place, message)
            answer = self._answer(place, kind, message)
            # Noted first: the next delivery may come before the await returns.
            self.book.answered(place, message, number, answer)
            if answer is Answer.FINISHED:
                await message.finish()
            elif answer is Answer.REQUEUED:
                await message.requeue(0.0, backoff=False)
            elif answer is Answer.PUT_OFF:
                await message.requeue(HOUR_SECONDS, backoff=False)

        return handle

    def _answer(self, place: Place, kind: Kind, message: Message) -> Answer:
        is_first = message.attempts == 1
        if message.stale:
            return Answer.NONE  # nsqd has taken it back: an answer would have no effect
        if kind is Kind.POISON and place in self.broken:
            return Answer.REQUEUED
        if kind is Kind.AGAIN and is_first:
            return Answer.REQUEUED
        if kind is Kind.LATE and is_first and place[1] == LATE_CHANNEL:
            return Answer.NONE
        if kind is Kind.HELD and place[1] != LATE_CHANNEL:
            return Answer.NONE
        return Answer.PUT_OFF if kind is Kind.LATER else Answer.FINISHED

    def connections(self) -> dict[Place, list[str]]:
        """Return the nodes where each consumer is subscribed."""
        return {place: each.connections for place, each in self.consumers.items()}

    def are_connected(self) -> bool:
        """Return whether each consumer is subscribed at every node that has its topic."""
        places = self.book.places
        return all(
            {*each.connections} >= places.get(topic, set())
            for (topic, _), each in self.consumers.items()
        )
