"""`sparq pipeline --from` and `--since`: files and a topic read into the same tables."""

import asyncio
import gzip
import sys
import time
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable

from sparq.demo.generator import generate
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.run.publishing import publish
from tests.support.run_program import run_program

SECONDS = 240
pytestmark = pytest.mark.timeout(3 * SECONDS)


def test_files_and_the_topic_since_a_time_are_the_whole(tmp_path):
    """Files up to a time and the topic from then on give each click once, in all tables.

    Files need no nsqd. Another start with `--since`, which would double clicks, is refused.
    """
    bodies = generate(2_000, 5).lines
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "1.log").write_bytes(b"\n".join(bodies[:500]))
    (tmp_path / "logs" / "2.log.gz").write_bytes(gzip.compress(b"\n".join(bodies[500:1000])))
    data = tmp_path / "data"

    def pipeline(*flags):
        command = [sys.executable, "-m", "sparq.cli", "pipeline", "--data", data, "--once"]
        command += ["--master=local[2]", "--metrics-address=", *flags]
        return run_program(command, seconds=SECONDS)

    def clicks_of(name):
        found = DeltaTable(data / name).to_pyarrow_table()
        return sum(found["clicks"].to_pylist()) if "clicks" in found.schema.names else len(found)

    cluster = LocalCluster(tmp_path, tmp_path)
    cluster.start()
    try:
        nsqds = [one.tcp for one in cluster.nsqds]
        asyncio.run(publish(bodies[:1000], nsqds, "clicks", tmp_path))
        time.sleep(0.01)
        since = datetime.now(UTC).isoformat()
        asyncio.run(publish(bodies[1000:], nsqds, "clicks", tmp_path))
        topic = (f"--lookupd-http-address={cluster.lookupd.http}", f"--since={since}")
        ran = [pipeline(*topic), pipeline("--from", tmp_path / "logs" / "*.log*"), pipeline(*topic)]
    finally:
        cluster.stop()

    assert [0, 0, 1] == [one.returncode for one in ran], ran
    assert "would add clicks again that archive has read: leave it out" in ran[2].stderr
    total = {name: clicks_of(name) for name in ("clicks", "minutes", "sessions")}
    readable = 2_000 - clicks_of("rejected")
    assert dict.fromkeys(total, readable) == total
    assert 1_900 < readable
