"""nsqd behind a bad network, and nsqlookupds that come and go: `make net`.

Each of eight clients has a network of its own (chaos.py), which splits, delays, doubles and cuts
its connections, so many times in all: four publishers and two consumers of the witness, and a
producer and a consumer of sparq's own library. Then the network is calm, everybody must be back
(`stuck clients`), everything is consumed, and the checker counts.

Beside it (discovery.py): one nsqlookupd of two is killed, or both are restarted; meanwhile nothing
is lost, and a consumer finds a topic that is new within its poll interval and a second.

The control (delivered_is_done.py) finishes what a lost connection had in flight: there messages
must be lost.
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
"""What has not come by then is lost there."""
FULL_CUTS = 300
"""From so many on the waiting times of the discovery count, too."""
DELIVERED_IS_DONE = "proofs.controls.delivered_is_done"
PROMISES = ("P3", "P12", "P16")


@dataclass(slots=True)
class Findings:
    """What one run came to."""

    verdict: Verdict
    shelf: Shelf
    toll: Toll
    stuck: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Acknowledged messages that never came, of the witness and the library."""
        return self.verdict.lost + self.shelf.missing

    @property
    def holds(self) -> bool:
        """Whether nobody was stuck and nothing lost."""
        strange = self.shelf.missing + self.shelf.strange
        return self.verdict.holds and not strange and not self.stuck and self.toll.left == 0

    @property
    def reconnect_p99(self) -> float:
        """Seconds from a cut until something came back, but for one in a hundred."""
        ordered = sorted(self.toll.reconnects)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else 0.0


async def go_through(plan: Plan, server: NsqdServer, *, is_patient: bool) -> Findings:
    """Everybody works over a bad network, then over a calm one to the end."""
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
    """Topics and channels, so that each channel gets everything."""
    witness.make_topic()
    witness.server.post(f"/topic/create?topic={OWN_TOPIC}")
    witness.server.post(f"/channel/create?topic={OWN_TOPIC}&channel={OWN_CHANNEL}")


async def who_is_stuck(proxies: list[Proxy]) -> int:
    """How many clients have not come back though nothing hinders them any more."""
    progress("calm")
    with suppress(AssertionError):
        await until(lambda: not any(proxy.is_owed for proxy in proxies), "back")
    return sum(proxy.is_owed for proxy in proxies)


async def drained(shelf: Shelf, seconds: float) -> None:
    """Wait for what is still on its way; what does not come is counted as missing."""
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
    # Whoever is cut off says so, hundreds of times.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("net", prove, count=500, of="cuts"))
