"""The harness of the bench's tables: contestants take turns on each line; medians of rounds.

1. All servers are started once and run until the table is complete; those not being measured are
   idle. Before each run the disks are synced and the servers must become idle, so that no run is
   slowed by work left over from an earlier one.
2. Within a line the contestants take turns (A B C, A B C, ...), so that a busy minute of the
   machine affects all equally.
3. Ratios are to Go's nsqd in memory, its best case, in the same run.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop

from bench.generator import BUSY_SHARE, Figures
from bench.lines import Line
from bench.peers import Contestant
from bench.peers.peer import Peer

RUN_SECONDS = 0.3
REST_SECONDS = 0.02
REST_CPU_SECONDS = 0.004
RESTLESS_SECONDS = 3.0
REFERENCE = "go"


class Servers:
    """The servers: each is started at its first use, and all are ended by `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._peers: dict[str, Peer] = {}

    def peer(self, contestant: Contestant) -> Peer:
        """The contestant's server, running."""
        if contestant.key not in self._peers:
            self._peers[contestant.key] = contestant.make(self._folder / contestant.key)
            self._peers[contestant.key].start()
        return self._peers[contestant.key]

    def rest(self) -> None:
        """Sync the disks, and wait up to RESTLESS_SECONDS until all servers are idle."""
        os.sync()
        deadline, before = time.monotonic() + RESTLESS_SECONDS, -1.0
        while time.monotonic() < deadline:
            now = sum(peer.cpu_seconds() for peer in self._peers.values())
            if now - before < REST_CPU_SECONDS:
                return
            before = now
            time.sleep(REST_SECONDS)

    def close(self) -> None:
        """End all servers."""
        for peer in self._peers.values():
            peer.close()


@dataclass
class Cell:
    """All rounds of one contestant on one line."""

    label: str
    rounds: list[Figures] = field(default_factory=list)

    def median(self, figure: str) -> float:
        """The median of a figure of the rounds, or of their times, in ms: `p50` or `p99`."""
        if figure.startswith("p"):
            times = [second for each in self.rounds for second in each.times]
            return float(np.quantile(times, int(figure[1:]) / 100)) * 1e3 if times else float("nan")
        return float(statistics.median(map(attrgetter(figure), self.rounds)))


@dataclass
class Result:
    """One line of a table: a cell for each contestant that took part, by key."""

    name: str
    has_times: bool = False
    cells: dict[str, Cell] = field(default_factory=dict)

    def ratio(self, figure: str, key: str, to: str) -> float | None:
        """The ratio of two contestants' figures; None: one of them did not take part."""
        if not {key, to} <= self.cells.keys():
            return None
        other = self.cells[to].median(figure)
        return self.cells[key].median(figure) / other if other else None

    def columns(self, key: str) -> list[str]:
        """A cell's figures, formatted for the table."""
        cell = self.cells[key]
        found = [f"{cell.median(figure):{form}}" for figure, form in FIGURES.items()]
        if cell.median("generator_share") > BUSY_SHARE:
            found[0] += "*"
        for figure in ("rate", "server_us"):
            ratio = self.ratio(figure, key, REFERENCE)
            found.append("" if ratio is None else f"{ratio:.2f}")
        if self.has_times:
            found += [f"{cell.median(figure):.3f}" for figure in ("p50", "p99")]
        return found


FIGURES = {"rate": ",.0f", "server_us": ".2f", "generator_us": ".2f", "generator_share": ".0%"}
HEADINGS = (
    *("msg/s", "CPU us", "load us", "load busy", "rate : Go", "CPU : Go", "p50 ms", "p99 ms"),
)
NOTE = "* the load generator was busy all the time: the server may be faster than this"


def row(name: str, columns: Sequence[str]) -> str:
    """A line of a table: its columns right-aligned."""
    return f"{name:<44}" + "".join(f"{column:>12}" for column in columns)


def text(result: Result, headings: Sequence[str] = HEADINGS) -> str:
    """A line and its contestants, for a terminal."""
    lines = [row(result.name, headings if result.has_times else headings[:6])]
    lines += [row(f"  {cell.label}", result.columns(key)) for key, cell in result.cells.items()]
    return "\n".join(lines)


def markdown(results: Sequence[Result]) -> str:
    """All lines as a Markdown table."""
    rows = [["", *HEADINGS], ["---"] * (1 + len(HEADINGS))]
    for result in results:
        rows.append([f"**{result.name}**"])
        rows += [[cell.label, *result.columns(key)] for key, cell in result.cells.items()]
    padded = ([*each, *[""] * len(HEADINGS)][: len(rows[0])] for each in rows)
    return "\n".join(f"| {' | '.join(each)} |" for each in padded)


class Target(NamedTuple):
    """A limit for the ratio of a figure to Go's: at least `limit`, or at most if it is a cost."""

    line: str
    figure: str
    limit: float
    key: str = "sparq"

    def verdict(self, results: Mapping[str, Result]) -> str:
        """The ratio and whether it meets the target, as text; "" if it was not measured."""
        found = self.line in results and results[self.line].ratio(self.figure, self.key, REFERENCE)
        if not found:
            return ""
        is_least = self.figure == "rate"
        is_met = found >= self.limit if is_least else found <= self.limit
        bound = f"at {'least' if is_least else 'most'} {self.limit:g}"
        word = "met" if is_met else "MISSED"
        return f"  {self.line:<44}{self.figure:<12}{found:>8.3f}  {bound}: {word}"


MPUB, PUB = "MPUB, pipelined, 200 of 200 B", "PUB, pipelined, 200 B"
DELIVER = "deliver + FIN, 1 consumer, RDY 2500"
TARGETS = (
    Target(MPUB, "server_us", 0.4),
    Target(PUB, "server_us", 0.3),
    Target(DELIVER, "server_us", 0.06),
    Target(MPUB, "rate", 1.5),
    Target(PUB, "rate", 3),
    Target(DELIVER, "rate", 10),
    Target("fan-out, 10 channels, a consumer each", "rate", 20),
    Target("HTTP /pub, 1 connection", "rate", 1.3),
    Target("HTTP /pub, 10 connections", "rate", 1.3),
    Target("PUB, one at a time, 200 B", "rate", 1.0, "sparq-later"),
    Target("latency at 50 msg/s, RDY 100", "p50", 0.01),
)


def report(results: Sequence[Result]) -> str:
    """Each target whose line was measured, and whether it is met; "" if none was."""
    by_name = {result.name: result for result in results}
    verdicts = [found for target in TARGETS if (found := target.verdict(by_name))]
    return "\n".join(["targets, as ratios to Go's nsqd in memory:", *verdicts]) if verdicts else ""


def in_turn(
    name: str, labels: Mapping[str, str], rounds: int, run: Callable[[str], Figures]
) -> Result:
    """Measure one line: each contestant, by key, once a round."""
    result = Result(name, cells={key: Cell(label) for key, label in labels.items()})
    for _ in range(rounds):
        for key, cell in result.cells.items():
            cell.rounds.append(run(key))
    return result


def measure(
    line: Line, contestants: Sequence[Contestant], servers: Servers, rounds: int, seconds: float
) -> Result:
    """Measure one line with the contestants that have the needed features."""
    able = {c.key: c for c in contestants if line.needs <= servers.peer(c).can}

    def run(key: str) -> Figures:
        servers.rest()
        return uvloop.run(line.run(servers.peer(able[key]), max(seconds, line.seconds)))

    result = in_turn(line.name, {key: c.label for key, c in able.items()}, rounds, run)
    result.has_times = line.has_times
    return result


def measured(
    folder: Path,
    lines: Sequence[Line],
    contestants: Sequence[Contestant],
    rounds: int,
    seconds: float,
) -> Iterator[Result]:
    """Measure one line after another."""
    servers = Servers(folder)
    try:
        for line in lines:
            yield measure(line, contestants, servers, rounds, seconds)
    finally:
        servers.close()
