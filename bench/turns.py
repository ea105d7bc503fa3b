"""The time of a turn of the broker, measured in process: `python -m bench.turns`.

The bench drives a broker on a real disk as nsqd does, but without sockets, event loop or other
processes, and without a sync before each OK. Other load on the machine lengthens a few turns; the
median ignores them, so that two checkouts, run alternately, can be compared on any machine. The
lowest mean is affected by other load, but includes work that is done only every N turns.

With `--turns` nothing is timed, so that valgrind can count the instructions of a turn: the
difference between two numbers of turns is free of the start.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.broker.session import V2Session
from sparq.log.disk import RealDisk
from sparq.protocol import commands
from sparq.protocol.instant import Instant
from sparq.protocol.layout import FRAME_OVERHEAD, ID_OFFSET, ID_SIZE
from sparq.protocol.parser import CommandParser

SIZE = 200
LARGE = 1024
MANY = 200
"""Messages per MPUB, and the large RDY count."""
WARM_UP = 100
FILLINGS = 100
WINDOW_SECONDS = 0.015
"""Total length of the turns of one mean: short enough that some means are free of other load, long
enough to include work that is done only every N turns."""


def now() -> Instant:
    """The current time."""
    return Instant(time.time_ns(), time.monotonic_ns())


class Line:
    """A broker and one client, driven as nsqd drives them."""

    def __init__(self, path: Path) -> None:
        self.broker = Broker(BrokerOptions(sync_every=2500), RealDisk(), str(path), now())
        self.broker.load(now())
        self.session: V2Session = self.broker.connect("10.0.0.1:5555", now())
        self.parser = CommandParser(self.broker.limits)

    def say(self, data: bytes) -> bytes:
        """Send bytes, and return the broker's output of the turn that follows."""
        self.parser.feed(data)
        at = now()
        while not self.parser.is_waiting and (command := self.parser.next()) is not None:
            self.broker.execute(self.session, command, at)
            self.parser.state = self.session.state
        while tasks := self.broker.end_turn(at):
            for topic_task in tasks:
                topic_task.task.run()
                self.broker.finish(topic_task, at)
        output: list[bytes] = []
        for session in self.broker.take_sessions():
            output += map(bytes, self.broker.take_output(session))
        return b"".join(output)


def fins(answer: bytes) -> bytes:
    """FINs for the messages of SIZE bytes at the end of an output."""
    size = FRAME_OVERHEAD + SIZE
    count = len(answer) // size
    frames = np.frombuffer(answer, np.uint8)[len(answer) - count * size :].reshape(count, size)
    said = np.tile(np.frombuffer(commands.fin(bytes(ID_SIZE)), np.uint8), (count, 1))
    said[:, 4:-1] = frames[:, ID_OFFSET : ID_OFFSET + ID_SIZE]
    return said.tobytes()


def publishing(line: Line, request: bytes) -> Iterator[float]:
    """Run turns that each process one request; yield the seconds of each."""
    while True:
        began = time.perf_counter()
        answer = line.say(request)
        yield time.perf_counter() - began
        assert answer.endswith(b"OK"), answer


def delivering(line: Line, window: int) -> Iterator[float]:
    """Run turns that process a window's FINs and deliver the next; yield the seconds of each."""
    filling = commands.mpub("t", [bytes(SIZE)] * MANY)
    line.say(filling)
    line.say(commands.sub("t", "c"))
    answer = line.say(commands.rdy(window))
    waiting = MANY - window
    while True:
        if waiting < window:
            # Rarely, and many at a time: filling changes the CPU caches that the next turn finds.
            for _ in range(FILLINGS):
                line.say(filling)
            waiting += FILLINGS * MANY
        said = fins(answer)
        began = time.perf_counter()
        answer = line.say(said)
        yield time.perf_counter() - began
        assert len(answer) >= window * (FRAME_OVERHEAD + SIZE), "the window is not full"
        waiting -= window


class Kind(NamedTuple):
    """A kind of turn, and the number of messages per turn."""

    name: str
    messages: int
    turns: Callable[[Line], Iterator[float]]


def mpub(size: int) -> Callable[[Line], Iterator[float]]:
    """Turns that each process an MPUB with bodies of `size` bytes."""
    return partial(publishing, request=commands.mpub("t", [bytes(size)] * MANY))


KINDS = (
    Kind(f"PUB of {SIZE} B", 1, partial(publishing, request=commands.pub("t", bytes(SIZE)))),
    Kind("FIN and delivery, RDY 1", 1, partial(delivering, window=1)),
    Kind(f"FINs and deliveries, RDY {MANY}", MANY, partial(delivering, window=MANY)),
    Kind(f"MPUB of {MANY} x {SIZE} B", MANY, mpub(SIZE)),
    Kind(f"MPUB of {MANY} x {LARGE} B", MANY, mpub(LARGE)),
)


def measure(kind: Kind, folder: Path, rounds: int) -> tuple[float, float]:
    """The median seconds of a turn, and the lowest mean of the rounds."""
    turns = kind.turns(Line(folder))
    usual = statistics.median(islice(turns, WARM_UP))
    count = max(1, int(WINDOW_SECONDS / usual))
    taken = [[*islice(turns, count)] for _ in range(rounds)]
    return statistics.median(chain.from_iterable(taken)), min(map(statistics.fmean, taken))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="bench.turns", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each kind of turn")
    parser.add_argument("--only", default="", help="only kinds whose name contains this text")
    parser.add_argument("--turns", type=int, help="run this number of each kind of turn, untimed")
    given = parser.parse_args(arguments)
    print(f"{'us':<32}{'median':>10}{'a message':>12}{'lowest mean':>14}")
    for kind in KINDS:
        if given.only in kind.name:
            with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=".") as folder:
                if given.turns:
                    sum(islice(kind.turns(Line(Path(folder).resolve())), given.turns))
                    continue
                median, mean = measure(kind, Path(folder).resolve(), given.rounds)
            us = median * 1e6
            figures = f"{us:>10.1f}{us / kind.messages:>12.2f}{mean * 1e6:>14.1f}"
            print(f"{kind.name:<32}{figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
