"""The pipeline as a separate process: `sparq pipeline` on a cluster, as a supervisor sees it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proofs.daemon_fixture import python_path
from proofs.spark_cluster_parts.feed import TOPIC
from proofs.spark_cluster_parts.programs import Program, is_java
from proofs.spark_cluster_parts.standalone import environment
from sparq.program.supervised import HOST, send

PIPELINE = "sparq.pipeline.app"
PARTS = ("python", "jvm", "group")
"""The part of a driver that is killed: its Python, its JVM, or all of it at once."""

REST_SECONDS = 10.0

ON_LOOPBACK = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
}


def command_line(
    master: str,
    lookupd: str,
    data: Path,
    run_dir: Path,
    *,
    offsets: int,
    spark: Iterable[tuple[str, str]] = (),
) -> list[str]:
    """Return the command line after `sparq pipeline`.

    Args:
        master: URL of the Spark master.
        lookupd: HTTP address of an nsqlookupd.
        data: the data folder, on a disk that all executors see.
        run_dir: the folder for the application's status file.
        offsets: maximum number of messages in a batch.
        spark: further options of Spark.
    """
    options = {**ON_LOOPBACK, **dict(spark)}
    return [
        f"--master={master}",
        f"--lookupd-http-address={lookupd}",
        f"--data={data.as_uri()}",
        f"--run-dir={run_dir}",
        f"--topic={TOPIC}",
        f"--max-offsets-per-trigger={offsets}",
        "--driver-memory=1g",
        "--executor-memory=1g",
        "--metrics-address=",
        *(f"--spark={key}={value}" for key, value in options.items()),
    ]


@dataclass
class Driver:
    """The driver, started repeatedly.

    Attributes:
        words: its command line.
        folder: a folder for its log and for Spark's own files.
        run_dir: from its command line.
        module: what is run: the pipeline, or a module of this proof that changes it.
    """

    words: list[str]
    folder: Path
    run_dir: Path
    module: str = PIPELINE
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the program."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.program = Program(
            "driver",
            [sys.executable, "-m", self.module, *self.words],
            self.folder / "driver.log",
            environment={**environment(self.folder), "PYTHONPATH": python_path()},
            folder=self.folder,  # Spark creates folders where it is started
        )

    def start(self) -> None:
        """Start it; it continues from the checkpoints."""
        self.program.start()

    def status(self) -> dict[str, Any]:
        """Return its latest status since its newest start; empty before the first."""
        with suppress(OSError, ValueError):
            said = dict(json.loads((self.run_dir / "app.json").read_text(encoding="utf-8")))
            if said.get("pid") == self.program.pid:
                return said
        return {}

    def stage(self) -> str:
        """Return its stage: starting, running, closing, done; empty before the first status."""
        return str(self.status().get("stage", ""))

    def is_running(self) -> bool:
        """Return whether it is alive and its queries are started."""
        return self.program.exit_status() is None and self.stage() == "running"

    def kill(self, part: str) -> None:
        """kill -9 a part of it; the rest may end by itself, and is killed otherwise."""
        members = self.program.started()
        pids = {
            "python": [self.program.pid],
            "jvm": [pid for pid in members if is_java(pid)],
            "group": [self.program.pid, *members],
        }
        send(pids[part], signal.SIGKILL)
        self.program.wait(REST_SECONDS)
        # A JVM that outlives its Python must not overlap with the next driver.
        self.program.kill()

    def finish(self) -> None:
        """Tell it that no more messages will come."""
        (self.run_dir / "finish").touch()
