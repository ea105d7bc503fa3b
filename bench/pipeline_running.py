"""The measured pipeline: real nsqds and `sparq pipeline`, observed from outside.

1. The bench observes the depths of the channels on the nsqds, which fall as Spark commits, and the
   output files. So a figure does not depend on how a query is implemented.
2. It is an error if the application ends by itself: no figure includes a second start.
3. A wait fails if no depth has changed for STALL_SECONDS; the error has the end of the log.
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

from bench import pipeline_clicks
from bench.pipeline_clicks import TOPIC
from bench.pipeline_processes import POLL_SECONDS, BenchError
from sparq.pipeline.run.processes import LocalCluster
from sparq.program.supervised import SupervisedProcess

QUERIES = ("archive", "metrics", "spam_analysis")
STALL_SECONDS = 300.0
END_SECONDS = 30.0
LOG_CHARACTERS = 3_000
NOTE_SECONDS = 10.0
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}


def note(text: str) -> None:
    """Print a step of the bench to standard error, with the time (UTC)."""
    print(f"  {datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


class Running:
    """nsqds with the topic and a channel for each query; the application once `start` is called.

    Args:
        folder: the folder for all files; created here.
        queries: the queries to run.
        nsqds: the number of nsqds.
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
        self._queries = queries
        self._flags = flags
        self._cluster = LocalCluster(folder / "logs", folder, nsqds)
        self.application = SupervisedProcess(
            "sparq pipeline", [], self.log, environment=os.environ | LOOPBACK
        )

    def __enter__(self) -> Self:
        self._cluster.start(TOPIC, self._queries)
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            stack.callback(self._cluster.stop)
            stack.callback(self.application.stop, END_SECONDS)

    @property
    def nsqds(self) -> list[str]:
        """The nsqds' TCP addresses."""
        return [nsqd.tcp for nsqd in self._cluster.nsqds]

    def start(self) -> None:
        """Start the application."""
        command = [sys.executable, "-m", "sparq.cli", "pipeline", "--data", self.data.as_uri()]
        command += ["--lookupd-http-address", self._cluster.lookupd.http, "--topic", TOPIC]
        command += ["--queries", ",".join(self._queries), "--metrics-address", "", *self._flags]
        note("sparq pipeline starts")
        self.application.command = command
        self.application.start()

    def publish(self, lines: Iterable[bytes]) -> int:
        """Publish until all lines are acknowledged; return their number."""
        note("publishing to the nsqds")
        count = pipeline_clicks.publish(lines, self.nsqds)
        note(f"published: {count:,} clicks")
        return count

    def check(self) -> None:
        """Raise a BenchError if the application has ended."""
        if (status := self.application.exit_status()) is not None:
            raise BenchError(f"sparq pipeline ended with status {status}:\n{self.log_end()}")

    def log_end(self) -> str:
        """The end of the application's log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text[-LOG_CHARACTERS:]

    def depths(self) -> dict[str, int]:
        """Return the number of messages each query has left to read, over all nsqds."""
        self.check()
        depths = self._cluster.depths(TOPIC, self._queries)
        if depths is None:
            raise BenchError("an nsqd does not answer")
        return depths

    def wait(self, is_done: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Wait until `is_done` accepts the depths; return them.

        Raises:
            BenchError: the application has ended, or no depth has changed for STALL_SECONDS.
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
        """Wait until no query has messages left; return the time at which this was observed."""
        self.wait(lambda depths: not any(depths.values()))
        return time.perf_counter()
