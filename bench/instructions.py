"""Instructions that nsqd executes per message: `python -m bench.against COMMIT --instructions`.

The count depends little on the speed of the machine and on its other load. So it can show a
difference of 3 % where the rates and the CPU times of `bench.against` vary by more.

1. Each nsqd runs under valgrind's callgrind; the load generator does not. callgrind counts the
   instructions of all threads, but nothing of the kernel's.
2. A line moves N messages and then 3 N. The difference, divided by 2 N, is the cost of a message
   without that of the topic and the connections.
3. The data are in memory. On a disk, nsqd decides by the time of the last syncs whether a commit
   runs in the event loop or in a thread, so that the figures of single requests varied by 10 %.
   Large commits still run in a thread.
4. nsqd is some 50 times slower under callgrind than without. So a turn holds as many messages as
   the client's window allows, and a pipelined line shows the cost of full turns.
5. Some noise is left: timers run by the time, and threads wait for the interpreter. So both sides
   take turns, the median of the rounds' ratios counts, and the range of the ratios is shown.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench.generator import Figures
from bench.lines import Line
from bench.peers.nsq import Sparq
from bench.peers.peer import Peer, Program, RefusedError
from bench.table import row

LIMIT = 1.03
MEMORY = Path("/dev/shm")
LOAD_SECONDS = 600.0
IDLE_SECONDS = 0.05
IDLE_CPU_SECONDS = 0.005
TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


class CountedNsqd(Sparq):
    """nsqd under callgrind, with its defaults."""

    command = (
        *("valgrind", "--tool=callgrind", "--quiet", "--callgrind-out-file=callgrind"),
        *Sparq.command,
    )

    _millions = 0.0

    def make_program(self) -> Program:
        """The daemon; hashes, and so the order of sets, are the same in each run."""
        program = super().make_program()
        program.environment = {**(program.environment or {}), "PYTHONHASHSEED": "0"}
        return program

    def start(self) -> None:
        """Start; under callgrind it takes up to a minute until nsqd listens."""
        self.program.start()
        if not self.program.wait_until(self._listens, LOAD_SECONDS):
            raise RefusedError(f"nsqd did not start:\n{self._log()[-2000:]}")

    def _listens(self) -> bool:
        return "HTTP: listening" in self._log()

    def _log(self) -> str:
        return self.program.log.read_text(errors="replace")

    def cost(self) -> float:
        """Millions of instructions so far, once nsqd is idle."""
        before, now = -1.0, self.cpu_seconds()
        while now - before > IDLE_CPU_SECONDS:
            time.sleep(IDLE_SECONDS)
            before, now = now, self.cpu_seconds()
        # Each dump is a new file with the instructions since the last one.
        vgdb = ["vgdb", f"--pid={self.program.pid}", "dump"]
        subprocess.run(vgdb, check=True, capture_output=True)
        for path in self.folder.glob("callgrind.*"):
            found = TOTALS.findall(path.read_text(errors="replace"))
            self._millions += sum(map(int, found)) / 1e6
            path.unlink()
        return self._millions


def difference(few: Figures, many: Figures) -> float:
    """Instructions per message, without what both runs need whatever their messages."""
    return (many.server - few.server) * 1e6 / (many.messages - few.messages)


def per_message(line: Line, nsqd: Peer) -> float:
    """Instructions per message of a line."""
    few, many = (uvloop.run(line.run(nsqd, 0.0, count * line.messages)) for count in (1, 3))
    return difference(few, many)


def text(name: str, new: Sequence[float], old: Sequence[float]) -> tuple[str, bool]:
    """A line as text, from the rounds of both sides, and whether it is within the limit."""
    ratios = [ours / theirs for ours, theirs in zip(new, old, strict=True)]
    ratio, distance = statistics.median(ratios), max(ratios) - min(ratios)
    figures = [f"{statistics.median(each):,.0f}" for each in (new, old)]
    shown = row(name, [*figures, f"{ratio:.3f}", f"{distance:.3f}"])
    return shown + "  DEARER" * (ratio > LIMIT), ratio <= LIMIT


def compare(new: Peer, old: Peer, lines: Sequence[Line], rounds: int) -> bool:
    """Count each line in turn for both, and print; return whether no line needs over 3 % more."""
    all_hold = True
    print(row("", ("new", "old", "ratio", "range")), flush=True)
    for line in lines:
        if line.messages:
            for nsqd in (new, old):  # what a first run loads is not counted
                uvloop.run(line.run(nsqd, 0.0, line.messages))
            pairs = [(per_message(line, new), per_message(line, old)) for _ in range(rounds)]
            shown, holds = text(line.name, *zip(*pairs, strict=True))
            print(shown, flush=True)
            all_hold = all_hold and holds
    return all_hold
