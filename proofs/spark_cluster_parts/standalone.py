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
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
from tests.support.waiting import wait_for

from proofs.spark_cluster_parts.programs import Program, last_lines
from sparq.pipeline.java import ensure_java
from sparq.pipeline.run.processes import free_port
from sparq.program.supervised import HOST

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WORKERS = 2
WORKER_MEMORY = "2g"
DAEMON_MEMORY = "256m"
START_SECONDS = 180.0
REQUEST_SECONDS = 5.0
POLL_SECONDS = 0.1


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
