"""The time from publishing a click until a reader sees it: in its minute, and in a finding.

Clicks are published at an even rate to one nsqd, one batch every TICK seconds, with the current
time as event time. Batches reach Spark in that order:

- a click is in its minute when the newest revisions of all minutes count at least as many clicks as
  were published up to it;
- every second a new robot requests 20 pages at the same time, a burst: it is found when a row with
  its address is readable.

The clock starts just before a batch is sent, so the time of publishing counts. Clicks of the
warm-up do not count. A click that never appears has an infinite time.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.pipeline_clicks import PAGE_EVERY, PAGE_STEP, PAGES, TOPIC, address, line
from bench.pipeline_output import TableCommits
from bench.pipeline_running import Running, note
from sparq.client import Producer

BURST_PAGES = 20
"""Pages at once that the rule `burst` finds."""

PER_SECOND = 1_000
TICK = 0.1
ROBOT_EVERY = round(1 / TICK)
WARM_UP_SECONDS = 20.0
POLL_SECONDS = 0.25
QUIET_SECONDS = 60.0
"""Maximum time between two new results; after that the bench gives up on missing ones."""

PEOPLE = 5_000
ROBOTS_FROM = 1 << 20
FIRST_CLICKS = 200


class Tick(NamedTuple):
    """A published batch of clicks.

    Attributes:
        sent_s: time of sending, in seconds since 1970.
        total: number of clicks published so far, including these.
        robot: address of the robot in the batch; None: no robot.
    """

    sent_s: float
    total: int
    robot: str | None = None


@dataclass
class Seen:
    """The results that a reader has seen, with the times (seconds since 1970) they were readable.

    Attributes:
        counted: (number of clicks in all minutes, time), ascending.
        robots: address -> time of its first finding.
    """

    counted: list[tuple[int, float]] = field(default_factory=list)
    robots: dict[str, float] = field(default_factory=dict)

    def minutes(self, ticks: Sequence[Tick]) -> list[float]:
        """For each tick, the seconds from sending until the minutes include it."""
        totals = [total for total, _ in self.counted]
        found = [bisect_left(totals, tick.total) for tick in ticks]
        return [
            self.counted[at][1] - tick.sent_s if at < len(totals) else math.inf
            for at, tick in zip(found, ticks, strict=True)
        ]

    def findings(self, ticks: Sequence[Tick]) -> list[float]:
        """For each robot, the seconds from sending until its finding."""
        return [self.robots.get(tick.robot, math.inf) - tick.sent_s for tick in ticks if tick.robot]


class Reader:
    """Reads the tables of minutes and findings."""

    def __init__(self, data: Path) -> None:
        self.seen = Seen()
        self._minutes = TableCommits(data / "minutes", ["clicks"])
        self._clicks = 0
        self._findings = TableCommits(data / "findings", ["address"])

    def poll(self) -> bool:
        """Read new batches; return whether there were any."""
        minutes, findings = self._minutes.new(), self._findings.new()
        for rows, readable_s in minutes:
            self._clicks += sum(rows["clicks"].to_pylist())
            self.seen.counted.append((self._clicks, readable_s))
        for rows, readable_s in findings:
            for who in rows["address"].unique().to_pylist():
                self.seen.robots.setdefault(who, readable_s)
        return bool(minutes or findings)


def people(first: int, size: int) -> list[bytes]:
    """`size` clicks of people, from number `first` on, at the current time."""
    now = datetime.now(UTC)
    numbers = range(first, first + size)
    return [line(number, number % PEOPLE, now, _path(number)) for number in numbers]


def _path(number: int) -> str:
    turn, person = divmod(number, PEOPLE)
    part = number * PAGE_STEP % PAGES
    is_page = not (turn + person) % PAGE_EVERY
    return f"/articles/{part}" if is_page else f"/static/part-{part}.css"


def robot(number: int) -> tuple[str, list[bytes]]:
    """The address of a robot, and its clicks at the current time."""
    visitor, now = ROBOTS_FROM + number, datetime.now(UTC)
    pages = [line(1, visitor, now, f"/articles/{page}") for page in range(BURST_PAGES)]
    return address(visitor), pages


class Publishing(threading.Thread):
    """Publishes at an even rate for a while.

    Args:
        nsqd: TCP address of the nsqd.
        seconds: length of the publishing.
        before: number of clicks published before.
        per_second: clicks of people per second, without those of robots.
    """

    def __init__(
        self, nsqd: str, seconds: float, before: int, per_second: int = PER_SECOND
    ) -> None:
        super().__init__(name="publishing", daemon=True)
        self.ticks: list[Tick] = []
        self.failure: Exception | None = None
        self._nsqd = nsqd
        self._ended = threading.Event()
        self._count = max(1, round(seconds / TICK))
        self._total = before
        self._size = max(1, round(per_second * TICK))

    def run(self) -> None:
        """Publish; runs in the thread."""
        try:
            asyncio.run(self._publish())
        except Exception as error:
            self.failure = error

    def end(self) -> None:
        """Stop publishing, and wait for the current batch."""
        self._ended.set()
        self.join(QUIET_SECONDS)

    async def _publish(self) -> None:
        begun = time.monotonic()
        async with Producer([self._nsqd]) as producer:
            for number in range(self._count):
                await asyncio.sleep(max(0.0, begun + number * TICK - time.monotonic()))
                if self._ended.is_set():
                    return
                batch, who = people(number * self._size, self._size), None
                if number % ROBOT_EVERY == 0:
                    who, pages = robot(number)
                    batch += pages
                sent = time.time()
                await producer.multi_publish(TOPIC, batch)
                self._total += len(batch)
                self.ticks.append(Tick(sent, self._total, who))


class Latencies(NamedTuple):
    """Seconds from sending: for each tick to its minute, for each robot to its finding."""

    minutes: list[float]
    findings: list[float]


def latency(folder: Path, seconds: float, flags: Sequence[str] = ()) -> Latencies:
    """Publish PER_SECOND clicks per second for a warm-up and `seconds`; return the latencies."""
    with Running(folder, flags=flags) as running:
        reader = Reader(running.data)
        running.start()
        before = running.publish(people(0, FIRST_CLICKS))
        running.drain()
        warm_up = min(WARM_UP_SECONDS, seconds)
        publishing = Publishing(running.nsqds[0], warm_up + seconds, before)
        publishing.start()
        note(f"publishing {PER_SECOND:,} clicks/s for {warm_up + seconds:.0f} s")
        try:
            _watch(running, reader, publishing)
        finally:
            publishing.end()
    if publishing.failure is not None:
        raise publishing.failure
    counted = publishing.ticks[round(warm_up / TICK) :]
    return Latencies(reader.seen.minutes(counted), reader.seen.findings(counted))


def _watch(running: Running, reader: Reader, publishing: Publishing) -> None:
    """Read the output until it has every published click, or nothing new for QUIET_SECONDS."""
    news = noted = time.monotonic()
    while True:
        running.check()
        if publishing.failure is not None:
            return
        is_over = not publishing.is_alive()
        now = time.monotonic()
        news = now if reader.poll() else news
        if is_over and (_is_all(reader.seen, publishing.ticks) or now - news > QUIET_SECONDS):
            return
        if now - noted > 10:
            noted = now
            total = reader.seen.counted[-1][0] if reader.seen.counted else 0
            note(f"readable: {total:,} clicks, {len(reader.seen.robots)} robots")
        time.sleep(POLL_SECONDS)


def _is_all(seen: Seen, ticks: Sequence[Tick]) -> bool:
    return not any(map(math.isinf, [*seen.minutes(ticks[-1:]), *seen.findings(ticks)]))


def quantile(seconds: list[float], part: float) -> float:
    """A quantile of times, without interpolation; infinite if too many never arrived."""
    return float(np.quantile(seconds, part, method="higher")) if seconds else math.nan
