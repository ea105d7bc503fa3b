"""Source and sink over Spark Connect: the program in docs/pipeline.md with its own server."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.program.supervised import SupervisedProcess
from tests.scenarios.docs import pages
from tests.support.servers import free_port, spawn_nsqd
from tests.support.waiting import wait_for

PAGE = "docs/pipeline.md"
SECTION = "Spark Connect"
START_SECONDS = 120.0
STOP_SECONDS = 30.0

pytestmark = pytest.mark.timeout(600)


@contextlib.contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """Run the server of the page's command line, on another port and on loopback."""
    (line,) = pages.lines_of(PAGE, "spark-submit")
    words = shlex.split(pages.with_addresses(line, {"15002": str(port)}))
    more = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words += [word for key, value in more.items() for word in ("--conf", f"{key}={value}")]
    log = folder / "server.log"
    process = SupervisedProcess(
        "Spark Connect", words, log, environment=pages.spark_environment(), folder=folder
    )
    process.start()

    def listens() -> bool:
        assert not process.has_ended(), log.read_text(errors="replace")[-4000:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        wait_for(listens, START_SECONDS, every=0.1)
        yield
    finally:
        process.stop(STOP_SECONDS)


def test_source_and_sink_work_over_spark_connect(tmp_path: Path) -> None:
    """A Spark Connect client reads a topic as a stream, writes one, and reads it as a batch."""
    lacking = pages.missing_packages(pages.CONNECT)
    if lacking:
        pytest.skip(f"needs {lacking}")
    (program,) = pages.blocks(pages.section(PAGE, SECTION), "python")
    (expected,) = pages.blocks(pages.section(PAGE, SECTION), "")
    lines = "".join(pages.blocks(pages.section(PAGE, "Start"), "")).encode()
    port = free_port()
    with spawn_nsqd(tmp_path) as nsqd, server(tmp_path, port):
        nsqd.post("/mpub?topic=clicks", lines)
        for command in pages.lines_of(PAGE, "curl"):
            nsqd.post(shlex.split(command)[-1].removeprefix("http://127.0.0.1:4151"))
        addresses = {"127.0.0.1:4150": nsqd.tcp, "127.0.0.1:15002": f"127.0.0.1:{port}"}

        printed = pages.run_spark(pages.with_addresses(program, addresses), tmp_path)

        assert expected == printed
        assert 0 == nsqd.channel("clicks", "remote")["in_flight_count"]
