"""What the pipeline's proof reads itself: a checkpoint, an archive, a driver's processes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from proofs.controls.unplanned_reader import UnplannedReader, UnplannedSource
from proofs.spark import PipelineRun, driver_pids

from sparq.pipeline import channels
from sparq.spark.source import NsqStreamReader


def plant(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_drivers_processes_are_those_of_its_session() -> None:
    """The name "python" means the driver itself, "group" every process of its session."""
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'],"
        " stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as driver:
        assert driver.stdout is not None
        child = int(driver.stdout.readline())

        assert [driver.pid] == driver_pids(driver.pid, "python")
        assert {driver.pid, child} == set(driver_pids(driver.pid, "group"))
        assert [] == driver_pids(driver.pid, "jvm")
        assert os.getpid() not in driver_pids(driver.pid, "group")
        driver.communicate(b"")


def test_only_running_processes_are_killed(tmp_path: Path) -> None:
    """A driver needs a session and an nsqd a process to count; each is killed only once."""
    run = PipelineRun(tmp_path, 1, 1, random.Random(1))
    assert run.living_driver() is None
    plant(tmp_path / "run")
    state = {
        "app_pid": 7,
        "cluster": {"nsqlookupd": {"pid": 1}, "nsqd-1": {"pid": 2}, "nsqd-2": {"pid": None}},
    }
    (tmp_path / "run" / "state.json").write_text(json.dumps(state))
    (tmp_path / "run" / "app.json").write_text(json.dumps({"pid": 6}))
    assert run.living_driver() is None
    (tmp_path / "run" / "app.json").write_text(json.dumps({"pid": 7}))

    assert 7 == run.living_driver()
    assert ("nsqd-1", 2) == run.living_nsqd()
    run.killed = {2, 7}
    assert run.living_driver() is None
    assert run.living_nsqd() is None


def test_the_unplanned_reader_reads_beyond_plans_it_did_not_make(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planned batch is read as planned, and any other one to the end of the logs."""
    monkeypatch.setattr(NsqStreamReader, "latestOffset", lambda *_: {"log": 90})
    monkeypatch.setattr(NsqStreamReader, "partitions", lambda _self, start, end: [start, end])

    planned, rerun = (object.__new__(UnplannedReader) for _ in range(2))
    planned.latestOffset({"log": 1}, None)

    assert [{"log": 1}, {"log": 50}] == planned.partitions({"log": 1}, {"log": 50})
    assert [{"log": 1}, {"log": 90}] == rerun.partitions({"log": 1}, {"log": 50})
    assert "nsq" == UnplannedSource.name()


def test_the_pipeline_reads_what_the_control_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries' sources are made of the class that the control replaces."""
    registered: list[type] = []
    session = Mock(dataSource=SimpleNamespace(register=registered.append))
    monkeypatch.setattr(channels, "NsqDataSource", UnplannedSource)
    monkeypatch.setattr(channels, "_counting", lambda *given: given)
    monkeypatch.setattr(channels, "_observed", lambda rows: rows)  # it needs a real session
    channels.channel(session, {"queryName": "archive"}, iter, "body BINARY")

    assert [True] == [issubclass(one, UnplannedSource) for one in registered]
