"""Consumers that never read their messages: `make slow`.

A topic has a backlog of N MiB. For every 2,500 of its messages, one consumer subscribes with RDY
2500 and never reads a byte. Meanwhile a workload publishes and consumes another topic.

1. The daemon's memory never exceeds a bound that does not depend on the backlog: its memory at the
   start, working memory, the block cache, publishes waiting to be written, two output buffers per
   connection, and a fixed number of bytes per message in flight.
2. The workload goes on, and nothing of it is lost.
3. A consumer that does not read is dropped after its heartbeat interval, and every message sent to
   stuck consumers can still be delivered.
4. In the end SIGTERM ends nsqd within two seconds, whatever the backlog, not counting the time that
   it waits for a processor because of other programs.

The control (`never_paused`) keeps writing to consumers that do not read: there the memory must
exceed the bound.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.servers import NsqdServer
from tests.support.v2_client import MAGIC, OK, OK_BYTES, V2Client

from proofs import outcome
from proofs.actors import connect
from proofs.checker import Verdict
from proofs.lateness import waited_seconds
from proofs.outcome import Outcome, Plan, progress
from proofs.workload import NSQD, WAIT_SECONDS, Workload, data_folder, make_topic, started, until
from sparq.protocol.commands import identify, mpub, rdy, sub

STUCK, CHANNEL = "stuck", "c"
BODY_BYTES = 4_096
MPUB_BODIES = 64
RDY = 2_500
WINDOW = 8
STEP_COMMANDS = 500
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
FLAGS = ("--msg-timeout=15m", "--max-msg-timeout=15m")
STOP_SECONDS_MAX = 2.0
PROMISES = ("P11", "P12", "P15")


@dataclass(slots=True)
class Findings:
    """Results of one run; memory in bytes."""

    messages: int
    consumers: int
    impatient: int
    bound: int = 0
    peak: int = 0
    dropped: int = 0
    kept: int = 0
    stop_seconds: float = 0.0
    verdict: Verdict | None = None


class Proof:
    """One run against one nsqd."""

    def __init__(self, plan: Plan, server: NsqdServer) -> None:
        self.server = server
        self.workload = Workload(server, plan.seed)
        messages = plan.count * MIB // BODY_BYTES // MPUB_BODIES * MPUB_BODIES
        consumers = max(2, messages // RDY)
        self.found = Findings(messages, consumers, max(1, consumers // 10))

    async def run(self, *, is_control: bool) -> Findings:
        """Run all steps; for a control, only those that show that the guard is needed."""
        found, server = self.found, self.server
        found.bound = (
            memory(server.pid, "VmRSS")
            + CACHE_BYTES
            + UNWRITTEN_BYTES
            + WORKING_BYTES
            + found.consumers * OUTPUT_BYTES
            + found.messages * IN_FLIGHT_BYTES
        )
        await asyncio.to_thread(self.workload.make_topic)
        await asyncio.to_thread(make_topic, server, STUCK, (CHANNEL,))
        await self.fill()
        if is_control:
            with self.stuck_consumers(found.consumers):
                await self.until_they_are_stuck()
        else:
            async with self.workload.running():
                with self.stuck_consumers(found.consumers):
                    await self.until_they_are_stuck()
                    await self.workload.goes_on(STEP_COMMANDS)
                await until(lambda: self.figure("client_count") == 0, "gone")
                await self.until_dropped()
                await self.workload.drained()
            found.verdict = self.workload.verdict()
        found.peak = memory(server.pid, "VmHWM")
        found.kept = self.figure("depth") + self.figure("in_flight_count")
        return found

    async def fill(self) -> None:
        """Publish the backlog."""
        batch = mpub(STUCK, [os.urandom(BODY_BYTES) for _ in range(MPUB_BODIES)])
        connection = await connect(self.server.tcp)
        unanswered = self.found.messages // MPUB_BODIES
        left = unanswered - WINDOW
        await connection.send_all(batch * min(WINDOW, unanswered))
        while unanswered:
            for kind, data in await connection.frames():
                assert (kind, data) == OK, data
                unanswered -= 1
                if left > 0:
                    await connection.send_all(batch)
                    left -= 1
            progress(f"backlog {self.found.messages - unanswered * MPUB_BODIES:,}")
        connection.abort()

    async def until_dropped(self) -> None:
        """Check that nsqd drops exactly the stuck consumers with a short heartbeat interval."""
        found = self.found
        patient = found.consumers - found.impatient
        with (
            self.stuck_consumers(patient),
            self.stuck_consumers(found.impatient, heartbeat_ms=1_000),
        ):
            await until(lambda: self.figure("client_count") <= patient, "dropped")
            found.dropped = found.consumers - self.figure("client_count")

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
        before, now = -1, 0
        while before != now or self.figure("client_count") != self.found.consumers:
            await asyncio.sleep(0.5)
            before, now = now, self.figure("in_flight_count")

    def figure(self, name: str) -> int:
        """Return one of nsqd's figures of the stuck consumers' channel."""
        return int(self.server.channel(STUCK, CHANNEL)[name])


def seconds_of_stop(server: NsqdServer) -> float:
    """Stop nsqd; return how long that took, without its waits for a processor."""
    process = server.process
    assert process is not None
    began, before = time.monotonic(), waited_seconds(process.pid)
    waited = 0.0
    os.kill(process.pid, signal.SIGTERM)
    while (status := process.poll()) is None:
        waited = max(waited, waited_seconds(process.pid) - before)
        time.sleep(0.005)
    assert status == 0, server.log_text
    return time.monotonic() - began - waited


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
        found = asyncio.run(Proof(plan, server).run(is_control=module != NSQD))
        found.stop_seconds = seconds_of_stop(server)
        return found


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    found = attempt(plan)
    assert found.verdict is not None
    figures = (
        f"backlog {plan.count:,} MiB, {found.consumers:,} consumers that never read · "
        f"RSS peak {found.peak >> 20:,} MiB (bound {found.bound >> 20:,}) · "
        f"dropped by the write timeout {found.dropped:,}/{found.impatient:,} · "
        f"still there {found.kept:,}/{found.messages:,} · stopped in {found.stop_seconds:.2f} s "
        f"(bound {STOP_SECONDS_MAX:g}) · beside them: {found.verdict.line()}"
    )
    held = found.peak <= found.bound and found.kept == found.messages and found.verdict.holds
    held = held and found.dropped == found.impatient and found.stop_seconds <= STOP_SECONDS_MAX
    control = ""
    if plan.control:
        without = attempt(Plan(plan.seed, min(plan.count, 256)), "never_paused")
        control = (
            f"without a pause while clients do not read: RSS peak {without.peak >> 20:,} MiB "
            f"(bound {without.bound >> 20:,})"
        )
        held = held and without.peak > without.bound
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("slow", prove, count=2_048, of="MiB of backlog"))
