"""The cost of `/stats` and `/metrics` with many topics: `python -m bench.stats_scale`.

The bench requests `/stats` and `/metrics` repeatedly from an nsqd with 1,000 topics of 5 channels.
Meanwhile another process sends one message after the other through nsqd and waits for each. The
bench prints the time to each answer, the longest delivery during a request, and for comparison the
longest delivery without requests, which is due to the disk and the machine.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support.servers import Server, spawn_nsqd
from tests.support.v2_client import OK, V2Client, fin_each

from sparq.protocol.commands import pub, rdy, sub

TOPIC = "stall"
PATHS = ("/stats?format=json", "/stats", "/metrics")
ANSWER_SECONDS_MAX = 1.0
STALL_SECONDS_MAX = 0.05
MAKERS = 8
PAUSE_SECONDS = 0.3
DELIVERY_SECONDS = 60.0

Way = tuple[float, float]
"""The times at which a message was sent and arrived, on the machine's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one path, in seconds.

    Attributes:
        answers: time to each answer.
        size_bytes: size of the last answer.
        longest: longest delivery that overlaps a request.
    """

    path: str
    answers: list[float]
    size_bytes: int
    longest: float

    def line(self) -> str:
        """The figures as text."""
        return (
            f"{self.path:<20} answers in {min(self.answers) * 1000:.0f} to "
            f"{max(self.answers) * 1000:.0f} ms, {self.size_bytes / 1e6:.1f} MB; "
            f"longest delivery meanwhile {self.longest * 1000:.1f} ms"
        )


def make(server: Server, topics: int, channels: int) -> None:
    """Create the topics and channels, several at a time."""

    def create(numbers: range) -> None:
        connection = http.client.HTTPConnection(server.http)
        for number in numbers:
            name = f"topic{number:05d}"
            paths = [f"/topic/create?topic={name}"]
            paths += [f"/channel/create?topic={name}&channel=c{c}" for c in range(channels)]
            for path in paths:
                connection.request("POST", path)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, path
        connection.close()

    with ThreadPoolExecutor(MAKERS) as makers:
        list(makers.map(create, [range(at, topics, MAKERS) for at in range(MAKERS)]))


def send_and_wait(port: int, control: Connection) -> None:
    """Send message after message until `control` has input; then send back all their times."""
    ways: list[Way] = []
    publish = pub(TOPIC, b"body")
    with V2Client(port, seconds=DELIVERY_SECONDS, answers_heartbeats=True) as client:
        assert client.ask(sub(TOPIC, "c")) == OK
        client.send(rdy(1))
        while not control.poll():
            began = time.monotonic()
            client.send(publish)
            messages = client.messages(1)
            ways.append((began, time.monotonic()))
            client.send(fin_each(messages))
            assert client.ask(b"") == OK
    control.send(ways)


def ask(server: Server, path: str) -> tuple[float, float, int]:
    """The time of the request, the time at which its answer was complete, and its size."""
    connection = http.client.HTTPConnection(server.http)
    began = time.monotonic()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, path
    connection.close()
    return began, time.monotonic(), len(body)


def longest_during(ways: Sequence[Way], spans: Sequence[tuple[float, float]]) -> float:
    """The longest delivery that overlaps one of the spans, in seconds."""
    return max(
        (end - begin for begin, end in ways for start, stop in spans if begin < stop > start < end),
        default=0.0,
    )


def measure(topics: int, channels: int, rounds: int) -> tuple[list[Found], float]:
    """Measure; return the figures of each path, and the longest delivery without requests."""
    with (
        tempfile.TemporaryDirectory(prefix="sparq-stats-") as folder,
        spawn_nsqd(Path(folder)) as server,
    ):
        make(server, topics, channels)
        spawn = multiprocessing.get_context("spawn")
        control, other = spawn.Pipe()
        sender = spawn.Process(target=send_and_wait, args=(server.tcp_port, other), daemon=True)
        sender.start()
        time.sleep(2)
        quiet_from = time.monotonic()
        time.sleep(rounds * PAUSE_SECONDS)
        quiet = (quiet_from, time.monotonic())
        asked: dict[str, list[tuple[float, float, int]]] = {path: [] for path in PATHS}
        for path in PATHS * rounds:
            asked[path].append(ask(server, path))
            time.sleep(PAUSE_SECONDS)
        control.send("enough")
        ways: list[Way] = control.recv()
        sender.join()
    found = [
        Found(
            path,
            [stop - start for start, stop, _ in answers],
            answers[-1][2],
            longest_during(ways, [(start, stop) for start, stop, _ in answers]),
        )
        for path, answers in asked.items()
    ]
    return found, longest_during(ways, [quiet])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if the promise does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    found, quiet = measure(options.topics, options.channels, options.rounds)
    print(f"{options.topics} topics x {options.channels} channels")
    print(f"longest delivery without requests: {quiet * 1000:.1f} ms")
    for figures in found:
        print(figures.line())
    holds = all(
        max(f.answers) < ANSWER_SECONDS_MAX and f.longest < STALL_SECONDS_MAX for f in found
    )
    print(f"answers under 1 s, deliveries under 50 ms: {'holds' if holds else 'DOES NOT HOLD'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
