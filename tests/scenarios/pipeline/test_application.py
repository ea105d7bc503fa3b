"""`sparq pipeline` with running nsqds: stopped, restarted and finished."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest

from sparq.demo.generator import generate
from sparq.pipeline import archive, archive_formats, metrics, spam_analysis
from sparq.pipeline.audit import PublisherRecords, audit
from sparq.pipeline.cluster import LocalCluster
from sparq.pipeline.folders import Folders
from sparq.pipeline.publisher import publish, read_hashes
from tests.pipeline import plain
from tests.support.waiting import wait_for

CLICKS = 30_000
SECONDS = 240

pytestmark = pytest.mark.timeout(2 * SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nsqds and an nsqlookupd."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder, folder)
    cluster.start()
    yield cluster
    cluster.stop()


class Program:
    """The running pipeline, and the folder with its status files."""

    def __init__(self, folder, cluster, *flags):
        self.data, self.run_dir = folder / "data", folder / "run"
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        command = [sys.executable, "-m", "sparq.pipeline.app", "--data", str(self.data)]
        command += ["--lookupd-http-address", cluster.lookupd.http, "--run-dir", str(self.run_dir)]
        command += ["--master=local[2]", "--metrics-address=", "--archive-min-offsets=0", *flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def figures(self):
        """Return the pipeline's status file."""
        try:
            return json.loads((self.run_dir / "app.json").read_text())
        except FileNotFoundError:
            return {"queries": {}}

    def has_read(self, count):
        """Whether each query has read at least `count` messages since its start."""
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        queries = self.figures()["queries"]
        return len(queries) == 3 and all(one["rows"] >= count for one in queries.values())

    def end(self):
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def finish(self):
        """Request that it process the rest and finish; return the exit status."""
        (self.run_dir / "finish").touch()
        return self.process.wait(SECONDS)


def is_readable(body):
    """Whether plain Python can parse it as a click."""
    try:
        plain.read(body)
    except plain.Unreadable:
        return False
    return True


def published(cluster, folder, bodies):
    """Publish bodies; return the records of what was acknowledged and resent."""
    notes = {"acknowledged": folder / "acknowledged", "resent": folder / "resent"}
    asyncio.run(publish(bodies, [one.tcp for one in cluster.nsqds], "clicks", **notes))
    return PublisherRecords(read_hashes(notes["acknowledged"]), read_hashes(notes["resent"]))


def test_the_checkpoint_is_all_that_a_restart_needs(cluster, tmp_path):
    """Every click is stored exactly once across a restart that has only the checkpoint.

    The program's status files are deleted before the second start: no query needs them. Spark fails
    a job whose results exceed maxResultSize, so clicks cannot have passed through the driver. The
    folder name has a space, as a user's may.
    """
    folder = tmp_path / "my clicks"
    folder.mkdir()
    bodies = generate(CLICKS, 5).lines
    unreadable = len([body for body in bodies if not is_readable(body)])
    small = "--spark=spark.driver.maxResultSize=512k"
    half = CLICKS // 2
    published(cluster, folder, bodies[:half])
    first = Program(folder, cluster, small)
    try:
        wait_for(lambda: first.has_read(half), SECONDS, first.log.read_text)
        assert first.end() == 0, first.log.read_text()[-4000:]
    finally:
        first.process.kill()
    shutil.rmtree(folder / "run")
    written = published(cluster, folder, bodies[half:])
    second = Program(folder, cluster, small)
    try:
        wait_for(lambda: second.has_read(1), SECONDS, second.log.read_text)
        assert second.finish() == 0, second.log.read_text()[-4000:]
    finally:
        second.process.kill()

    assert second.figures()["stage"] == "done"
    folders = Folders(folder / "data")
    found = audit(
        sum(cluster.message_counts("clicks").values()),
        archive.read(folders),
        metrics.read_rejected(folders),
        metrics.read(folders),
        metrics.read_late(folders),
        published=written,
    )
    assert found.failures == []
    assert (found.archived, found.rejected) == (CLICKS - unreadable, unreadable)
    assert unreadable
    findings = Counter(row["reason"] for row in spam_analysis.read(folders).to_pylist())
    assert findings["declared_robot"] > 0
    assert not any((folder / "data" / "checkpoint").glob("*-state"))


def test_the_archive_as_a_delta_table(cluster, tmp_path):
    """A Delta archive has every readable click once, and another format is refused on restart."""
    lines = generate(2_000, 6).lines
    notes = {"acknowledged": tmp_path / "acknowledged", "resent": tmp_path / "resent"}
    asyncio.run(publish(lines, [one.tcp for one in cluster.nsqds], "delta", **notes))
    flags = ("--topic=delta", "--queries=archive", "--no-publish")
    program = Program(tmp_path, cluster, *flags, "--archive-format=delta")
    try:
        assert program.finish() == 0, program.log.read_text()[-4000:]
    finally:
        program.process.kill()
    other = Program(tmp_path, cluster, *flags)
    try:
        assert other.process.wait(SECONDS) == 1
    finally:
        other.process.kill()

    folders = Folders(tmp_path / "data")
    expected = Counter(line for line in lines if is_readable(line))
    assert expected == Counter(archive_formats.read(folders)["body"].to_pylist())
    said = other.log.read_text()
    assert "holds a Delta table: use --archive-format=delta, or another --data" in said
