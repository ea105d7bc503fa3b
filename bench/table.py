"""The table with peers: every line against everybody who is there, in turn, medians of rounds.

1. All servers are started once and live through the whole table; whoever is not measured rests.
   Between two runs everything is synced and all servers must have come to rest, so that nobody pays
   for what another left behind.
2. Within a line the contestants take turns (A B C, A B C, ...): a busy minute of the machine hits
   all alike.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import aims
from bench.lines import LINES, Line
from bench.peers import Contestant
from bench.peers.peer import Peer
from bench.results import NOTE, Cell, Result, text

RUN_SECONDS = 0.3
REST_SECONDS = 0.02
REST_CPU_SECONDS = 0.004
RESTLESS_SECONDS = 3.0


class House:
    """The servers: started when they are first asked for, ended together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._peers: dict[str, Peer] = {}

    def peer(self, contestant: Contestant) -> Peer:
        """A running server."""
        if contestant.key not in self._peers:
            peer = contestant.make(self._folder / contestant.key)
            self._peers[contestant.key] = peer
            peer.start()
        return self._peers[contestant.key]

    def rest(self) -> None:
        """Wait until everything is on disk and all servers are idle."""
        os.sync()
        deadline = time.monotonic() + RESTLESS_SECONDS
        while time.monotonic() < deadline:
            before = self._cpu_seconds()
            time.sleep(REST_SECONDS)
            if self._cpu_seconds() - before < REST_CPU_SECONDS:
                return

    def _cpu_seconds(self) -> float:
        return sum(peer.cpu_seconds() for peer in self._peers.values())

    def close(self) -> None:
        """End them all."""
        for peer in self._peers.values():
            peer.close()


def measure(
    line: Line, contestants: Sequence[Contestant], house: House, rounds: int, seconds: float
) -> Result:
    """One line, everybody in turn."""
    result = Result(line.name, line.has_times)
    able = [each for each in contestants if line.needs <= house.peer(each).can]
    for contestant in able:
        result.cells[contestant.key] = Cell(contestant.label)
    for _ in range(rounds):
        for contestant in able:
            house.rest()
            run = line.run(house.peer(contestant), max(seconds, line.seconds))
            result.cells[contestant.key].rounds.append(uvloop.run(run))
    return result


def run(
    folder: Path, options: argparse.Namespace, contestants: Sequence[Contestant]
) -> list[Result]:
    """The lines that are asked for, printed as they come."""
    lines = [line for line in LINES if options.only in line.name]
    if not lines:
        return []
    house = House(folder)
    results = []
    try:
        for line in lines:
            result = measure(line, contestants, house, options.rounds, options.seconds)
            results.append(result)
            print(text(result), flush=True)
    finally:
        house.close()
    print(NOTE)
    print(aims.report(results), flush=True)
    return results
