"""The table of brokers: every line with every installed broker, in turn, medians of rounds.

1. All servers are started once and run until the table is complete; those not being measured are
   idle. Before each run the disks are synced and the servers must become idle, so that no run is
   slowed by work left over from an earlier one.
2. Within a line the contestants take turns (A B C, A B C, ...), so that a busy minute of the
   machine affects all equally.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import targets
from bench.lines import LINES, Line
from bench.peers import Contestant
from bench.peers.peer import Peer
from bench.results import NOTE, Cell, Result, text

RUN_SECONDS = 0.3
REST_SECONDS = 0.02
REST_CPU_SECONDS = 0.004
RESTLESS_SECONDS = 3.0


class Servers:
    """The servers: each is started at its first use, and all are ended by `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._peers: dict[str, Peer] = {}

    def peer(self, contestant: Contestant) -> Peer:
        """The contestant's server, running."""
        if contestant.key not in self._peers:
            peer = contestant.make(self._folder / contestant.key)
            self._peers[contestant.key] = peer
            peer.start()
        return self._peers[contestant.key]

    def rest(self) -> None:
        """Sync the disks, and wait up to RESTLESS_SECONDS until all servers are idle."""
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
        """End all servers."""
        for peer in self._peers.values():
            peer.close()


def measure(
    line: Line, contestants: Sequence[Contestant], servers: Servers, rounds: int, seconds: float
) -> Result:
    """Measure one line, the contestants taking turns."""
    result = Result(line.name, line.has_times)
    able = [each for each in contestants if line.needs <= servers.peer(each).can]
    for contestant in able:
        result.cells[contestant.key] = Cell(contestant.label)
    for _ in range(rounds):
        for contestant in able:
            servers.rest()
            run = line.run(servers.peer(contestant), max(seconds, line.seconds))
            result.cells[contestant.key].rounds.append(uvloop.run(run))
    return result


def run(
    folder: Path, options: argparse.Namespace, contestants: Sequence[Contestant]
) -> list[Result]:
    """Measure the selected lines; print each when it is done, and then the targets."""
    lines = [line for line in LINES if options.only in line.name]
    if not lines:
        return []
    servers = Servers(folder)
    results = []
    try:
        for line in lines:
            result = measure(line, contestants, servers, options.rounds, options.seconds)
            results.append(result)
            print(text(result), flush=True)
    finally:
        servers.close()
    print(NOTE)
    print(targets.report(results), flush=True)
    return results
