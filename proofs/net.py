"""Clients that reach nsqd over a bad network, and nsqlookupds that fail: `make net`.

Eight clients: four publishers and two consumers of the workload, and a producer and a consumer of
sparq's own library. Each connects through its own proxy (bad_network.py), which splits, delays,
doubles and cuts its connections; `--count` is the total number of cuts. Then the proxies stop
interfering, every client must reconnect (else it counts under `stuck clients`), everything is
consumed, and the checker counts.

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
from proofs.bad_network import NetworkCounts, Proxy
from proofs.checker import Verdict, check, total
from proofs.daemon_fixture import NSQD, RunningActors, data_folder, started
from proofs.outcome import Outcome, Plan, progress
from proofs.own_client import CHANNEL as OWN_CHANNEL
from proofs.own_client import TOPIC as OWN_TOPIC
from proofs.own_client import MessageRecord, OwnConsumer, OwnProducer
from proofs.workload import WAIT_SECONDS, Workload, until

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
    record: MessageRecord
    counts: NetworkCounts
    stuck: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Acknowledged messages of the workload and the library that were never delivered."""
        return self.verdict.lost + self.record.missing

    @property
    def holds(self) -> bool:
        """Whether there are no violations: no client is stuck, and no message lost or foreign."""
        strange = self.record.missing + self.record.strange
        return self.verdict.holds and not strange and not self.stuck and self.counts.left == 0

    @property
    def reconnect_p99(self) -> float:
        """99th percentile of the seconds from a cut until the client received bytes again."""
        ordered = sorted(self.counts.reconnects)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else 0.0


async def run_clients(plan: Plan, server: NsqdServer, *, is_patient: bool) -> Findings:
    """Run all clients over the bad network, then over a calm one until everything is consumed."""
    counts = NetworkCounts(plan.count)
    workload = Workload.of(server, plan.seed, delays=True)
    record = MessageRecord(workload.history.run)
    producer, consumer = OwnProducer("", record), OwnConsumer("", record)
    clients = [*workload.actors(), producer, consumer]
    async with AsyncExitStack() as stack:
        proxies = []
        for number, client in enumerate(clients):
            chance = random.Random(f"{plan.seed} network {number}")
            proxies.append(await stack.enter_async_context(Proxy(server.tcp, chance, counts)))
            client.address = proxies[-1].address
        await asyncio.to_thread(prepare, workload)
        stack.push_async_exit(running := RunningActors(*clients))
        await running.__aenter__()
        await until(lambda: counts.left == 0, "cut", seconds=2 * plan.count + WAIT_SECONDS)
        for proxy in proxies:
            proxy.calm = True
        stuck = await count_stuck(proxies)
        producer.stopping = True
        if not stuck:
            await workload.drained()
            await until(lambda: not producer.busy, "answered")
            await drained(record, WAIT_SECONDS if is_patient else CONTROL_SECONDS)
    return Findings(total(check(workload.history).values()), record, counts, stuck)


def prepare(workload: Workload) -> None:
    """Create the topics and channels before the first publish, so that channels get everything."""
    workload.make_topic()
    workload.server.post(f"/topic/create?topic={OWN_TOPIC}")
    workload.server.post(f"/channel/create?topic={OWN_TOPIC}&channel={OWN_CHANNEL}")


async def count_stuck(proxies: list[Proxy]) -> int:
    """Number of clients that have not reconnected although the network is calm."""
    progress("calm")
    with suppress(AssertionError):
        await until(lambda: not any(proxy.awaits_reply for proxy in proxies), "back")
    return sum(proxy.awaits_reply for proxy in proxies)


async def drained(record: MessageRecord, seconds: float) -> None:
    """Wait up to `seconds` until no message is missing; the rest count as missing."""
    with suppress(AssertionError):
        await until(lambda: not record.missing, "consumed", seconds)


def attempt(plan: Plan, module: str = NSQD) -> Findings:
    """One run in a folder of its own."""
    keep = plan.keep if module == NSQD else None
    with data_folder(keep) as folder, started(folder, module, FLAGS) as server:
        return asyncio.run(run_clients(plan, server, is_patient=module == NSQD))


def found_of(plan: Plan, folder: Path) -> discovery.Findings:
    rounds = discovery.ROUNDS if plan.count >= FULL_CUTS else 1
    return asyncio.run(discovery.attempt(folder, rounds))


def prove(plan: Plan) -> Outcome:
    """The proof and its control."""
    found = attempt(plan)
    with data_folder(None) as folder:
        lookups = found_of(plan, folder)
    record = found.record
    figures = (
        f"cuts {sum(found.counts.cuts.values()):,} ({len(found.counts.cuts)} kinds), doubled "
        f"connections {found.counts.doubles:,} · acknowledged lost {found.lost:,} · "
        f"stuck clients {found.stuck:,} · reconnect p99 {found.reconnect_p99:.1f} s · "
        f"{found.verdict.line()} · library: acknowledged {len(record.acknowledged):,}, "
        f"lost {record.missing:,} · {lookups.line()}"
    )
    held = found.holds and lookups.holds
    if plan.count >= FULL_CUTS:
        held = held and lookups.slowest <= discovery.PROMISED_SECONDS
    control = ""
    if plan.control:
        without = attempt(Plan(plan.seed, CONTROL_CUTS), DELIVERED_IS_DONE)
        control = f"with sent messages taken for received: lost {without.lost:,}"
        held = held and without.lost > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    # Otherwise the clients log hundreds of lost connections.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("net", prove, count=500, of="cuts"))
