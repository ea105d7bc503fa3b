"""The pipeline under measurement: real nsqds, `sparq pipeline`, and what can be seen of them.

1. Everything is seen from outside: the depths of the channels on the nsqds, which fall as Spark
   commits, and the files that readers find. So a figure means the same whatever a query is made of.
2. An application that ends by itself is an error: a figure never holds a second start.
3. A wait ends when nothing has moved for STALL_SECONDS, with the end of the application's log.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd

from bench import pipeline_clicks
from bench.pipeline_clicks import TOPIC
from bench.pipeline_processes import POLL_SECONDS, BenchError
from sparq.program.supervised import SupervisedProcess

QUERIES = ("archive", "metrics", "spam_analysis")
STALL_SECONDS = 300.0
END_SECONDS = 30.0
LOG_CHARACTERS = 3_000
NOTE_SECONDS = 10.0
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}


def note(text: str) -> None:
    """Say on standard error how far the bench is, with the time of day."""
    print(f"  {datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


class Running:
    """nsqds with the topic and a channel for each query; the application once `start` is called.

    Args:
        folder: for everything that is written; made here.
        queries: which of the three run.
        nsqds: how many.
        flags: further flags of `sparq pipeline`.
    """

    def __init__(
        self,
        folder: Path,
        queries: Sequence[str] = QUERIES,
        nsqds: int = 1,
        flags: Sequence[str] = (),
    ) -> None:
        self.data = folder / "data"
        self.log = folder / "app.log"
        self._folder = folder
        self._queries = queries
        self._count = nsqds
        self._flags = flags
        self._stack = ExitStack()
        self._nsqds: list[NsqdServer] = []
        self.application = SupervisedProcess(
            "sparq pipeline", [], self.log, environment=os.environ | LOOPBACK
        )

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        with self._stack:
            self._lookupd: Server = self._stack.enter_context(spawn_nsqlookupd(self._folder))
            for number in range(1, self._count + 1):
                nsqd = spawn_nsqd(
                    self._folder,
                    f"--node-id={number}",
                    lookupds=(self._lookupd,),
                    name=f"nsqd-{number}",
                )
                self._nsqds.append(self._stack.enter_context(nsqd))
                nsqd.post(f"/topic/create?topic={TOPIC}")
                for query in self._queries:
                    nsqd.post(f"/channel/create?topic={TOPIC}&channel={query}")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.application.stop(END_SECONDS)

    @property
    def nsqds(self) -> list[str]:
        """The nsqds' TCP addresses."""
        return [nsqd.tcp for nsqd in self._nsqds]

    def start(self) -> None:
        """Start the application."""
        command = [sys.executable, "-m", "sparq.cli", "pipeline", "--data", self.data.as_uri()]
        command += ["--lookupd-http-address", self._lookupd.http, "--topic", TOPIC]
        command += ["--queries", ",".join(self._queries), "--metrics-address", "", *self._flags]
        note("sparq pipeline starts")
        self.application.command = command
        self.application.start()

    def publish(self, lines: Iterable[bytes]) -> int:
        """Publish, until everything is acknowledged; how many lines."""
        note("publishing to the nsqds")
        count = pipeline_clicks.publish(lines, self.nsqds)
        note(f"published: {count:,} clicks")
        return count

    def check(self) -> None:
        """Raise a BenchError where the application has ended."""
        if (status := self.application.exit_status()) is not None:
            raise BenchError(f"sparq pipeline ended with status {status}:\n{self.log_end()}")

    def log_end(self) -> str:
        """The end of the application's log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text[-LOG_CHARACTERS:]

    def depths(self) -> dict[str, int]:
        """How many messages each query has before it, on all nsqds together.

        A new topic keeps what is published until nsqlookupd has told its channels: that counts.
        """
        self.check()
        sums = dict.fromkeys(self._queries, 0)
        for nsqd in self._nsqds:
            stats = nsqd.get_json(f"/stats?format=json&include_clients=false&topic={TOPIC}")
            topic = stats["topics"][0]
            for channel in topic["channels"]:
                sums[channel["channel_name"]] += topic["depth"] + channel["depth"]
        return sums

    def wait(self, is_done: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Wait until the depths are as wanted; they are returned.

        Raises:
            BenchError: the application has ended, or no query has taken anything for
                STALL_SECONDS.
        """
        depths = self.depths()
        moved = noted = time.monotonic()
        while not is_done(depths):
            time.sleep(POLL_SECONDS)
            before, depths, now = depths, self.depths(), time.monotonic()
            moved = now if depths != before else moved
            if now - moved > STALL_SECONDS:
                raise BenchError(f"no query went on for {STALL_SECONDS:.0f} s:\n{self.log_end()}")
            if now - noted > NOTE_SECONDS:
                noted = now
                note("to do: " + ", ".join(f"{name} {left:,}" for name, left in depths.items()))
        return depths

    def drain(self) -> float:
        """Wait until every query has taken everything; the time at which this was seen."""
        self.wait(lambda depths: not any(depths.values()))
        return time.perf_counter()
