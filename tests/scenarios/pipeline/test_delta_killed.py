"""A pipeline that is killed repeatedly with kill -9 has everything exactly once in all six tables.

`make delta` kills it ten times, and runs the control: the check finds rows twice. `make slow-tests`
kills it once.
"""

import asyncio
import os
import random
import sys
import time
from contextlib import contextmanager

import pytest
from proofs.exactly_once import ONCE, TABLES, archived, problems
from proofs.workload import python_path

from sparq.demo.generator import generate
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.run.publishing import publish
from sparq.program.supervised import SupervisedProcess
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAM = "tests.scenarios.pipeline.delta_program"
TOPIC = "clicks"
QUERIES = ("archive", "metrics", "spam_analysis")
KILLS = int(os.environ.get("DELTA_KILLS", "1"))
CLICKS_PER_KILL = 1_000
START_SECONDS = 240


class Pipeline(SupervisedProcess):
    """The program, and the state of its tables and checkpoints.

    It is killed with its JVM and Spark's Python workers.
    """

    def __init__(self, lookupd, folder, *first):
        self.data, self.run_dir = folder / "data", folder / "run"
        flags = [f"--data={self.data}", f"--run-dir={self.run_dir}", "--metrics-address="]
        flags += [
            f"--lookupd-http-address={lookupd}",
            "--max-offsets-per-trigger=400",
            "--shuffle-partitions=2",
        ]
        command = [sys.executable, "-m", PROGRAM, *first, *flags, "--no-publish"]
        paths = {**os.environ, "PYTHONPATH": python_path()}
        super().__init__("pipeline", command, folder / "log", environment=paths)

    def wait_for(self, check, every=0.001):
        """Wait until `check` returns something true while the program runs."""

        def checked():
            assert not self.has_ended(), self.output()
            return check()

        return wait_for(checked, START_SECONDS, self.output, every)

    def output(self):
        """The end of the program's output."""
        return self.log.read_text(errors="replace")[-4000:]

    def count(self, pattern):
        """The number of files in the data folder."""
        return sum(1 for _ in self.data.glob(pattern))

    def commits(self):
        """The number of batches that Spark has committed."""
        return self.count("checkpoint/*/commits/[0-9]*")

    def files(self):
        """The number of files that batches and merges have written, committed or not."""
        return self.count("*/date=*/*.parquet")

    def merged(self):
        """The number of files that merges have written."""
        return self.count("*/date=*/merged-*.parquet")

    def versions(self):
        """The number of commits of the tables."""
        return self.count("*/_delta_log/*.json")

    def kill_at(self, count, chance):
        """After a batch, kill when `count` next increases, or (None) within two seconds."""
        known = self.commits()
        self.wait_for(lambda: self.commits() > known)
        if count is None:
            time.sleep(chance.uniform(0, 2))
        else:
            before = count()
            self.wait_for(lambda: count() > before)
            time.sleep(chance.uniform(0, 0.02))
        self.kill()

    def finish(self):
        """Let it process all messages, and end."""
        self.start()
        (self.run_dir / "finish").touch()
        wait_for(self.has_ended, START_SECONDS, self.output, 0.5)


def show(line):
    """Print a line; pytest shows it with -s, and for a failed test."""
    print(line)  # noqa: T201 - a failure can be repeated with the seed


@contextmanager
def published(folder, count, *first):
    """Yield the program, with an nsqd that has clicks."""
    cluster = LocalCluster(folder, folder, nsqds=1)
    cluster.start(TOPIC, QUERIES)
    program = Pipeline(cluster.lookupd.http, folder, *first)
    try:
        (nsqd,) = cluster.nsqds
        asyncio.run(publish(generate(count, seed=5).lines, [nsqd.tcp], TOPIC, folder))
        program.run_dir.mkdir()
        yield program
    finally:
        program.kill()
        cluster.stop()


def test_a_killed_pipeline_has_everything_once(tmp_path):
    """Everything is stored once, whenever the program is killed.

    Kills hit: files not yet committed, commits that Spark has not recorded, and merges.
    """
    chance = random.Random()
    seed = chance.randrange(1 << 32)
    chance.seed(seed)
    show(f"seed {seed}")
    count = CLICKS_PER_KILL * (KILLS + 1)
    with published(tmp_path, count) as program:
        moments = (program.versions, program.files, program.merged, None)
        for number in range(KILLS):
            program.start()
            program.kill_at(moments[number % len(moments)], chance)
            if all((program.data / name / "_delta_log").exists() for name in TABLES):
                assert [] == problems(program.data, ONCE), f"seed {seed}"
            show(f"kill {number + 1}: {program.commits()} batches")
        program.finish()

    assert [] == problems(program.data), f"seed {seed}"
    assert (count, count) == archived(program.data), f"seed {seed}"
    show(f"{KILLS} kills: {count:,} messages, each once in all tables")


@pytest.mark.skipif("DELTA_KILLS" not in os.environ, reason="needs a minute of its own: make delta")
def test_rows_that_are_there_twice_are_found(tmp_path):
    """The control: without transactions, a repeated batch stores everything twice."""
    with published(tmp_path, 3_000, "without-transactions") as program:
        for _ in range(2):
            program.start()
            program.kill_at(program.versions, random.Random(1))
        program.finish()
    found = problems(program.data)

    assert found
    show(f"without transactions: {'; '.join(found)}")
