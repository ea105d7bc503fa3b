"""`sparq pipeline` with running nsqds: stopped, restarted and finished."""

import asyncio
import json
import shutil
import sys
from collections import Counter

import pytest

from sparq.demo.generator import generate
from sparq.pipeline.report.audit import audit, read_records
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.run.publishing import publish
from sparq.pipeline.storage import TablePlace
from sparq.program.supervised import SupervisedProcess
from tests.pipeline import plain
from tests.pipeline.stored import stored
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


class Pipeline(SupervisedProcess):
    """A pipeline that is started at once, and the folder with its status files."""

    def __init__(self, folder, cluster, *flags):
        self.data, self.run_dir = folder / "data", folder / "run"
        self.run_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "sparq.pipeline.app", "--data", str(self.data)]
        command += ["--lookupd-http-address", cluster.lookupd.http, "--run-dir", str(self.run_dir)]
        command += ["--master=local[2]", "--metrics-address=", *flags]
        super().__init__("pipeline", command, folder / "log")
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def figures(self):
        """Return the pipeline's status file."""
        try:
            return json.loads((self.run_dir / "app.json").read_text())
        except FileNotFoundError:
            return {"queries": {}}

    def has_read(self, count):
        """Whether each query has read at least `count` messages since its start."""
        assert not self.has_ended(), self.output()
        queries = self.figures()["queries"]
        return len(queries) == 3 and all(one["rows"] >= count for one in queries.values())

    def output(self):
        """The end of its output."""
        return self.log.read_text()[-4000:]

    def finish(self):
        """Request that it process the rest and finish; return the exit status."""
        (self.run_dir / "finish").touch()
        return self.wait()

    def wait(self):
        """Wait until it ends by itself; return the exit status."""
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
    asyncio.run(publish(bodies, [one.tcp for one in cluster.nsqds], "clicks", folder))
    return read_records(folder)


def test_a_restart_needs_only_the_checkpoint(cluster, tmp_path):
    """Every click is stored exactly once across restarts that have only the checkpoint.

    The second run is one with `--once`, which ends by itself.
    The program's status files are deleted before the second start: no query needs them. Spark fails
    a job whose results exceed maxResultSize, so clicks cannot have passed through the driver. The
    folder name has a space, as a user's may.
    """
    folder = tmp_path / "my clicks"
    folder.mkdir()
    bodies = generate(CLICKS, 5).lines
    unreadable = len([body for body in bodies if not is_readable(body)])
    small = "--spark=spark.driver.maxResultSize=512k"
    half, most = CLICKS // 2, 2 * CLICKS // 3
    published(cluster, folder, bodies[:half])
    with Pipeline(folder, cluster, small) as first:
        wait_for(lambda: first.has_read(half), SECONDS, first.log.read_text)
        assert first.stop(SECONDS) == 0, first.output()
    shutil.rmtree(folder / "run")
    published(cluster, folder, bodies[half:most])
    with Pipeline(folder, cluster, small, "--once") as once:
        assert once.wait() == 0, once.output()
    rows = {name: one["rows"] for name, one in once.figures()["queries"].items()}
    assert dict.fromkeys(("archive", "metrics", "spam_analysis"), most - half) == rows
    written = published(cluster, folder, bodies[most:])
    with Pipeline(folder, cluster, small) as second:
        wait_for(lambda: second.has_read(1), SECONDS, second.log.read_text)
        assert second.finish() == 0, second.output()

    assert second.figures()["stage"] == "done"
    logged = cluster.message_count("clicks")
    found, failures = audit(TablePlace(str(folder / "data")), logged, *written)
    assert failures == []
    assert (found["archived"], found["rejected"]) == (CLICKS - unreadable, unreadable)
    assert unreadable
    findings = Counter(row["reason"] for row in stored(folder / "data", "findings").to_pylist())
    assert findings["declared_robot"] > 0
    assert not any((folder / "data" / "checkpoint").glob("*-state"))
