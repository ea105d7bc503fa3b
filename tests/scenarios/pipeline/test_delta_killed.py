"""An archive that is killed repeatedly with kill -9 has every click exactly once.

`make delta` kills it ten times, and runs the control: the check finds duplicates. `make slow-tests`
kills it once.
"""

import os
import random
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparq.demo.generator import generate
from sparq.pipeline import clicks as click
from sparq.pipeline.app import TOO_LATE
from sparq.program.supervised import SupervisedProcess
from tests.support.published import publish
from tests.support.servers import spawn_nsqd
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAM = Path(__file__).with_name("delta_program.py")
TOPIC = "clicks"
KILLS = int(os.environ.get("DELTA_KILLS", "1"))
CLICKS_PER_KILL = 600
START_SECONDS = 240


class Archive(SupervisedProcess):
    """The program that archives, and the state of its table and checkpoint.

    It is killed with its JVM and Spark's Python workers.
    """

    def __init__(self, nsqd: str, folder: Path, *more: str) -> None:
        command = [sys.executable, str(PROGRAM), nsqd, TOPIC, str(folder), *more]
        super().__init__("archive", command, folder / "log")
        self.checkpoint = folder / "checkpoint"
        self.table = folder / "clicks"

    def wait_for(self, check, every=0.001):
        """Wait until `check` returns something true while the program runs."""

        def checked():
            if self.has_ended():
                # Spark gives a Python process ten seconds to start: too short on a busy machine.
                assert TOO_LATE in self.output(), self.output()
                self.start()
            return check()

        return wait_for(checked, START_SECONDS, self.output, every)

    def output(self) -> str:
        """The end of the program's output."""
        return self.log.read_text(errors="replace")[-4000:]

    def batches(self) -> int:
        """The number of batches that Spark has committed."""
        names = (path.name for path in (self.checkpoint / "commits").glob("[0-9]*"))
        return max(map(int, names), default=-1) + 1

    def files(self) -> int:
        """The number of files that batches and merges have written, committed or not."""
        return sum(1 for _ in self.table.glob("date=*/*.parquet"))

    def merged(self) -> int:
        """The number of files that merges have written."""
        return sum(1 for _ in self.table.glob("date=*/merged-*.parquet"))

    def versions(self) -> int:
        """The number of commits of the table."""
        return sum(1 for _ in (self.table / "_delta_log").glob("*.json"))

    def archived(self) -> Counter:
        """Count each body in the table, and assert that no message is in it twice."""
        return self.bodies(distinct=True)

    def bodies(self, distinct: bool = False) -> Counter:
        """Count each body in the table, read by `deltalake` alone."""
        if not DeltaTable.is_deltatable(str(self.table)):
            return Counter()
        found = DeltaTable(self.table).to_pyarrow_table(columns=["id", "body"])
        ids = found["id"].to_pylist()
        assert not distinct or len(set(ids)) == len(ids)
        return Counter(found["body"].to_pylist())


def show(line):
    """Print a line; pytest shows it with -s, and for a failed test."""
    print(line)  # noqa: T201 - a failure can be repeated with the seed


@contextmanager
def published(folder, count, *more):
    """Yield the program with an nsqd that has clicks, and the expected count of each body."""
    lines = generate(count, seed=5).lines
    reasons = click.parse_arrow(pa.table({"body": lines}), ["reason"])["reason"].to_pylist()
    expected = Counter(line for line, reason in zip(lines, reasons, strict=True) if reason is None)
    with spawn_nsqd(folder) as nsqd:
        publish(nsqd, TOPIC, *lines, channel="archive")
        program = Archive(nsqd.tcp, folder, *more)
        try:
            yield program, expected
        finally:
            program.kill()


def test_a_killed_archive_has_every_click_once(tmp_path):
    """Every click is stored once, whenever the program is killed.

    Kills hit: files not yet committed, commits that Spark has not recorded, and merges.
    """
    chance = random.Random()
    seed = chance.randrange(1 << 32)
    chance.seed(seed)
    show(f"seed {seed}")
    with published(tmp_path, CLICKS_PER_KILL * KILLS) as (program, expected):
        moments = (program.versions, program.files, program.merged, None)
        for number in range(KILLS):
            program.start()
            known = program.batches()
            program.wait_for(lambda known=known: program.batches() > known)
            kill_at(program, moments[number % len(moments)], chance)
            there = program.archived()
            assert there <= expected, f"seed {seed}"
            show(f"kill {number + 1}: batch {program.batches()}, {there.total():,} clicks")
        program.start()
        program.wait_for(lambda: program.archived().total() >= expected.total(), every=0.5)
        program.kill()
        found = program.archived()

    assert expected == found, f"seed {seed}"
    show(f"{KILLS} kills: {found.total():,} clicks, each once")


@pytest.mark.skipif("DELTA_KILLS" not in os.environ, reason="needs a minute of its own: make delta")
def test_duplicates_are_found_without_transaction_ids(tmp_path):
    """The control: without a batch's transaction id, its repetition stores its clicks twice."""
    with published(tmp_path, 1_000, "without-transactions") as (program, expected):
        for _ in range(2):
            program.start()
            known = program.batches()
            program.wait_for(lambda known=known: program.batches() > known)
            kill_at(program, program.versions, random.Random(1))
        program.start()
        known = program.batches()
        program.wait_for(lambda: program.batches() > known)
        program.kill()
        found = program.bodies()

    assert not found <= expected
    show(f"without: {(found - expected).total():,} clicks more than once")


def kill_at(program, count, chance):
    """Kill when `count` next increases, or (None) at a random time within two seconds."""
    if count is None:
        time.sleep(chance.uniform(0, 2))
    else:
        before = count()
        program.wait_for(lambda: count() > before)
        time.sleep(chance.uniform(0, 0.02))
    program.kill()
