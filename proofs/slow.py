"""Consumers that never read their messages: `make slow`.

A topic has a backlog of N MiB. For every 2,500 of its messages, one consumer subscribes with RDY
2500 and never reads a byte. Meanwhile another topic is published to and consumed, in short rounds
alternately with and without the stuck consumers.

1. The daemon's memory never exceeds a bound that does not depend on the backlog: its memory at the
   start, working memory, the block cache, publishes waiting to be written, two output buffers per
   connection, and a fixed number of bytes per message in flight.
2. A message of the healthy topic costs the daemon no more CPU time than without stuck consumers.
   (Its rate is shown, too, but depends on the machine's other load.)
3. A consumer that does not read is dropped after its heartbeat interval, and every message sent to
   stuck consumers can still be delivered.

The control (controls/never_paused.py) keeps writing to consumers that do not read: there the memory
must exceed the bound.
"""

import asyncio
import json
import os
import socket
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.servers import NsqdServer
from tests.support.v2_client import (
    FRAME_MESSAGE,
    MAGIC,
    OK,
    OK_BYTES,
    AsyncV2Client,
    V2Client,
    decode_message,
)

from proofs import outcome
from proofs.actors import Actor, connect
from proofs.daemon_fixture import NSQD, RunningActors, data_folder, started
from proofs.outcome import Outcome, Plan, progress
from proofs.workload import WAIT_SECONDS, until
from sparq.protocol.commands import identify, mpub, rdy, sub

STUCK, HEALTHY, CHANNEL = "stuck", "healthy", "c"
BODY_BYTES = 4_096
MPUB_BODIES = 64
RDY = 2_500
WINDOW = 8
HEALTHY_BODIES = 100
HEALTHY_BYTES = 200
ROUNDS = 5
FULL_ROUNDS = 15
"""Number of rounds from which on the rate is judged: single rounds are between 0.6 and 2.2 on a
shared machine, and the median of five was between 0.77 and 1.10 in four runs of the same code."""
MEASURED_SECONDS = 1.0
HEALTHY_SHARE_MIN = 0.8
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
MIB: Final = 1 << 20
CACHE_BYTES = 64 * MIB
UNWRITTEN_BYTES = 16 * MIB
"""One connection's publishes that are not on disk yet, decoded and encoded."""
WORKING_BYTES = 32 * MIB
"""Additional memory of the interpreter and its allocator under load."""
OUTPUT_BYTES = 2 * MIB
"""Two output buffers of a connection."""
IN_FLIGHT_BYTES = 64
"""Maximum memory per message in flight."""
FULL_MIB = 1_024
"""Below this backlog the run is too short for meaningful rates."""
FLAGS = ("--msg-timeout=15m", "--max-msg-timeout=15m")
NEVER_PAUSED = "proofs.controls.never_paused"
PROMISES = ("P11", "P12")


class Flow(Actor):
    """The healthy topic's only publisher or consumer; each counts its messages."""

    def __init__(self, address: str, *, consumes: bool) -> None:
        super().__init__(address)
        self.consumes = consumes
        self.count = 0

    async def work(self, connection: AsyncV2Client) -> None:
        await (self.consume(connection) if self.consumes else self.publish(connection))

    async def publish(self, connection: AsyncV2Client) -> None:
        batch = mpub(HEALTHY, [os.urandom(HEALTHY_BYTES)] * HEALTHY_BODIES)
        await connection.send_all(batch * WINDOW)
        while not self.stopping:
            answers = await connection.frames()
            self.count += len(answers) * HEALTHY_BODIES
            await connection.send_all(batch * len(answers))

    async def consume(self, connection: AsyncV2Client) -> None:
        await connection.send_all(sub(HEALTHY, CHANNEL) + b"RDY %d\n" % RDY)
        while not self.stopping:
            messages = [
                decode_message(data)
                for kind, data in await connection.frames()
                if kind == FRAME_MESSAGE
            ]
            await connection.send_all(b"".join(b"FIN %s\n" % message.id for message in messages))
            self.count += len(messages)


class Pace(NamedTuple):
    """Rate of the healthy topic: messages per second, and per second of nsqd's CPU time."""

    rate: float
    per_cpu_second: float


@dataclass(slots=True)
class Findings:
    """Results of one run; memory in bytes."""

    messages: int = 0
    consumers: int = 0
    bound: int = 0
    peak: int = 0
    alone: list[Pace] = field(default_factory=list)
    beside: list[Pace] = field(default_factory=list)
    dropped: int = 0
    impatient: int = 0
    kept: int = 0

    @property
    def share(self) -> Pace:
        """The healthy consumer's pace with stuck consumers, relative to that without them."""
        pairs = list(zip(self.beside, self.alone, strict=True))
        return Pace(
            statistics.median(beside.rate / alone.rate for beside, alone in pairs),
            statistics.median(b.per_cpu_second / a.per_cpu_second for b, a in pairs),
        )


class Proof:
    """One run against one nsqd."""

    def __init__(self, plan: Plan, server: NsqdServer) -> None:
        self.server = server
        self.rounds = FULL_ROUNDS if plan.count >= FULL_MIB else ROUNDS
        self.messages = plan.count * MIB // BODY_BYTES // MPUB_BODIES * MPUB_BODIES
        self.consumers = max(2, self.messages // RDY)
        self.impatient = max(1, self.consumers // 10)
        self.found = Findings(self.messages, self.consumers, impatient=self.impatient)

    async def run(self, *, is_control: bool) -> Findings:
        """Run all steps; for a control, only those that show that the guard is needed."""
        found = self.found
        found.bound = (
            memory(self.server.pid, "VmRSS")
            + CACHE_BYTES
            + UNWRITTEN_BYTES
            + WORKING_BYTES
            + self.consumers * OUTPUT_BYTES
            + self.messages * IN_FLIGHT_BYTES
        )
        for topic in (STUCK, HEALTHY):
            await self.post(f"/topic/create?topic={topic}")
            await self.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
        await self.fill()
        if is_control:
            with self.stuck_consumers(self.consumers):
                await self.until_they_are_stuck()
        else:
            await self.measure_healthy_topic()
            await self.until_dropped()
        found.peak = memory(self.server.pid, "VmHWM")
        figures = await asyncio.to_thread(self.server.channel, STUCK, CHANNEL)
        found.kept = figures["depth"] + figures["in_flight_count"]
        return found

    async def fill(self) -> None:
        """Publish the backlog."""
        batch = mpub(STUCK, [os.urandom(BODY_BYTES) for _ in range(MPUB_BODIES)])
        connection = await connect(self.server.tcp)
        left = unanswered = self.messages // MPUB_BODIES
        for _ in range(min(WINDOW, left)):
            await connection.send_all(batch)
            left -= 1
        while unanswered:
            for kind, data in await connection.frames():
                assert (kind, data) == OK, data
                unanswered -= 1
                if left:
                    await connection.send_all(batch)
                    left -= 1
            progress(f"backlog {self.messages - unanswered * MPUB_BODIES:,}")
        connection.abort()

    async def measure_healthy_topic(self) -> None:
        """Measure the healthy topic's rate alternately without and with the stuck consumers."""
        consumer = Flow(self.server.tcp, consumes=True)
        async with RunningActors(Flow(self.server.tcp, consumes=False), consumer):
            for _ in range(self.rounds):
                self.found.alone.append(await self.pace(consumer))
                with self.stuck_consumers(self.consumers):
                    await self.until_they_are_stuck()
                    self.found.beside.append(await self.pace(consumer))
                await self.until_clients(0)
                progress(f"healthy: {self.found.share.rate:.0%}")

    async def pace(self, consumer: Flow) -> Pace:
        """Measure its pace over a short time, starting with its next message."""
        first = consumer.count
        await until(lambda: consumer.count > first, "consumed")
        loop, pid = asyncio.get_running_loop(), self.server.pid
        before, began, spent = consumer.count, loop.time(), cpu_seconds(pid)
        await asyncio.sleep(MEASURED_SECONDS)
        count = consumer.count - before
        seconds, cpu = loop.time() - began, cpu_seconds(pid) - spent
        return Pace(count / seconds, count / max(cpu, TICK_SECONDS))

    async def until_dropped(self) -> None:
        """Check that nsqd drops exactly the stuck consumers with a short heartbeat interval."""
        patient = self.consumers - self.impatient
        with (
            self.stuck_consumers(patient),
            self.stuck_consumers(self.impatient, heartbeat_ms=1_000),
        ):
            await self.until_clients(patient)
            self.found.dropped = self.consumers - await self.clients()

    @contextmanager
    def stuck_consumers(self, count: int, heartbeat_ms: int = 0) -> Iterator[None]:
        """Hold `count` consumers that never read."""
        held = [self.stuck_consumer(heartbeat_ms) for _ in range(count)]
        try:
            yield
        finally:
            for connection in held:
                connection.close()

    def stuck_consumer(self, heartbeat_ms: int) -> V2Client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", self.server.tcp_port))
        settings = json.dumps({"heartbeat_interval": heartbeat_ms} if heartbeat_ms else {}).encode()
        connection.settimeout(WAIT_SECONDS)
        client = V2Client(connection, MAGIC + identify(settings) + sub(STUCK, CHANNEL))
        assert client.receive(2 * len(OK_BYTES)) == 2 * OK_BYTES
        client.send(rdy(RDY))
        return client

    async def until_they_are_stuck(self) -> None:
        """Wait until nsqd delivers nothing more although messages are waiting."""
        before = -1
        while True:
            figures = await asyncio.to_thread(self.server.channel, STUCK, CHANNEL)
            if figures["in_flight_count"] == before and figures["client_count"] == self.consumers:
                return
            before = figures["in_flight_count"]
            await asyncio.sleep(0.5)

    async def clients(self) -> int:
        figures = await asyncio.to_thread(self.server.channel, STUCK, CHANNEL)
        return int(figures["client_count"])

    async def until_clients(self, count: int) -> None:
        async with asyncio.timeout(60):
            while await self.clients() > count:  # noqa: ASYNC110 - asked over HTTP, no event
                await asyncio.sleep(0.1)

    async def post(self, path: str) -> None:
        await asyncio.to_thread(self.server.post, path)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_SECONDS


def memory(pid: int, name: str) -> int:
    """Return one of the kernel's figures on a process's memory, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise ValueError(name)


def attempt(plan: Plan, module: str = NSQD) -> Findings:
    """Do one run in a folder of its own."""
    keep = plan.keep if module == NSQD else None
    with data_folder(keep) as folder, started(folder, module, FLAGS) as server:
        return asyncio.run(Proof(plan, server).run(is_control=module != NSQD))


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    found = attempt(plan)
    figures = (
        f"backlog {plan.count:,} MiB, {found.consumers:,} consumers that never read · "
        f"RSS peak {found.peak >> 20:,} MiB (bound {found.bound >> 20:,}) · "
        f"healthy consumer's rate {found.share.rate:.0%}, messages per second of CPU "
        f"{found.share.per_cpu_second:.0%} · "
        f"dropped by the write timeout {found.dropped:,}/{found.impatient:,} · "
        f"still there {found.kept:,}/{found.messages:,}"
    )
    held = found.peak <= found.bound and found.kept == found.messages
    held = held and found.dropped == found.impatient
    if plan.count >= FULL_MIB:
        held = held and found.share.per_cpu_second >= HEALTHY_SHARE_MIN
    control = ""
    if plan.control:
        without = attempt(Plan(plan.seed, min(plan.count, 256)), NEVER_PAUSED)
        control = (
            f"without a pause while clients do not read: RSS peak {without.peak >> 20:,} MiB "
            f"(bound {without.bound >> 20:,})"
        )
        held = held and without.peak > without.bound
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("slow", prove, count=2_048, of="MiB of backlog"))
