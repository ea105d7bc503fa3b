"""Source and sink in the spark-pipelines project of docs/pipeline.md."""

from __future__ import annotations

import contextlib
import shlex
import socket
from pathlib import Path

import pytest

from tests.scenarios.docs import pages
from tests.support.run_program import run_program
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import drain

PAGE = "docs/pipeline.md"
SECTION = "A declarative pipeline"
PORT = 15002
"""The port on which spark-pipelines starts its Spark Connect server."""
RUN_SECONDS = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def project(folder: Path, nsqd: NsqdServer) -> None:
    """Write the page's files."""
    (spec,) = pages.blocks(pages.section(PAGE, SECTION), "yaml")
    (program,) = pages.blocks(pages.section(PAGE, SECTION), "python")
    storage = {"file:///srv/clicks/storage": f"file://{folder}/storage"}
    (folder / "spark-pipeline.yml").write_text(pages.with_addresses(spec, storage))
    (folder / "transformations").mkdir()
    text = pages.with_addresses(program, {"127.0.0.1:4150": nsqd.tcp})
    (folder / "transformations" / "errors.py").write_text(text)


def run(folder: Path) -> None:
    """Run the page's command."""
    (line,) = pages.lines_of(PAGE, "spark-pipelines")
    ran = run_program(
        shlex.split(line), cwd=folder, env=pages.spark_environment(), seconds=RUN_SECONDS
    )
    assert 0 == ran.returncode, (ran.stdout + ran.stderr)[-6000:]


def is_free(port: int) -> bool:
    """Whether nothing listens on this port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return False
    return True


def test_source_and_sink_work_in_a_declarative_pipeline(tmp_path: Path) -> None:
    """A run publishes the selected lines; the next run publishes only later ones."""
    lacking = pages.missing_packages(pages.PIPELINES)
    if lacking:
        pytest.skip(f"needs {lacking}")
    if not is_free(PORT):
        pytest.skip(f"needs port {PORT} free, for Spark's own server")
    lines = "".join(pages.blocks(pages.section(PAGE, "Start"), "")).encode()
    wanted = [line for line in lines.splitlines() if b'" 404 ' in line]
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=clicks.errors")
        nsqd.post("/channel/create?topic=clicks.errors&channel=seen")
        nsqd.post("/mpub?topic=clicks", lines)
        project(tmp_path, nsqd)

        run(tmp_path)
        first = drain(nsqd, "clicks.errors", "seen")
        nsqd.post("/pub?topic=clicks", wanted[0])
        run(tmp_path)
        second = drain(nsqd, "clicks.errors", "seen")

    assert (sorted(wanted), [wanted[0]]) == (sorted(first), second)
