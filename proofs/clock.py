"""Moves nsqd's wall clock by days: `make clock`.

nsqd runs under libfaketime (faked_time.py), with a workload all the time. In addition, a holder
keeps messages in flight, and a deferrer publishes messages with DPUB and defers each once more with
REQ, for 10 ms to 3 s each time.

The clock jumps N times, by up to a day, forward and back. No message in flight is redelivered. No
deferred message comes before its due time on the proof's monotonic clock, or more than 100 ms after
it, not counting time for which the machine or the proof itself was stalled (lateness.py). Then all
messages are drained, and the checker counts. `make simulate` starts brokers on other days.

There are two controls. With `wall_timeouts` a jump must cause redeliveries and early deferred
messages. With `late_timers` deferred messages must be late.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.support.servers import NsqdServer
from tests.support.v2_client import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    AsyncV2Client,
    Message,
    decode_message,
)

from proofs import lateness, outcome
from proofs.actors import Actor, connect
from proofs.checker import Verdict
from proofs.faked_time import DAY_SECONDS, WallClock
from proofs.lateness import Lateness
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import (
    LIVE,
    NSQD,
    TOPIC,
    RunningActors,
    Workload,
    data_folder,
    make_topic,
    started,
    until,
    wait_until,
)
from sparq.protocol.commands import dpub, sub

HELD, LATER = "held", "later"
HELD_MESSAGES = 100
DEFERRED = 20
DELAY_MS = (10, 3_000)
LATE_SECONDS_MAX = 0.1
"""Promised by P4."""
STEP_COMMANDS = 100
FLAGS = ("--msg-timeout=15m", "--max-bytes-per-file=4194304")
PROMISES = ("P4", "P13")


class Holder(Actor):
    """Keeps messages in flight, and finishes them when `releasing` is set."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.held: list[bytes] = []
        self.releasing = asyncio.Event()
        self.errors = 0

    async def work(self, connection: AsyncV2Client) -> None:
        await connection.send_all(sub(HELD, LIVE) + b"RDY %d\n" % (2 * HELD_MESSAGES))
        listening = asyncio.create_task(self.listen(connection))
        try:
            await self.releasing.wait()
            await connection.send_all(b"".join(b"FIN %s\n" % name for name in self.held))
            await listening
        finally:
            listening.cancel()

    async def listen(self, connection: AsyncV2Client) -> None:
        while True:
            for kind, data in await connection.frames():
                if kind == FRAME_MESSAGE:
                    self.held.append(decode_message(data).id)
                self.errors += kind == FRAME_ERROR


class Deferrer(Actor):
    """Defers each message by DPUB and then by REQ, and records when it comes."""

    def __init__(self, address: str, chance: random.Random) -> None:
        super().__init__(address)
        self.chance = chance
        self.due: dict[bytes, float] = {}
        self.came = self.early = 0
        self.lateness = Lateness()
        self.connection: AsyncV2Client | None = None

    async def work(self, connection: AsyncV2Client) -> None:
        await connection.send_all(sub(LATER, LIVE) + b"RDY 1000\n")
        self.connection = connection
        while True:
            for kind, data in await connection.frames():
                if kind == FRAME_MESSAGE:
                    await connection.send_all(self.answer(decode_message(data)))

    def answer(self, message: Message) -> bytes:
        """Record whether a message is early; return its REQ at first, its FIN after that."""
        now = asyncio.get_running_loop().time()
        due = self.due.pop(message.body, float("inf"))
        self.came += 1
        self.early += now < due
        if now > due:
            self.lateness.note(due, now)
        if message.attempts > 1:
            return b"FIN %s\n" % message.id
        return b"REQ %s %d\n" % (message.id, self.choose_delay(message.body))

    def choose_delay(self, body: bytes) -> int:
        """Choose a delay in milliseconds, and record the earliest due time."""
        delay_ms = self.chance.randint(*DELAY_MS)
        self.due[body] = asyncio.get_running_loop().time() + delay_ms / 1_000
        return delay_ms

    async def defer(self, count: int) -> None:
        """Publish `count` deferred messages."""
        connection = await connect(self.address)
        for _ in range(count):
            body = self.chance.randbytes(16)
            await connection.send_all(dpub(LATER, self.choose_delay(body), body))
        left = count
        while left:
            left -= len(await connection.frames())
        connection.abort()


@dataclass(slots=True)
class Findings:
    """The results of one run."""

    jumps: int = 0
    redelivered: int = 0
    deferred: int = 0
    early: int = 0
    latest_net: float = 0.0
    verdict: Verdict | None = None

    @property
    def holds(self) -> bool:
        """Whether there was no violation, and deferred messages were in time."""
        in_time = self.deferred > 0 and self.latest_net <= LATE_SECONDS_MAX
        is_right = not self.redelivered and not self.early
        return is_right and in_time and bool(self.verdict and self.verdict.holds)


class Proof:
    """One run against one nsqd."""

    def __init__(self, plan: Plan, server: NsqdServer, clock: WallClock) -> None:
        self.plan, self.server, self.clock = plan, server, clock
        self.found = Findings()
        self.chance = random.Random(f"{plan.seed} jumps")
        self.workload = Workload(server, plan.seed)
        self.holder = Holder(server.tcp)
        self.deferrer = Deferrer(server.tcp, random.Random(f"{plan.seed} delays"))

    async def run(self, *, is_control: bool) -> Findings:
        """Defer and jump; with a control, without the workload."""
        found, late = self.found, self.deferrer.lateness
        await asyncio.to_thread(self.prepare)
        async with AsyncExitStack() as stack:
            notes = stack.enter_context(lateness.sleeping(self.server.folder))
            watching = asyncio.create_task(lateness.watch_loop(late.own))
            stack.callback(watching.cancel)
            if not is_control:
                await stack.enter_async_context(self.workload.running())
            async with RunningActors(self.holder, self.deferrer):
                await until(lambda: len(self.holder.held) == HELD_MESSAGES, "held")
                await until(lambda: self.deferrer.connection is not None, "subscribed")
                await self.defer_and_jump(is_control=is_control)
                found.deferred, found.early = self.deferrer.came, self.deferrer.early
                found.latest_net = late.latest_net(lateness.stalls_of(notes))
            if not is_control:
                await self.workload.drained()
                found.verdict = self.workload.verdict()
        return found

    def prepare(self) -> None:
        self.workload.make_topic()
        for topic in (HELD, LATER):
            make_topic(self.server, topic, (LIVE,))
        bodies = b"\n".join(b"%d" % number for number in range(HELD_MESSAGES))
        self.server.post(f"/mpub?topic={HELD}", bodies)

    async def defer_and_jump(self, *, is_control: bool) -> None:
        """Defer messages before each jump; then wait for all of them."""
        for number in range(self.plan.count):
            progress(f"jump {number + 1}")
            await self.deferrer.defer(DEFERRED)
            day = self.chance.choice((-DAY_SECONDS, DAY_SECONDS))
            offset = 0 if number % 2 else self.chance.choice((day, int(day * self.chance.random())))
            self.clock.set(DAY_SECONDS if is_control else offset)
            await asyncio.to_thread(wait_until, lambda: self.clock.is_seen_by(self.server), "seen")
            self.found.jumps += 1
            if not is_control:
                await self.workload.goes_on(STEP_COMMANDS)
        await until(lambda: not self.deferrer.due, "come")
        figures = [
            await asyncio.to_thread(self.server.channel, topic, LIVE) for topic in (HELD, TOPIC)
        ]
        self.found.redelivered = sum(figure.get("timeout_count", 0) for figure in figures)
        self.holder.releasing.set()
        await until(self.is_finished, "finished")
        self.found.redelivered += self.holder.errors

    def is_finished(self) -> bool:
        figures = self.server.channel(HELD, LIVE)
        return not figures["depth"] and not figures["in_flight_count"]


def attempt(plan: Plan, clock: WallClock, module: str = NSQD) -> Findings:
    """Do one run in its own folder."""
    keep = plan.keep if module == NSQD else None
    clock.set(0)
    with data_folder(keep) as folder, started(folder, module, FLAGS, clock.prefix) as server:
        return asyncio.run(Proof(plan, server, clock).run(is_control=module != NSQD))


def prove(plan: Plan) -> Outcome:
    """Run the proof and its controls."""
    with data_folder(None) as folder:
        clock = WallClock.of(folder)
        if clock is None:
            return skipped(PROMISES, "needs faketime")
        found = attempt(plan, clock)
        assert found.verdict is not None
        figures = (
            f"jumps {found.jumps:,} · redelivered by jump {found.redelivered:,} · deferred "
            f"{found.deferred:,}, early {found.early:,}, latest "
            f"{found.latest_net * 1000:,.0f} ms without the machine's own stalls · "
            f"{found.verdict.line()}"
        )
        held, control = found.holds, ""
        if plan.control:
            without = attempt(Plan(plan.seed, 1), clock, "wall_timeouts")
            late = attempt(Plan(plan.seed, 1), clock, "late_timers")
            control = (
                f"with timeouts on the wall clock: redelivered by jump {without.redelivered:,}, "
                f"early deferred {without.early:,}; with late timers: latest "
                f"{late.latest_net * 1000:,.0f} ms"
            )
            held = held and without.redelivered > 0 and without.early > 0
            held = held and late.latest_net > LATE_SECONDS_MAX
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("clock", prove, count=20, of="jumps"))
