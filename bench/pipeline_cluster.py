"""A standalone cluster of Spark on loopback: a master and one worker, from the installed package.

Executors are separate processes there, so the driver's memory can be measured: in `local[2]` its
JVM also holds the state of the queries.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers import free_port

from bench.pipeline_processes import BenchError, until
from bench.pipeline_running import LOOPBACK
from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python
from sparq.program.supervised import HOST, SupervisedProcess

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
CORES = 2
WORKER_MEMORY = "4g"
DAEMON_MEMORY = "512m"
START_SECONDS = 120.0


def spark_home() -> Path:
    """The folder of the installed package, which is a complete Spark distribution."""
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run a master and a worker with two cores; yields the master's URL.

    Raises:
        BenchError: they do not start.
    """
    folder.mkdir(parents=True)
    ensure_java()
    use_this_python()
    port, pages = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    with _daemon(folder, MASTER, ["--port", str(port), "--webui-port", str(pages)]):
        worker = ["--cores", str(CORES), "--memory", WORKER_MEMORY]
        worker += ["--work-dir", str(folder / "work"), "--webui-port", str(free_port()), url]
        until(lambda: _workers(pages) is not None, START_SECONDS, "Spark's master")
        with _daemon(folder, WORKER, worker):
            until(lambda: _workers(pages), START_SECONDS, "Spark's worker")
            yield url


@contextmanager
def _daemon(folder: Path, name: str, flags: list[str]) -> Iterator[None]:
    home = spark_home()
    command = [str(home / "bin" / "spark-class"), name, "--host", HOST, *flags]
    own = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": DAEMON_MEMORY}
    environment = os.environ | LOOPBACK | own
    program = SupervisedProcess(
        name, command, folder / f"{name.rpartition('.')[2]}.log", environment=environment
    )
    program.start()
    try:
        yield
        if program.has_ended():
            raise BenchError(f"{name} ended with status {program.exit_status()}: see {folder}")
    finally:
        program.stop()


def _workers(pages: int) -> int | None:
    """The number of a master's live workers; None while it does not answer."""
    with (
        suppress(OSError, http.client.HTTPException, ValueError),
        closing(http.client.HTTPConnection(HOST, pages, timeout=10)) as connection,
    ):
        connection.request("GET", "/json/")
        return int(json.loads(connection.getresponse().read())["aliveworkers"])
    return None
