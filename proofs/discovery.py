"""Kills and restarts nsqlookupds while topics are published and consumed (P16).

One nsqd registers with two nsqlookupds, and consumers query both. In each round one nsqlookupd is
down, or both are restarted. Then a new topic is created, and a consumer already waits for it. All
the time, messages are published to the topic `steady` and consumed.
"""

import asyncio
import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd

from proofs.daemon_fixture import wait_until
from proofs.outcome import progress
from proofs.workload import WAIT_SECONDS, until
from sparq.client import Consumer, Producer

STEADY, CHANNEL = "steady", "c"
POLL_SECONDS = 1.0
PROMISED_SECONDS = POLL_SECONDS + 1.0
ROUNDS = 6
PUBLISH_SECONDS = 0.01
DOWN_SECONDS = 3.0
"""Long enough for nsqd to reach its longest pause between two attempts to connect."""


@dataclass(slots=True)
class Findings:
    """The results.

    Attributes:
        rounds: losses of one or both nsqlookupds.
        found: new topics whose message came in time.
        slowest: longest wait for a new topic, in seconds.
        acknowledged, missing: messages of the steady topic.
    """

    rounds: int = 0
    found: int = 0
    slowest: float = 0.0
    acknowledged: int = 0
    missing: int = 0

    @property
    def holds(self) -> bool:
        """Whether each new topic was found and no message was lost."""
        return self.found == self.rounds > 0 and not self.missing and self.acknowledged > 0

    def line(self) -> str:
        """Return the results in one line."""
        return (
            f"nsqlookupd losses {self.rounds:,}: new topics found {self.found:,}/{self.rounds:,}, "
            f"slowest {self.slowest:.1f} s (promised {PROMISED_SECONDS:.1f}), steady topic: "
            f"acknowledged {self.acknowledged:,}, lost {self.missing:,}"
        )


class Steady:
    """A topic that exists all the time; its consumer finds it only through the nsqlookupds."""

    def __init__(self, nsqd: NsqdServer, lookupds: list[Server]) -> None:
        self.nsqd = nsqd
        self.lookupds = lookupds
        self.acknowledged: set[bytes] = set()
        self.came: set[bytes] = set()
        self.stopping = False

    async def publish(self) -> None:
        async with Producer(self.nsqd.tcp) as producer:
            while not self.stopping:
                body = b"%d" % len(self.acknowledged)
                await producer.publish(STEADY, body)
                self.acknowledged.add(body)
                await asyncio.sleep(PUBLISH_SECONDS)

    async def consume(self) -> None:
        async with consumer_of(STEADY, self.lookupds) as consumer:
            async for message in consumer:
                self.came.add(message.body)
                message.finish()


def consumer_of(topic: str, lookupds: list[Server]) -> Consumer:
    """Return a consumer that queries these nsqlookupds every second."""
    return Consumer(
        topic,
        CHANNEL,
        lookupd_http_addresses=[lookupd.http for lookupd in lookupds],
        lookupd_poll_interval=POLL_SECONDS,
        lookupd_poll_jitter=0.0,
        max_in_flight=100,
    )


async def attempt(folder: Path, rounds: int) -> Findings:
    """Do this number of rounds, one after another."""
    found = Findings()
    with ExitStack() as stack:
        lookupds = [
            stack.enter_context(spawn_nsqlookupd(folder, name=f"lookupd-{number}"))
            for number in range(2)
        ]
        nsqd = stack.enter_context(spawn_nsqd(folder, lookupds=tuple(lookupds)))
        await asyncio.to_thread(nsqd.post, f"/topic/create?topic={STEADY}")
        await asyncio.to_thread(nsqd.post, f"/channel/create?topic={STEADY}&channel={CHANNEL}")
        steady = Steady(nsqd, lookupds)
        publisher = asyncio.create_task(steady.publish())
        consumer = asyncio.create_task(steady.consume())
        try:
            for number in range(rounds):
                progress(f"nsqlookupd loss {number + 1}")
                seconds = await lose(nsqd, lookupds, number)
                found.rounds += 1
                found.found += seconds is not None
                found.slowest = max(found.slowest, seconds or WAIT_SECONDS)
            steady.stopping = True
            await publisher
            await until(lambda: steady.acknowledged <= steady.came or consumer.done(), "consumed")
        finally:
            for task in (publisher, consumer):
                task.cancel()
            await asyncio.gather(publisher, consumer, return_exceptions=True)
    found.acknowledged = len(steady.acknowledged)
    found.missing = len(steady.acknowledged - steady.came)
    return found


async def lose(nsqd: NsqdServer, lookupds: list[Server], number: int) -> float | None:
    """Do one round.

    Returns:
        How many seconds a consumer waited for a new topic; None: its message never came.
    """
    topic = f"new.{number}"
    lost = lookupds if number % 3 == 2 else [lookupds[number % 3]]
    async with consumer_of(topic, lookupds) as consumer:
        for lookupd in lost:
            lookupd.kill9()
        if lost is lookupds:
            await asyncio.sleep(DOWN_SECONDS)
            await asyncio.gather(*(asyncio.to_thread(lookupd.start) for lookupd in lost))
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(nsqd.post, f"/pub?topic={topic}", b"x")
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                message = await anext(consumer)
        except TimeoutError:
            return None
        seconds = asyncio.get_running_loop().time() - began
        message.finish()
    if lost is not lookupds:
        await asyncio.gather(*(asyncio.to_thread(lookupd.start) for lookupd in lost))
    await asyncio.to_thread(wait_until, lambda: all(map(knows_nsqd, lookupds)), "registered")
    return seconds


def knows_nsqd(lookupd: Server) -> bool:
    """Return whether nsqd is registered with this nsqlookupd again, so the next round may begin."""
    status, answer = lookupd.request("GET", f"/lookup?topic={STEADY}")
    return status == 200 and bool(json.loads(answer)["producers"])
