"""A standalone Spark cluster from the installed package: a master and its workers, on loopback.

    bin/spark-class org.apache.spark.deploy.master.Master
    bin/spark-class org.apache.spark.deploy.worker.Worker spark://HOST:PORT

Each is a separate process, and each executor is a process started by a worker. The workers share
this machine's disk, which stands for a cluster's file system: the driver and the other executors
see an executor's output at once. Each worker has its own loopback address, 127.0.0.1 and 127.0.0.2,
so that Spark treats them as two hosts.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from tests.support.waiting import wait_for

from proofs.workload import python_path
from sparq.pipeline.java import ensure_java
from sparq.pipeline.run.processes import free_port
from sparq.program.supervised import HOST, SupervisedProcess, members_of, send

TOPIC = "clicks"
POLL_SECONDS = 0.1
TAIL_LINES = 25
TAIL_BYTES = 20_000


class Program(SupervisedProcess):
    """A supervised program of which single processes can be ended or stopped."""

    def started(self) -> list[int]:
        """Return the processes that it has started, without itself."""
        return [pid for pid in members_of(self.pid) if pid != self.pid]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        send(members_of(self.pid), number)

    def wait(self, seconds: float) -> None:
        """Return when all its processes have ended, or after this number of seconds."""
        deadline = time.monotonic() + seconds
        while members_of(self.pid) and time.monotonic() < deadline:
            self.exit_status()
            time.sleep(POLL_SECONDS)


def is_java(pid: int) -> bool:
    """Return whether a process is a JVM."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def last_lines(path: Path) -> str:
    """Return the last lines of a log, after its name."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join((f"--- the end of {path.name}", *lines[-TAIL_LINES:])) if lines else ""


MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WORKERS = 2
WORKER_MEMORY = "2g"
DAEMON_MEMORY = "256m"
START_SECONDS = 180.0
REQUEST_SECONDS = 5.0


def spark_home() -> Path:
    """Return the folder of the installed package, which has Spark's programs and jars."""
    return Path(pyspark.__file__).parent


def environment(folder: Path, host: str = HOST) -> dict[str, str]:
    """Return the environment variables of every program of the cluster, including the driver.

    Args:
        folder: for Spark's own files.
        host: the address that the program listens on.
    """
    ensure_java()
    settings = folder / "conf"
    settings.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        # Empty: settings of another Spark on this machine must not apply to this cluster.
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_LOCAL_IP": host,
        "SPARK_PUBLIC_DNS": host,
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=false",
    }


class StandaloneCluster:
    """The master and the workers.

    Args:
        folder: a new folder for logs and the executors' output.
        cores: number of tasks at a time on each worker.
        workers: number of workers.
    """

    def __init__(self, folder: Path, cores: int = 1, workers: int = WORKERS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cores = cores
        self._port, self._web_port = free_port(), free_port()
        ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
        self.master = self._program("master", MASTER, ports)
        # One host each: Spark starts no second attempt of a task on the host of the first.
        hosts = [f"127.0.0.{at + 1}" for at in range(workers)]
        self.workers = [
            self._program(f"worker-{at + 1}", WORKER, host=host) for at, host in enumerate(hosts)
        ]

    def _program(
        self, name: str, main_class: str, words: list[str] | None = None, host: str = HOST
    ) -> Program:
        program = str(spark_home() / "bin" / "spark-class")
        command = [program, main_class, "--host", host, *(words or [])]
        return Program(
            name,
            command,
            self.folder / f"{name}.log",
            environment=environment(self.folder, host),
            folder=self.folder,  # Spark creates folders where it is started
        )

    @property
    def url(self) -> str:
        """Return the value for `--master`."""
        return f"spark://{HOST}:{self._port}"

    def start(self) -> None:
        """Start everything, and return when the master knows all workers.

        Raises:
            AssertionError: not in time; the message has the last lines of the logs.
        """
        self.master.start()
        self._until("master", lambda: self.state() is not None)
        for worker in self.workers:
            self.start_worker(worker)
        self.wait_for_workers()

    def start_worker(self, worker: Program, cores: int | None = None) -> None:
        """Start a worker, which registers with the master some seconds later.

        Args:
            worker: one that is not running.
            cores: replaces the cluster's number of cores.
        """
        words = ["--port", "0", "--webui-port", "0", "--memory", WORKER_MEMORY]
        words += ["--cores", str(cores or self.cores), "--work-dir", str(self._work_dir(worker))]
        worker.command = [*worker.command[:4], *words, self.url]
        worker.start()

    def wait_for_workers(self) -> None:
        """Return when the master knows all workers that run.

        Raises:
            AssertionError: not in time; the message has the last lines of the logs.
        """
        running = sum(worker.process is not None for worker in self.workers)
        self._until(f"{running} workers", lambda: self.living_workers() == running)

    def state(self) -> dict[str, Any] | None:
        """Return the master's status; None while it does not answer."""
        connection = http.client.HTTPConnection(HOST, self._web_port, timeout=REQUEST_SECONDS)
        try:
            connection.request("GET", "/json/")
            return dict(json.loads(connection.getresponse().read()))
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def living_workers(self) -> int:
        """Return the number of workers that the master can use."""
        workers = (self.state() or {}).get("workers", [])
        return sum(worker["state"] == "ALIVE" for worker in workers)

    def stop(self) -> None:
        """End everything that runs."""
        with ExitStack() as ends:
            for program in (self.master, *self.workers):
                ends.callback(program.kill)

    def _work_dir(self, worker: Program) -> Path:
        return self.folder / f"{worker.name}-executors"

    def logs(self) -> list[Path]:
        """Return the logs of the programs, and of the newest executor of each worker."""
        found = [program.log for program in (self.master, *self.workers)]
        for worker in self.workers:
            printed = self._work_dir(worker).glob("app-*/*/stderr")
            found += sorted(printed, key=lambda path: path.stat().st_mtime)[-1:]
        return found

    def _until(self, what: str, check: Callable[[], object]) -> None:
        def told() -> str:
            return "\n".join((what, *map(last_lines, self.logs())))

        wait_for(check, START_SECONDS, told, POLL_SECONDS)


# The driver

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
