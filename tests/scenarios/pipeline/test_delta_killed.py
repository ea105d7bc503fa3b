"""A Delta archive that is killed repeatedly with kill -9 has every click exactly once.

`make delta` kills it ten times, and runs the control: the check finds duplicates. `make slow-tests`
kills it once.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparq.demo.generator import generate
from sparq.pipeline import clicks as click
from sparq.pipeline.app import TOO_LATE
from tests.support.published import publish
from tests.support.servers import spawn_nsqd
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAM = Path(__file__).with_name("delta_killed.py")
TOPIC = "clicks"
KILLS = int(os.environ.get("DELTA_KILLS", "1"))
CLICKS_PER_KILL = 600
START_SECONDS = 240


class Killed:
    """The running program, its folder, and the state of its table and checkpoint."""

    def __init__(self, nsqd: str, folder: Path, *more: str) -> None:
        self.folder = folder
        self.table = folder / "archive"
        self.command = [sys.executable, str(PROGRAM), nsqd, TOPIC, str(folder), *more]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a new process group, with Spark's JVM."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the driver's Python process and its JVM together, if they run."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def wait_for(self, look, every=0.001):
        """Wait until `look` returns something true while the program runs."""

        def looked():
            if self.process.poll() is not None:
                # Spark gives a Python process ten seconds to start: too short on a busy machine.
                assert TOO_LATE in self.said(), self.said()
                self.start()
            return look()

        return wait_for(looked, START_SECONDS, self.said, every)

    def said(self) -> str:
        """The end of the program's output."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def batches(self) -> int:
        """The number of batches that Spark has committed."""
        names = (path.name for path in (self.folder / "checkpoint" / "commits").glob("[0-9]*"))
        return max(map(int, names), default=-1) + 1

    def files(self) -> int:
        """The number of files that batches and merges have written, committed or not."""
        return sum(1 for _ in self.table.glob("date=*/hour=*/*.parquet"))

    def merged(self) -> int:
        """The number of files that merges have written."""
        return sum(1 for _ in self.table.glob("date=*/hour=*/merged-*.parquet"))

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


def tell(line):
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
        killed = Killed(nsqd.tcp, folder, *more)
        try:
            yield killed, expected
        finally:
            killed.kill()


def test_every_click_is_there_once_whenever_the_archive_is_killed(tmp_path):
    """Every click is stored once, whenever the program is killed.

    Kills hit: files not yet committed, commits that Spark has not recorded, and merges.
    """
    chance = random.Random()
    seed = chance.randrange(1 << 32)
    chance.seed(seed)
    tell(f"seed {seed}")
    with published(tmp_path, CLICKS_PER_KILL * KILLS) as (killed, expected):
        moments = (killed.versions, killed.files, killed.merged, None)
        for number in range(KILLS):
            killed.start()
            known = killed.batches()
            killed.wait_for(lambda known=known: killed.batches() > known)
            kill_at(killed, moments[number % len(moments)], chance)
            there = killed.archived()
            assert there <= expected, f"seed {seed}"
            tell(f"kill {number + 1}: batch {killed.batches()}, {there.total():,} clicks")
        killed.start()
        killed.wait_for(lambda: killed.archived().total() >= expected.total(), every=0.5)
        killed.kill()
        found = killed.archived()

    assert expected == found, f"seed {seed}"
    tell(f"{KILLS} kills: {found.total():,} clicks, each once")


@pytest.mark.skipif("DELTA_KILLS" not in os.environ, reason="needs a minute of its own: make delta")
def test_the_check_finds_what_is_there_twice(tmp_path):
    """The control: without a batch's transaction id, its repetition stores its clicks twice."""
    with published(tmp_path, 1_000, "without-transactions") as (killed, expected):
        for _ in range(2):
            killed.start()
            known = killed.batches()
            killed.wait_for(lambda known=known: killed.batches() > known)
            kill_at(killed, killed.versions, random.Random(1))
        killed.start()
        known = killed.batches()
        killed.wait_for(lambda: killed.batches() > known)
        killed.kill()
        found = killed.bodies()

    assert not found <= expected
    tell(f"without: {(found - expected).total():,} clicks more than once")


def kill_at(killed, count, chance):
    """Kill when `count` next increases, or (None) at a random time within two seconds."""
    if count is None:
        time.sleep(chance.uniform(0, 2))
    else:
        before = count()
        killed.wait_for(lambda: count() > before)
        time.sleep(chance.uniform(0, 0.02))
    killed.kill()
