"""Clients that reach nsqd over a bad network, and nsqlookupds that fail: `make net`.

Eight clients: four publishers and two consumers of the witness, and a producer and a consumer of
sparq's own library. Each connects through its own proxy (chaos.py), which splits, delays, doubles
and cuts its connections; `--count` is the total number of cuts. Then the proxies stop interfering,
every client must reconnect (else it counts under `stuck clients`), everything is consumed, and the
checker counts.

A second part (discovery.py) kills one of two nsqlookupds, or restarts both. Nothing may be lost,
and a consumer must find a new topic within its poll interval plus one second.

The control (controls/delivered_is_done.py) finishes the messages in flight on a lost connection: it
must lose messages.
"""

import asyncio
import logging
import math
import random
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import NsqdServer

from proofs import discovery, outcome
from proofs.chaos import Proxy, Toll
from proofs.checker import Verdict, check, total
from proofs.daemon_fixture import NSQD, Crew, data_folder, started
from proofs.outcome import Outcome, Plan, progress
from proofs.own_client import CHANNEL as OWN_CHANNEL
from proofs.own_client import TOPIC as OWN_TOPIC
from proofs.own_client import OwnConsumer, OwnProducer, Shelf
from proofs.workload import WAIT_SECONDS, Witness, until

FLAGS = ("--requeue-on-disconnect", "--msg-timeout=60s", "--max-bytes-per-file=4194304")
CONTROL_CUTS = 40
CONTROL_SECONDS = 2.0
"""In the control a message counts as lost if it is not delivered within this time."""
FULL_CUTS = 300
"""With at least this number of cuts, the waiting times of the discovery count too."""
DELIVERED_IS_DONE = "proofs.controls.delivered_is_done"
PROMISES = ("P3", "P12", "P16")


@dataclass(slots=True)
class Findings:
    """Results of one run."""

    verdict: Verdict
    shelf: Shelf
    toll: Toll
    stuck: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Acknowledged messages of the witness and the library that were never delivered."""
        return self.verdict.lost + self.shelf.missing

    @property
    def holds(self) -> bool:
        """Whether there are no violations: no client is stuck, and no message lost or foreign."""
        strange = self.shelf.missing + self.shelf.strange
        return self.verdict.holds and not strange and not self.stuck and self.toll.left == 0

    @property
    def reconnect_p99(self) -> float:
        """99th percentile of the seconds from a cut until the client received bytes again."""
        ordered = sorted(self.toll.reconnects)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else 0.0


async def go_through(plan: Plan, server: NsqdServer, *, is_patient: bool) -> Findings:
    """Run all clients over the bad network, then over a calm one until everything is consumed."""
    toll = Toll(plan.count)
    witness = Witness.of(server, plan.seed, delays=True)
    shelf = Shelf(witness.history.run)
    producer, consumer = OwnProducer("", shelf), OwnConsumer("", shelf)
    clients = [*witness.actors(), producer, consumer]
    async with AsyncExitStack() as stack:
        proxies = []
        for number, client in enumerate(clients):
            chance = random.Random(f"{plan.seed} network {number}")
            proxies.append(await stack.enter_async_context(Proxy(server.tcp, chance, toll)))
            client.address = proxies[-1].address
        await asyncio.to_thread(prepare, witness)
        stack.push_async_exit(crew := Crew(*clients))
        await crew.__aenter__()
        await until(lambda: toll.left == 0, "cut", seconds=2 * plan.count + WAIT_SECONDS)
        for proxy in proxies:
            proxy.calm = True
        stuck = await who_is_stuck(proxies)
        producer.stopping = True
        if not stuck:
            await witness.drained()
            await until(lambda: not producer.busy, "answered")
            await drained(shelf, WAIT_SECONDS if is_patient else CONTROL_SECONDS)
    return Findings(total(check(witness.history).values()), shelf, toll, stuck)


def prepare(witness: Witness) -> None:
    """Create the topics and channels before the first publish, so that channels get everything."""
    witness.make_topic()
    witness.server.post(f"/topic/create?topic={OWN_TOPIC}")
    witness.server.post(f"/channel/create?topic={OWN_TOPIC}&channel={OWN_CHANNEL}")


async def who_is_stuck(proxies: list[Proxy]) -> int:
    """Number of clients that have not reconnected although the network is calm."""
    progress("calm")
    with suppress(AssertionError):
        await until(lambda: not any(proxy.is_owed for proxy in proxies), "back")
    return sum(proxy.is_owed for proxy in proxies)


async def drained(shelf: Shelf, seconds: float) -> None:
    """Wait up to `seconds` until no message is missing; the rest count as missing."""
    with suppress(AssertionError):
        await until(lambda: not shelf.missing, "consumed", seconds)


def attempt(plan: Plan, module: str = NSQD) -> Findings:
    """One run in a folder of its own."""
    keep = plan.keep if module == NSQD else None
    with data_folder(keep) as folder, started(folder, module, FLAGS) as server:
        return asyncio.run(go_through(plan, server, is_patient=module == NSQD))


def found_of(plan: Plan, folder: Path) -> discovery.Findings:
    rounds = discovery.ROUNDS if plan.count >= FULL_CUTS else 1
    return asyncio.run(discovery.attempt(folder, rounds))


def prove(plan: Plan) -> Outcome:
    """The proof and its control."""
    found = attempt(plan)
    with data_folder(None) as folder:
        lookups = found_of(plan, folder)
    shelf = found.shelf
    figures = (
        f"cuts {sum(found.toll.cuts.values()):,} ({len(found.toll.cuts)} kinds), doubled "
        f"connections {found.toll.doubles:,} · acknowledged lost {found.lost:,} · "
        f"stuck clients {found.stuck:,} · reconnect p99 {found.reconnect_p99:.1f} s · "
        f"{found.verdict.line()} · library: acknowledged {len(shelf.acknowledged):,}, "
        f"lost {shelf.missing:,} · {lookups.line()}"
    )
    held = found.holds and lookups.holds
    if plan.count >= FULL_CUTS:
        held = held and lookups.slowest <= discovery.PROMISED_SECONDS
    control = ""
    if plan.control:
        without = attempt(Plan(plan.seed, CONTROL_CUTS), DELIVERED_IS_DONE)
        control = f"with what was sent taken for received: lost {without.lost:,}"
        held = held and without.lost > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    # Otherwise the clients log hundreds of lost connections.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("net", prove, count=500, of="cuts"))
