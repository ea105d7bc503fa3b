"""Kills and restarts the daemons of a cluster at random: `make cluster`.

For N seconds, three nsqds and two nsqlookupds are ended independently of each other, by kill -9 or
SIGTERM, and started again; several may be down at once. Meanwhile a producer of sparq's client
library publishes to the nsqds that it finds. Two consumers, which are never restarted, handle a
channel each: one is given the nsqds' addresses, the other finds them through the nsqlookupds.

Then, with one nsqlookupd down at a time, consumers wait for topics that are new. At the end, both
consumers must have handled every acknowledged message. Each time an nsqd is back,
the proof measures how long each consumer takes to subscribe again. For the consumer that knows the
address, the time starts when the nsqd answers; for the other, when a running nsqlookupd lists it.
The client's options determine the bounds of these times.

The control (`late_commit`) writes after the OK: it must lose messages.
"""

import asyncio
import logging
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.servers import NsqdServer, Server, spawn_nsqlookupd

from proofs import outcome
from proofs.outcome import Outcome, Plan, progress
from proofs.workload import NSQD, data_folder, make_topic, started, until
from sparq.client import Config, Consumer, Message, Producer
from sparq.client.errors import PublishError
from sparq.protocol.errors import RemoteError

TOPIC, GIVEN, FOUND, NEW = "cluster", "given", "found", "new topic"
NSQDS, LOOKUPDS, NEW_TOPICS = 3, 2, 4
WORKERS = 16
PAUSE_SECONDS = 0.005
UP_SECONDS, DOWN_SECONDS = (0.5, 6.0), (0.1, 4.0)
GRACEFUL_SHARE = 0.25
SAMPLE_SECONDS = 0.05
POLL_SECONDS = RECONNECT_SECONDS = DIAL_SECONDS = 1.0
TRIED_SECONDS = RECONNECT_SECONDS + DIAL_SECONDS
BOUNDS = {
    GIVEN: TRIED_SECONDS,
    FOUND: max(TRIED_SECONDS, POLL_SECONDS + 1.0),
    NEW: POLL_SECONDS + 1.0,
}
"""Seconds, as documented in docs/guide.md."""
CONFIG = Config(
    lookupd_poll_interval=POLL_SECONDS,
    max_reconnect_delay=RECONNECT_SECONDS,
    dial_timeout=DIAL_SECONDS,
    max_in_flight=200,
    max_attempts=0,
)
CONTROL_SECONDS = 12
FULL_SECONDS = 60
"""From this many seconds on, the proof also fails if a consumer is back too late."""
PROMISES = ("P1", "P16")


@dataclass(slots=True)
class Findings:
    """The results of one run.

    Attributes:
        refused: publishes that failed.
        delays: seconds until a consumer was subscribed again, by its channel, or had a new topic's
            message.
        missing: messages acknowledged but not handled, by channel.
        deaths: how often an nsqd, and an nsqlookupd, was ended.
        stuck: connections that the consumers lack at the end.
    """

    acknowledged: int = 0
    refused: int = 0
    delays: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BOUNDS})
    missing: dict[str, int] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=lambda: [0, 0])
    stuck: int = 0

    @property
    def lost(self) -> int:
        """Acknowledged messages not handled, summed over both consumers."""
        return sum(self.missing.values())

    @property
    def holds(self) -> bool:
        """Whether no message was lost and no consumer was stuck."""
        return self.acknowledged > 0 and not self.lost and not self.stuck

    @property
    def in_time(self) -> bool:
        """Whether each consumer was always subscribed again within its bound."""
        return all(max(times, default=0.0) <= BOUNDS[name] for name, times in self.delays.items())

    def line(self) -> str:
        """Return the results in one line."""
        waits = ", ".join(
            f"{name} {len(times):,} times, slowest {max(times, default=0.0):.2f} s "
            f"(promised {BOUNDS[name]:.2f})"
            for name, times in self.delays.items()
        )
        return (
            f"nsqds ended {self.deaths[0]:,}, nsqlookupds {self.deaths[1]:,} · acknowledged "
            f"{self.acknowledged:,} · lost {self.lost:,} · stuck {self.stuck:,} · "
            f"back: {waits} · publishes given up {self.refused:,}"
        )


class Cluster:
    """The daemons, their producer and consumers, and the results."""

    def __init__(self, nsqds: list[NsqdServer], lookupds: list[Server], seed: int) -> None:
        self.nsqds, self.lookupds, self.seed = nsqds, lookupds, seed
        self.found = Findings()
        self.acknowledged: set[bytes] = set()
        self.handled: dict[str, set[bytes]] = {GIVEN: set(), FOUND: set()}
        self.publishing = True
        self.calm = asyncio.Event()
        places = [lookupd.http for lookupd in lookupds]
        self.producer = Producer(lookupd_http_addresses=places, config=CONFIG)
        given = [nsqd.tcp for nsqd in nsqds]
        self.consumers = {
            GIVEN: self.consumer(GIVEN, nsqd_tcp_addresses=given),
            FOUND: self.consumer(FOUND, lookupd_http_addresses=places),
        }

    def consumer(self, channel: str, **source: Any) -> Consumer:
        """Return a consumer that records the bodies it handles."""
        handled = self.handled[channel]

        def handle(message: Message) -> None:
            handled.add(message.body)

        return Consumer(TOPIC, channel, handler=handle, config=CONFIG, **source)

    async def run(self, seconds: float, new_topics: int) -> Findings:
        """End daemons for this many seconds, then wait until all messages are handled."""
        for nsqd in self.nsqds:
            await asyncio.to_thread(make_topic, nsqd, TOPIC, self.handled)
        async with self.producer, self.consumers[GIVEN], self.consumers[FOUND]:
            await until(self.all_connected, "connected")
            workers = [asyncio.create_task(self.publish(number)) for number in range(WORKERS)]
            interruptions = [
                asyncio.create_task(
                    self.end_and_restart(server, random.Random(f"{self.seed} {number}"))
                )
                for number, server in enumerate((*self.nsqds, *self.lookupds))
            ]
            await asyncio.sleep(seconds)
            self.calm.set()
            await asyncio.gather(*interruptions)
            progress("calm")
            for number in range(new_topics):
                await self.find_new_topic(f"new.{number}", self.lookupds[number % LOOKUPDS])
            self.publishing = False
            await asyncio.gather(*workers)
            with suppress(AssertionError):
                await until(self.all_connected, "back")
            self.found.stuck = sum(
                NSQDS - len(each.connections) for each in self.consumers.values()
            )
            with suppress(AssertionError):
                await until(lambda: not self.missing(), "handled", 20.0)
        self.missing()
        self.found.acknowledged = len(self.acknowledged)
        return self.found

    def all_connected(self) -> bool:
        """Return whether both consumers are subscribed at every nsqd."""
        return all(len(each.connections) == NSQDS for each in self.consumers.values())

    def missing(self) -> int:
        """Count and record the messages that are acknowledged but not handled."""
        self.found.missing = {
            name: len(self.acknowledged - handled) for name, handled in self.handled.items()
        }
        return self.found.lost

    async def publish(self, worker: int) -> None:
        """Publish unique messages, one at a time."""
        number = 0
        while self.publishing:
            body = b"%d-%d" % (worker, number)
            number += 1
            try:
                await self.producer.publish(TOPIC, body)
            except (PublishError, RemoteError):
                self.found.refused += 1
            else:
                self.acknowledged.add(body)
            await asyncio.sleep(PAUSE_SECONDS)

    # Trouble

    async def end_and_restart(self, server: Server, chance: random.Random) -> None:
        """End a daemon and start it again until `calm` is set; leave it running."""
        while not await self.is_calm_within(chance.uniform(*UP_SECONDS)):
            gracefully = chance.random() < GRACEFUL_SHARE
            await asyncio.to_thread(server.terminate if gracefully else server.kill9)
            self.found.deaths[server in self.lookupds] += 1
            await asyncio.sleep(chance.uniform(*DOWN_SECONDS))
            await asyncio.to_thread(server.start)
            if isinstance(server, NsqdServer):
                await asyncio.gather(self.back(server, GIVEN), self.back(server, FOUND))

    async def is_calm_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.calm.wait()
        return self.calm.is_set()

    async def back(self, nsqd: NsqdServer, name: str) -> None:
        """Record how long a consumer takes to subscribe to an nsqd that is up again."""
        clock = asyncio.get_running_loop().time
        began: float | None = None
        deadline = clock() + 10 * max(BOUNDS.values())
        while nsqd.tcp not in self.consumers[name].connections and clock() < deadline:
            if name == GIVEN or await asyncio.to_thread(self.is_listed, nsqd):
                began = clock() if began is None else began
            else:
                began = None
            await asyncio.sleep(SAMPLE_SECONDS)
        self.found.delays[name].append(0.0 if began is None else clock() - began)

    async def find_new_topic(self, topic: str, lost: Server) -> None:
        """Record how long a consumer waits for a new topic while an nsqlookupd is down."""
        clock = asyncio.get_running_loop().time
        places = [lookupd.http for lookupd in self.lookupds]
        nsqd = self.nsqds[0]
        await until(lambda: all(self.is_listed(nsqd, each) for each in self.lookupds), "registered")
        async with Consumer(topic, "c", lookupd_http_addresses=places, config=CONFIG) as consumer:
            await asyncio.to_thread(lost.kill9)
            began = clock()
            await asyncio.to_thread(nsqd.post, f"/pub?topic={topic}", b"x")
            with suppress(TimeoutError):
                async with asyncio.timeout(10 * BOUNDS[NEW]):
                    await (await anext(consumer)).finish()
            self.found.delays[NEW].append(clock() - began)
        await asyncio.to_thread(lost.start)

    def is_listed(self, nsqd: NsqdServer, *lookupds: Server) -> bool:
        """Return whether one of these nsqlookupds lists this nsqd; none given: any that runs."""
        listed = b'"tcp_port":%d' % nsqd.tcp_port
        for lookupd in lookupds or self.lookupds:
            with suppress(OSError):
                if listed in lookupd.request("GET", f"/lookup?topic={TOPIC}")[1].replace(b" ", b""):
                    return True
        return False


def attempt(plan: Plan, seconds: float, module: str = NSQD) -> Findings:
    """Do one run in its own folder."""
    keep, new_topics = (plan.keep, NEW_TOPICS) if module == NSQD else (None, 0)
    with data_folder(keep) as folder, ExitStack() as stack, ThreadPoolExecutor() as threads:
        names = [folder / f"lookupd-{number}" for number in range(LOOKUPDS)]
        lookupds = [stack.enter_context(each) for each in threads.map(nsqlookupd_in, names)]
        flags = [f"--lookupd-tcp-address={lookupd.tcp}" for lookupd in lookupds]
        folders = [folder / f"nsqd-{number}" for number in range(NSQDS)]
        starting = threads.map(partial(nsqd_in, module, flags), folders)
        nsqds = [stack.enter_context(each) for each in starting]
        return asyncio.run(of_cluster(nsqds, lookupds, plan.seed, seconds, new_topics))


def nsqlookupd_in(folder: Path) -> Server:
    return spawn_nsqlookupd(folder.parent, name=folder.name)


def nsqd_in(module: str, flags: list[str], folder: Path) -> NsqdServer:
    folder.mkdir(parents=True, exist_ok=True)
    return started(folder, module, ["--broadcast-address=127.0.0.1", *flags])


async def of_cluster(
    nsqds: list[NsqdServer], lookupds: list[Server], seed: int, seconds: float, new_topics: int
) -> Findings:
    return await Cluster(nsqds, lookupds, seed).run(seconds, new_topics)


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    found = attempt(plan, plan.count)
    held = found.holds and (found.in_time or plan.count < FULL_SECONDS)
    control = ""
    if plan.control:
        without = attempt(plan, CONTROL_SECONDS, "late_commit")
        control = f"with the write after the OK: lost {without.lost:,}"
        held = held and without.lost > 0
    return Outcome(PROMISES, found.line(), held, control)


if __name__ == "__main__":
    # The clients log every lost connection, hundreds of them.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("cluster", prove, count=120, of="seconds of trouble"))
