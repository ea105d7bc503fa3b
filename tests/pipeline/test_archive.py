"""The query `archive`: every message is in one of two tables, and rejected ones on their topic."""

import json

import pytest

from sparq.demo.generator import generate
from sparq.pipeline import archive
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.sink import ResultTopics, Sink
from tests.pipeline.query_input import forget_last_commit
from tests.pipeline.stored import files_by, stored


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster with one real nsqd, for the topic of rejected messages."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder, folder, nsqds=1)
    cluster.start()
    yield cluster
    cluster.stop()


def on_topic(cluster):
    """Number of messages published to the topic of rejected messages."""
    _, stats = cluster.nsqds[0].request("GET", "/stats?format=json&topic=clicks.rejected")
    return sum(found["message_count"] for found in json.loads(stats)["topics"] or ())


def test_every_message_is_in_one_table_and_rejected_ones_on_the_topic(
    spark, query_input, cluster, tmp_path
):
    """Every message is stored once, also if Spark repeats a batch, which is published again.

    Rejected messages of 1 MB, of control characters or binary data, too, fit their topic.
    """
    names = {"rejected": "clicks.rejected"}
    topics = ResultTopics({"nsqd_tcp_addresses": cluster.nsqds[0].tcp}, names)
    lines = generate(300, seed=3).lines
    bad = [b"\x01" * 1_000_000, b"\xff" * 1_000_000, b'"' * 1_000_000, b"x"]
    lines[20:20], lines[250:250] = bad[:2], bad[2:]
    stream, counts = query_input(archive.QUERY), []
    for at in range(0, len(lines), 152):
        stream.add(lines[at : at + 152])

    def run():
        sink = Sink(spark, str(tmp_path), archive.output(), topics, counted=counts.append)
        stream.run(files_by(sink.tables, archive.split), sink)

    run()
    published = on_topic(cluster)
    forget_last_commit(stream.checkpoint)
    run()
    clicks, rejected = stored(tmp_path, "clicks"), stored(tmp_path, "rejected")

    assert {*bad} <= set(rejected["body"].to_pylist())
    assert sorted(lines) == sorted([*clicks["body"].to_pylist(), *rejected["body"].to_pylist()])
    assert [f"{at:016x}" for at in range(len(lines))] == sorted(
        [*clicks["id"].to_pylist(), *rejected["id"].to_pylist()]
    )
    assert all(rejected["reason"].to_pylist())
    assert published == len(rejected) == sum(counts[:2])
    assert on_topic(cluster) == published + counts[2]
