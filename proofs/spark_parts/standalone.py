"""A standalone Spark cluster from the installed package: master, workers and driver, on loopback.

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
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pyspark
from tests.support.waiting import wait_for

from proofs.workload import python_path
from sparq.pipeline.folders import read_json
from sparq.pipeline.java import ensure_java
from sparq.pipeline.run.processes import App, free_port
from sparq.program.supervised import (
    HOST,
    SupervisedDaemon,
    SupervisedProcess,
    members_of,
    send,
)

SPARK_HOME = Path(pyspark.__file__).parent
SPARK_CLASS = str(SPARK_HOME / "bin" / "spark-class")
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WORKERS = 2
WORKER_MEMORY = "2g"
DAEMON_MEMORY = "256m"
START_SECONDS = 180.0
POLL_SECONDS = 0.1
TAIL_LINES = 25
TAIL_BYTES = 20_000


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
        "SPARK_HOME": str(SPARK_HOME),
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
        port, web_port = free_port(), free_port()
        self.url = f"spark://{HOST}:{port}"
        words = [SPARK_CLASS, MASTER, "--host", HOST, "--port", str(port)]
        self.master = SupervisedDaemon(
            "master",
            [*words, "--webui-port", str(web_port)],
            folder / "master.log",
            web_port,
            environment=environment(folder),
            folder=folder,  # Spark creates folders where it is started
        )
        # One host each: Spark starts no second attempt of a task on the host of the first.
        self.workers = [self._worker(at + 1) for at in range(workers)]

    def _worker(self, number: int) -> SupervisedProcess:
        host = f"127.0.0.{number}"
        return SupervisedProcess(
            f"worker-{number}",
            [SPARK_CLASS, WORKER, "--host", host],
            self.folder / f"worker-{number}.log",
            environment=environment(self.folder, host),
            folder=self.folder,
        )

    def start(self) -> None:
        """Start everything, and return when the master knows all workers.

        Raises:
            AssertionError: not in time; the message has the last lines of the logs.
        """
        self.master.start()
        self._until("master", lambda: self.living_workers() is not None)
        for worker in self.workers:
            self.start_worker(worker)
        self.wait_for_workers()

    def start_worker(self, worker: SupervisedProcess) -> None:
        """Start a worker that does not run; it registers with the master some seconds later."""
        words = ["--port", "0", "--webui-port", "0", "--memory", WORKER_MEMORY]
        words += ["--cores", str(self.cores), "--work-dir", str(self._work_dir(worker))]
        worker.command = [*worker.command[:4], *words, self.url]
        worker.start()

    def wait_for_workers(self) -> None:
        """Return when the master knows all workers that run.

        Raises:
            AssertionError: not in time; the message has the last lines of the logs.
        """
        running = sum(worker.process is not None for worker in self.workers)
        self._until(f"{running} workers", lambda: self.living_workers() == running)

    def living_workers(self) -> int | None:
        """Return the number of workers that the master can use; None while it does not answer."""
        try:
            workers = json.loads(self.master.request("GET", "/json/")[1])["workers"]
        except (OSError, ValueError, http.client.HTTPException):
            return None
        return [worker["state"] for worker in workers].count("ALIVE")

    def stop(self) -> None:
        """End everything that runs."""
        with ExitStack() as ends:
            for program in (self.master, *self.workers):
                ends.callback(program.kill)

    def _work_dir(self, worker: SupervisedProcess) -> Path:
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


DRIVER_PARTS = ("python", "jvm", "group")
"""The part of a driver that is killed: its Python, its JVM, or all of it at once."""

REST_SECONDS = 10.0


def driver_pids(driver: int, part: str) -> list[int]:
    """Return the processes of this part of the driver; its Python is the first of its session."""
    if part == "python":
        return [driver]
    return [pid for pid in members_of(driver) if part == "group" or is_java(pid)]


class Driver(App):
    """The driver, started repeatedly; it continues from the checkpoints.

    Args:
        data: the data folder, on a disk that all executors see.
        folder: a folder for Spark's own files.
        flags: its command line without the data folder.
        module: what is run: the pipeline, or a module of this proof that changes it.
    """

    def __init__(self, data: Path, folder: Path, flags: Sequence[str], module: str) -> None:
        run_dir = data / "run"
        super().__init__(data, [f"--data={data.as_uri()}", f"--run-dir={run_dir}", *flags])
        for each in (folder, run_dir):
            each.mkdir(parents=True, exist_ok=True)
        self.command[2] = module
        self.environment = {**environment(folder), "PYTHONPATH": python_path()}
        self.folder = folder  # Spark creates folders where it is started
        self._status = run_dir / "app.json"

    def stage(self) -> str:
        """Return starting, running, closing or done; empty before the first status of a start."""
        status = read_json(self._status)
        return str(status.get("stage", "")) if status.get("pid") == self.pid else ""

    def is_running(self) -> bool:
        """Return whether it is alive and its queries are started."""
        return self.exit_status() is None and self.stage() == "running"

    def kill_part(self, part: str) -> None:
        """kill -9 a part of it; the rest may end by itself, and is killed otherwise."""
        send(driver_pids(self.pid, part), signal.SIGKILL)
        deadline = time.monotonic() + REST_SECONDS
        while members_of(self.pid) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        # A JVM that outlives its Python must not overlap with the next driver.
        self.kill()
