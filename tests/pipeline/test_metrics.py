"""The query `metrics` in Spark, batch by batch, compared with a plain count."""

from collections import Counter, defaultdict

import pytest

from sparq.demo.generator import generate
from sparq.pipeline import metrics
from sparq.pipeline.audit import newest_rows
from sparq.pipeline.cluster import LocalCluster
from sparq.pipeline.folders import FolderAddresses, Folders
from sparq.pipeline.minutes_state import processor
from sparq.pipeline.packing import bucket_count
from sparq.pipeline.results import ResultTopics
from tests.pipeline import plain
from tests.pipeline.query_input import forget_last_commit

SIZE, BATCH = 1200, 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster with one real nsqd, for the topics of results."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder, folder, nsqds=1)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def topics(cluster):
    """Result topics on that nsqd."""
    return ResultTopics({"nsqd_tcp_addresses": cluster.nsqds[0].tcp})


class FailsOnce(ResultTopics):
    """Topics whose second publish of a batch fails."""

    published = 0

    def publish(self, topic, bodies):
        FailsOnce.published += 1
        if FailsOnce.published == 2:
            raise ConnectionError("killed")
        super().publish(topic, bodies)


def plan(messages):
    """The query's rows, for the 2 shuffle partitions of the tests' session."""
    return processor.minute_rows(processor.packed(messages, bucket_count(2)))


def counted(bodies):
    """{minute: figures}, by plain Python."""
    minutes = defaultdict(list)
    for body in bodies:
        try:
            click = plain.read(body)
        except plain.Unreadable:
            continue
        minutes[click["time"].replace(second=0)].append(click)
    return {minute: _figures(mine) for minute, mine in minutes.items()}


def _figures(clicks):
    pages = Counter(click["page"] for click in clicks if click["page"])
    return {
        "clicks": len(clicks),
        "visitors": len({(click["address"], click["user_agent"]) for click in clicks}),
        "bytes": sum(click["bytes"] for click in clicks),
        "status_2xx": sum((click["status"] or 0) // 100 == 2 for click in clicks),
        "status_4xx": sum((click["status"] or 0) // 100 == 4 for click in clicks),
        "top_pages": [
            {"page": page, "clicks": count}
            for page, count in sorted(pages.items(), key=lambda one: (-one[1], one[0]))[:10]
        ],
    }


def written(folder):
    """The figures of the newest rows, in the form of `counted`."""
    rows = newest_rows(metrics.read(Folders(folder))).to_pylist()
    names = ("clicks", "visitors", "bytes", "status_2xx", "status_4xx", "top_pages")
    return {row["minute"]: {name: row[name] for name in names} for row in rows}


def on_topic(cluster, topic):
    """Number of messages published to a topic."""
    return sum(found["message_count"] for _, found in cluster.topics(topic))


def test_failed_and_repeated_batches_leave_the_figures_exact(
    query_input, topics, tmp_path, cluster
):
    """A batch that fails half-way and one that a new driver repeats leave the figures exact."""
    bodies = generate(SIZE, 6).lines
    bodies[10] = bodies[700] = b"no click"
    query, places = query_input(metrics.QUERY), FolderAddresses(str(tmp_path))
    for at in range(0, SIZE, BATCH):
        query.add(bodies[at : at + BATCH])
    FailsOnce.published = 0
    with pytest.raises(Exception, match="killed"):
        query.run(plan, metrics.MetricsSink(places, FailsOnce(topics.options)))
    query.run(plan, metrics.MetricsSink(places, topics))
    forget_last_commit(query.checkpoint)
    query.run(plan, metrics.MetricsSink(places, topics))
    metrics.MetricsSink(places, topics).close(query.spark, query.batches)

    expected = counted(bodies)
    assert written(tmp_path) == expected
    assert all(row["final"] for row in newest_rows(metrics.read(Folders(tmp_path))).to_pylist())
    assert on_topic(cluster, topics.minutes) >= len(expected)


def test_late_clicks_are_counted_by_minute(query_input, tmp_path):
    """A click more than a day after its publish time is counted as late, in no minute."""
    line = '1.2.3.4 - - [%s +0000] "GET / HTTP/1.1" 200 1'
    times = ["20/Nov/2026:10:00:00", "24/Nov/2026:10:00:07", "24/Nov/2026:10:00:59"]
    query, places = query_input(metrics.QUERY), FolderAddresses(str(tmp_path))
    query.add([(line % time).encode() for time in times])
    query.run(plan, metrics.MetricsSink(places))
    late = metrics.read_late(Folders(tmp_path)).to_pylist()

    assert [(f"{row['minute']:%d %H:%M}", row["clicks"]) for row in late] == [("24 10:00", 2)]
    assert [row["clicks"] for row in metrics.read(Folders(tmp_path)).to_pylist()] == [1]
