"""Moves nsqd's wall clock by days, and stops the daemon for a while: `make clock`.

nsqd runs under libfaketime (faked_time.py), with a workload all the time. In addition, a holder
keeps messages in flight, and a deferrer publishes messages with DPUB and defers each once more with
REQ, for 10 ms to 3 s each time.

1. The clock jumps N times, by up to a day, forward and back. No message in flight is redelivered.
   No deferred message comes before its due time on the proof's monotonic clock, or more than 100 ms
   after it, not counting time for which the machine or the proof itself was stalled (lateness.py).
2. After kill -9, nsqd starts with the clock set to another day. No message id is used twice.
3. SIGSTOP for longer than three heartbeat intervals, then SIGCONT. No connection is lost, and no
   deferred message is early.
4. All messages are drained, and the checker counts.

There are two controls. With controls/wall_timeouts.py timeouts use the wall clock: a jump must
cause redeliveries and early deferred messages. With controls/late_timers.py timers fire a quarter
of a second late: deferred messages must be late.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import NsqdServer
from tests.support.v2_client import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    AsyncV2Client,
    Message,
    decode_message,
)

from proofs import lateness, outcome
from proofs.actors import Actor, Consumer, connect
from proofs.checker import Verdict, check, total
from proofs.daemon_fixture import NSQD, RunningActors, data_folder, started, wait_until
from proofs.faked_time import DAY_SECONDS, WallClock
from proofs.lateness import Lateness
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import CHANNEL, TOPIC, Workload, until
from sparq.protocol.commands import dpub, sub

HELD, LATER = "held", "later"
HELD_MESSAGES = 100
DEFERRED = 20
DELAY_MS = (10, 3_000)
LATE_SECONDS_MAX = 0.1
"""Promised by P4."""
STEP_COMMANDS = 100
STARTS = (1, -1, -1, 1)
"""Offset of the clock at each start, in days."""
FULL_JUMPS = 20
STOP_SECONDS, STOP_SECONDS_SHORT = 95.0, 2.0
HEARTBEAT_MS = 30_000
FLAGS = ("--msg-timeout=15m", "--max-bytes-per-file=4194304")
WALL_TIMEOUTS = "proofs.controls.wall_timeouts"
LATE_TIMERS = "proofs.controls.late_timers"
PROMISES = ("P4", "P13")


class Registrar(Consumer):
    """A consumer that records the body of each message id, in a dict shared by all consumers."""

    book: dict[bytes, bytes]
    again: list[bytes]

    def delivered(self, message: Message) -> bytes:
        if self.book.setdefault(message.id, message.body) != message.body:
            self.again.append(message.id)
        return super().delivered(message)


class Holder(Actor):
    """Keeps messages in flight, and finishes them when `releasing` is set."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.held: list[bytes] = []
        self.releasing = asyncio.Event()
        self.errors = 0

    async def work(self, connection: AsyncV2Client) -> None:
        await connection.send_all(sub(HELD, CHANNEL) + b"RDY %d\n" % (2 * HELD_MESSAGES))
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
        await connection.send_all(sub(LATER, CHANNEL) + b"RDY 1000\n")
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
        delay_ms = self.choose_delay(message.body)
        return b"REQ %s %d\n" % (message.id, delay_ms)

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
            delay_ms = self.choose_delay(body)
            await connection.send_all(dpub(LATER, delay_ms, body))
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
    latest: float = 0.0
    latest_net: float = 0.0
    starts: int = 0
    ids: int = 0
    reused: int = 0
    stopped_seconds: float = 0.0
    broken: int = 0
    verdict: Verdict | None = None

    @property
    def holds(self) -> bool:
        """Whether there was no violation, and deferred messages were in time."""
        wrong = self.redelivered + self.early + self.reused + self.broken
        in_time = self.deferred > 0 and self.latest_net <= LATE_SECONDS_MAX
        return not wrong and in_time and bool(self.verdict and self.verdict.holds)


@dataclass(slots=True)
class Proof:
    """One run against one nsqd."""

    plan: Plan
    server: NsqdServer
    clock: WallClock
    found: Findings = field(default_factory=Findings)
    workload: Workload = field(init=False)
    holder: Holder = field(init=False)
    deferrer: Deferrer = field(init=False)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        address = self.server.tcp
        self.chance = random.Random(f"{self.plan.seed} jumps")
        self.workload = Workload.of(self.server, self.plan.seed)
        book: dict[bytes, bytes] = {}
        again: list[bytes] = []
        for number, name in enumerate(("one", "two")):
            consumer = Registrar(address, TOPIC, CHANNEL, self.workload.history, name)
            consumer.book, consumer.again = book, again
            self.workload.consumers[number] = consumer
        self.holder = Holder(address)
        self.deferrer = Deferrer(address, random.Random(f"{self.plan.seed} delays"))

    async def run(self, *, is_control: bool) -> Findings:
        """Run all steps; with a control, only those that its missing safeguard affects."""
        found = self.found
        await asyncio.to_thread(self.prepare)
        async with AsyncExitStack() as stack:
            notes = stack.enter_context(lateness.sleeping(self.server.folder))
            stack.enter_context(self.watching())
            if not is_control:
                stack.push_async_exit(running := self.workload.running())
                await running.__aenter__()
            async with RunningActors(self.holder, self.deferrer):
                await until(lambda: len(self.holder.held) == HELD_MESSAGES, "held")
                await until(lambda: self.deferrer.connection is not None, "subscribed")
                await self.defer_and_jump(is_control=is_control)
                self.note_lateness(notes)
                if not is_control:
                    await self.stop_for_a_while()
            if not is_control:
                await self.start_on_other_days()
                await self.workload.drained()
                found.verdict = total(check(self.workload.history).values())
        registrar = self.workload.consumers[0]
        assert isinstance(registrar, Registrar)
        found.ids, found.reused = len(registrar.book), len(registrar.again)
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the times at which this event loop was stalled."""
        task = asyncio.create_task(lateness.watch_loop(self.deferrer.lateness.own))
        try:
            yield
        finally:
            task.cancel()

    def note_lateness(self, notes: Path) -> None:
        """Record the lateness of the deferred messages so far; `notes` lists machine stalls."""
        found, came = self.found, self.deferrer
        found.deferred, found.early = came.came, came.early
        found.latest = came.lateness.latest()
        found.latest_net = came.lateness.latest_net(lateness.stalls_of(notes))

    def prepare(self) -> None:
        self.workload.make_topic()
        for topic in (HELD, LATER):
            self.server.post(f"/topic/create?topic={topic}")
            self.server.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
        bodies = b"\n".join(b"%d" % number for number in range(HELD_MESSAGES))
        self.server.post(f"/mpub?topic={HELD}", bodies)

    # The steps

    async def defer_and_jump(self, *, is_control: bool) -> None:
        """Defer messages before each jump; then wait for all of them."""
        for number in range(self.plan.count):
            progress(f"jump {number + 1}")
            await self.deferrer.defer(DEFERRED)
            if number % 2:
                offset = 0
            else:
                day = self.chance.choice((-DAY_SECONDS, DAY_SECONDS))
                offset = self.chance.choice((day, int(day * self.chance.random())))
            if is_control:
                offset = DAY_SECONDS
            await self.jump(offset)
            self.found.jumps += 1
            if not is_control:
                await self.workload.goes_on(STEP_COMMANDS)
        await until(lambda: not self.deferrer.due, "come")
        figures = [
            await asyncio.to_thread(self.server.channel, topic, CHANNEL) for topic in (HELD, TOPIC)
        ]
        self.found.redelivered = sum(figure["timeout_count"] for figure in figures)
        self.holder.releasing.set()
        await until(lambda: self.is_finished(HELD), "finished")
        self.found.redelivered += self.holder.errors

    def is_finished(self, topic: str) -> bool:
        figures = self.server.channel(topic, CHANNEL)
        return not figures["depth"] and not figures["in_flight_count"]

    async def jump(self, offset_seconds: int) -> None:
        """Set the daemon's clock, and wait until the daemon uses it."""
        self.clock.set(offset_seconds)
        await asyncio.to_thread(wait_until, lambda: self.clock.is_seen_by(self.server), "seen")

    async def stop_for_a_while(self) -> None:
        """Stop nsqd for longer than a client may be silent, then let it continue."""
        is_full = self.plan.count >= FULL_JUMPS
        seconds = STOP_SECONDS if is_full else STOP_SECONDS_SHORT
        progress(f"stopped for {seconds:.0f} s")
        await self.deferrer.defer(DEFERRED)
        before = self.connections()
        with stopped(self.server):
            await asyncio.sleep(seconds)
        await self.workload.goes_on(STEP_COMMANDS)
        await until(lambda: not self.deferrer.due, "come")
        self.found.stopped_seconds = seconds
        self.found.early = self.deferrer.early
        self.found.broken = self.connections() - before

    def connections(self) -> int:
        others = self.holder.connections + self.deferrer.connections
        return self.workload.connections() + others

    async def start_on_other_days(self) -> None:
        """Kill nsqd with kill -9 and start it on another day, several times."""
        for day in STARTS[: max(1, self.plan.count // 5)]:
            progress("started on another day")
            self.server.kill9()
            self.workload.history.kills += 1
            self.clock.set(day * DAY_SECONDS)
            await asyncio.to_thread(self.server.start)
            self.found.starts += 1
            await self.workload.goes_on(STEP_COMMANDS)


@contextmanager
def stopped(server: NsqdServer) -> Iterator[None]:
    """Stop the daemon with SIGSTOP while the block runs."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


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
            f"{found.deferred:,}, early {found.early:,}, latest {found.latest * 1000:,.0f} ms, "
            f"{found.latest_net * 1000:,.0f} ms without the machine's own stalls · "
            f"starts on another day {found.starts:,}: ids {found.ids:,}, given twice "
            f"{found.reused:,} · stopped for {found.stopped_seconds:.0f} s: connections broken "
            f"{found.broken:,} · {found.verdict.line()}"
        )
        held, control = found.holds, ""
        if plan.control:
            without = attempt(Plan(plan.seed, 1), clock, WALL_TIMEOUTS)
            control = (
                f"with timeouts on the wall clock: redelivered by jump {without.redelivered:,}, "
                f"early deferred {without.early:,}"
            )
            late = attempt(Plan(plan.seed, 1), clock, LATE_TIMERS)
            control += f"; with late timers: latest {late.latest_net * 1000:,.0f} ms"
            held = held and without.redelivered > 0 and without.early > 0
            held = held and late.latest_net > LATE_SECONDS_MAX
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("clock", prove, count=FULL_JUMPS, of="jumps"))
