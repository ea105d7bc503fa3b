"""Time to publish to many topics at the same time, with sync: `python -m bench.many_topics`.

A round sends a PUB of 200 bytes to each topic, all in one write, and waits for the last OK. Two
nsqds take turns: in one, commits of several topics share a sync through the journal; in the other,
each commit syncs its topic's file.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from proofs.daemon_fixture import started
from tests.support.servers import NsqdServer
from tests.support.v2_client import OK, OK_BYTES, V2Client

from bench.measure import cpu_seconds
from sparq.protocol.commands import identify, pub

MODULES = {"journal": "sparq.nsqd", "own": "bench.own_syncs"}
BODY = bytes(200)
QUIET = b'{"heartbeat_interval": -1}'
HEADER = f"{'topics':>7}" + "".join(
    f"{name:>12} ms{'p99':>9}{'CPU us':>9}" for name in ("journal", "own files")
)


class Publisher:
    """A connection to one nsqd, and the results of its rounds.

    Attributes:
        seconds: length of each round.
        cpu: CPU time of nsqd in all rounds, in seconds.
    """

    def __init__(self, server: NsqdServer, topics: list[str]) -> None:
        self.seconds: list[float] = []
        self.cpu = 0.0
        self._server = server
        self._data = b"".join(pub(topic, BODY) for topic in topics)
        self._answers = OK_BYTES * len(topics)
        self._client = V2Client(server, seconds=60)
        assert self._client.ask(identify(QUIET)) == OK
        self._publish()

    def round(self) -> None:
        """Publish to every topic, and measure the time and nsqd's CPU."""
        before, began = cpu_seconds(self._server.pid), time.perf_counter()
        self._publish()
        self.seconds.append(time.perf_counter() - began)
        self.cpu += cpu_seconds(self._server.pid) - before

    def _publish(self) -> None:
        self._client.send(self._data)
        answers = self._client.receive(len(self._answers))
        if answers != self._answers:
            raise AssertionError(answers[:200])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def compare(servers: dict[str, NsqdServer], count: int, rounds: int) -> str:
    """Run rounds with `count` topics, the nsqds taking turns; return a line of the table."""
    topics = [f"many-{count}-{number}" for number in range(count)]
    publishers = [Publisher(server, topics) for server in servers.values()]
    for _ in range(rounds):
        for publisher in publishers:
            publisher.round()
    line = f"{count:>7,}"
    for publisher in publishers:
        publisher.close()
        taken = sorted(publisher.seconds)
        p99 = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
        cpu_us = publisher.cpu / rounds / count * 1e6
        line += f"{statistics.median(taken) * 1e3:>15.2f}{p99 * 1e3:>9.1f}{cpu_us:>9.1f}"
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, nargs="*", default=[1, 4, 10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=200, help="rounds for each number of topics")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="sparq-many-topics-"))
    servers: dict[str, NsqdServer] = {}
    try:
        for name, module in MODULES.items():
            home = folder / name
            home.mkdir()
            servers[name] = started(home, module)
        print(HEADER)
        for count in given.topics:
            print(compare(servers, count, given.rounds), flush=True)
    finally:
        for server in servers.values():
            server.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
