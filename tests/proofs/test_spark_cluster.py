"""The parts of the proof on a Spark cluster: its cluster, kills, clicks and counts.

A run of the pipeline takes minutes: `make spark-cluster N=50000 ARGS="--only kills --kills 2"`.
"""

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from proofs.daemon_fixture import python_path
from proofs.spark_cluster_parts import event_log, failing_workers, failures
from proofs.spark_cluster_parts import feed as feeds
from proofs.spark_cluster_parts.checkpoint import Checkpoints
from proofs.spark_cluster_parts.driver import Driver, command_line
from proofs.spark_cluster_parts.feed import Feed
from proofs.spark_cluster_parts.programs import Program
from proofs.spark_cluster_parts.standalone import StandaloneCluster, environment
from proofs.spark_cluster_parts.steps import STEPS
from proofs.spark_cluster_parts.variants import CONTROL, KILLS, VARIANTS, WORKER

from proofs import spark_cluster
from sparq.pipeline.storage import TablePlace
from sparq.program.supervised import members_of
from tests.support.waiting import wait_for

PARENT = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], process_group=0
)
print("ready", flush=True)
child.wait()
"""


def create_files(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.fixture
def parent(tmp_path: Path):
    """A program that has started another one in a process group of its own."""
    program = Program("parent", [sys.executable, "-c", PARENT], tmp_path / "log")
    program.start()
    try:
        wait_for(lambda: len(members_of(program.pid)) == 2)
        yield program
    finally:
        program.kill()


def test_killing_a_program_ends_its_descendants(parent: Program) -> None:
    """Killing a worker includes its executors and their Python, even in groups of their own."""
    pid, (child,) = parent.pid, parent.started()

    parent.kill()

    assert [] == members_of(pid)
    assert child != pid
    assert 0 == parent.pid
    assert parent.exit_status() is None


def test_a_child_that_outlives_its_parent_is_ended(parent: Program) -> None:
    """A JVM that outlives its Python is found and ended before the next start."""
    (child,) = parent.started()
    assert parent.process is not None
    parent.process.kill()

    assert -signal.SIGKILL == parent.process.wait()
    assert [child] == members_of(parent.pid)


def test_a_batch_is_under_way_until_it_is_done(tmp_path: Path) -> None:
    """A batch that is planned and not done is under way; a query without any is settled."""
    checkpoints = Checkpoints(tmp_path)
    create_files(tmp_path / "archive" / "offsets", "9", "10", ".10.crc")
    create_files(tmp_path / "archive" / "commits", "8", "9", ".10.crc")
    create_files(tmp_path / "metrics" / "offsets", "0")
    create_files(tmp_path / "metrics" / "commits", "0")

    assert [("archive", 10)] == checkpoints.under_way()
    assert ["metrics"] == checkpoints.settled()
    assert 11 == checkpoints.batches_done()
    assert 0 == checkpoints.least_done()
    create_files(tmp_path / "spam_analysis" / "commits", "0")
    assert 1 == checkpoints.least_done()


def test_forget_deletes_the_last_commit(tmp_path: Path) -> None:
    """Only the last file of `commits` and its checksum are deleted."""
    checkpoints = Checkpoints(tmp_path)
    create_files(tmp_path / "archive" / "offsets", "1", "2")
    create_files(tmp_path / "archive" / "commits", "1", ".1.crc", "2", ".2.crc")

    assert 2 == checkpoints.forget("archive")

    assert [("archive", 2)] == checkpoints.under_way()
    assert not checkpoints.is_done("archive", 2)
    left = {path.name for path in (tmp_path / "archive" / "commits").iterdir()}
    assert {"1", ".1.crc"} == left


@pytest.mark.parametrize("variant", [*VARIANTS, CONTROL], ids=lambda variant: variant.name)
def test_the_seed_determines_the_kills_of_each_variant(variant) -> None:
    """The seed determines the order of ten kills of all kinds; each step exists."""
    steps = variant.steps(10, random.Random("5"))

    assert steps == variant.steps(10, random.Random("5"))
    assert steps != variant.steps(10, random.Random("6"))
    assert 10 == sum(step in KILLS for step in steps)
    assert 3 <= Counter(steps)[WORKER]
    assert set(steps) <= set(STEPS)


def test_only_released_clicks_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the released share is published, in slices, and in the end all clicks."""
    slices: list[list[bytes]] = []

    async def publish(part, *_, **__) -> None:
        slices.append(list(part))

    monkeypatch.setattr(feeds, "publish", publish)
    monkeypatch.setattr(feeds, "SLICE", 4)
    feed = Feed([b"%d" % at for at in range(20)], [], tmp_path)
    feed.start()
    feed.release(0.3)
    wait_for(lambda: feed.is_held_back)
    assert [4, 2] == [len(part) for part in slices]
    feed.release(0.2)
    feed.release_more()
    wait_for(lambda: feed.published == 7)
    assert not feed.is_over

    feed.release(1.0)
    feed.join(30)

    assert feed.is_over
    assert feed.failure is None
    assert [b"%d" % at for at in range(20)] == [line for part in slices for line in part]


def test_a_feed_that_cannot_publish_keeps_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is kept for the threads that wait; a feed that is ended has none."""

    async def publish(*_, **__) -> None:
        raise OSError("no nsqd")

    monkeypatch.setattr(feeds, "publish", publish)
    failing, ended = (Feed([b"a"], [], tmp_path) for _ in range(2))
    for feed in (failing, ended):
        feed.start()
    failing.release(1.0)
    ended.end()
    for feed in (failing, ended):
        feed.join(30)

    assert "no nsqd" == str(failing.failure)
    assert ended.failure is None


def test_a_drivers_status_is_that_of_its_newest_start(tmp_path: Path) -> None:
    """An earlier driver's app.json is ignored."""
    driver = Driver([], tmp_path / "driver", tmp_path / "run", "timeit")
    said = {"pid": 1, "stage": "running", "queries": {"archive": {"batches": 1, "rows": 7}}}
    (tmp_path / "run" / "app.json").write_text(json.dumps(said))
    assert not driver.is_running()
    driver.program.command = [sys.executable, "-c", PARENT]
    driver.start()
    try:
        assert "" == driver.stage()
        (tmp_path / "run" / "app.json").write_text(json.dumps({**said, "pid": driver.program.pid}))
        assert driver.is_running()
    finally:
        driver.kill("group")
    assert not driver.is_running()


def test_the_command_line_is_that_of_sparq_pipeline(tmp_path: Path) -> None:
    """Spark's options are last, so that a variant of the proof may change one."""
    at = "spark://127.0.0.1:7077", "127.0.0.1:4161", tmp_path, tmp_path / "run"

    words = command_line(*at, offsets=5_000, spark=[("spark.ui.enabled", "true")])

    assert f"--data={tmp_path.as_uri()}" in words
    assert "--max-offsets-per-trigger=5000" in words
    assert "--spark=spark.ui.enabled=true" in words
    assert "--spark=spark.ui.enabled=false" not in words


def test_speculative_tasks_are_counted(tmp_path: Path) -> None:
    """The last line of a killed application may be incomplete."""
    kinds = (False, True, True)
    starts = [{"Event": event_log.STARTED.decode().split('"')[3]} for _ in kinds]
    lines = [
        json.dumps({**start, "Task Info": {"Speculative": kind}}, separators=(",", ":"))
        for start, kind in zip(starts, kinds, strict=True)
    ]
    (tmp_path / "app-1").write_text("\n".join((*lines, lines[-1][:-9])))
    (tmp_path / "app-2").write_text('{"Event":"SparkListenerTaskEnd"}\n')

    assert 2 == event_log.speculative_tasks(tmp_path)


def test_variants_are_chosen_by_name() -> None:
    """The error for an unknown name is a sentence, not a traceback."""
    assert ["cores", "kills"] == [way.name for way in spark_cluster.chosen("cores,kills")]
    assert [] == spark_cluster.chosen("control")
    ran = subprocess.run(
        [sys.executable, "-m", "proofs.spark_cluster", "--only", "kill"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    assert 2 == ran.returncode
    assert "argument --only: 'kill' is none of kills, " in ran.stderr


def test_a_task_fails_once_after_it_has_written(tmp_path: Path) -> None:
    """Of each table whose failure is wanted, one file is written and its task fails."""
    wanted = failures.Failures(tmp_path / "wanted")
    place, made = TablePlace("data/clicks"), []
    write = failing_workers.failing_once(lambda *_: made.append(1) or {}, tmp_path / "wanted")
    wanted.want()
    with pytest.raises(OSError, match="the proof lets this task fail"):
        write(place)

    assert {} == write(place)
    assert ([1, 1], 1, [*failures.TABLES[1:]]) == (made, wanted.count(), wanted.missing())


PYTHON_OF_WORKERS = r"""
import sys
from sparq.pipeline.session import use_this_python
use_this_python()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).getOrCreate()
found = spark.sparkContext.range(2, numSlices=2).map(lambda _: sys.executable).collect()
print(*sorted(set(found)), sep="\n")
"""


def workers_of(cluster: StandaloneCluster, folder: Path) -> str:
    """Return the programs of the cluster's Python workers; the driver's Python is in `folder`."""
    folder.symlink_to(sys.prefix)
    command = [str(folder / "bin" / "python"), "-c", PYTHON_OF_WORKERS, cluster.url]
    variables = {**environment(cluster.folder), "PYTHONPATH": python_path()}
    return subprocess.run(
        command, env=variables, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout


@pytest.mark.slow
def test_a_standalone_cluster_from_the_package(tmp_path: Path) -> None:
    """Two workers register with the master; one is killed and restarted; all processes end.

    Python workers run the driver's program, also if its path has a space.
    """
    cluster = StandaloneCluster(tmp_path)
    try:
        cluster.start()
        pids = [program.pid for program in (cluster.master, *cluster.workers)]
        killed = cluster.workers[0]
        killed.kill()
        wait_for(lambda: cluster.living_workers() == 1)
        cluster.start_worker(killed, cores=2)
        cluster.wait_for_workers()
        pids.append(killed.pid)
        workers = (cluster.state() or {})["workers"]
        programs = workers_of(cluster, tmp_path / "a folder")
    finally:
        cluster.stop()

    assert f"{tmp_path / 'a folder' / 'bin' / 'python'}\n" == programs
    alive = [one for one in workers if one["state"] == "ALIVE"]
    assert [1, 2] == sorted(one["cores"] for one in alive)
    # Spark runs a speculative task on another host only.
    assert {"127.0.0.1", "127.0.0.2"} == {one["host"] for one in alive}
    assert [] == [pid for pid in pids if members_of(pid)]
    assert cluster.state() is None
