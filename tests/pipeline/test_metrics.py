"""The query `metrics`, batch by batch as Spark calls it, held to a plain count."""

from collections import Counter, defaultdict

import pytest

from sparq.pipeline import metrics
from sparq.pipeline.audit import newest_rows
from sparq.pipeline.cluster import Cluster
from sparq.pipeline.folders import Folders
from sparq.pipeline.generator import generate
from tests.pipeline import plain

SIZE, BATCH = 1200, 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A real nsqd: rejected messages go to its topic."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder, folder, nsqds=1)
    cluster.start()
    yield cluster
    cluster.stop()


class Topic:
    """Takes what is published; fails when told to."""

    def __init__(self):
        self.bodies = []
        self.fails = False

    def __call__(self, topic, bodies):
        if self.fails:
            self.fails = False
            raise ConnectionError("killed")
        self.bodies += [(topic, body) for body in bodies]


@pytest.fixture
def sink(tmp_path, cluster):
    """Makes sinks on one folder: a second one is what a restarted driver has."""
    options = {"nsqd_tcp_addresses": cluster.nsqds[0].tcp}
    topic = Topic()
    return topic, lambda: metrics.MetricsSink(Folders(tmp_path), topic, options)


def counted(bodies):
    """{minute: figures} and the number of unreadable ones, by plain Python."""
    minutes, unreadable = defaultdict(list), 0
    for body in bodies:
        try:
            click = plain.read(body)
        except plain.Unreadable:
            unreadable += 1
        else:
            minutes[click["time"].replace(second=0)].append(click)
    return {minute: _figures(mine) for minute, mine in minutes.items()}, unreadable


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
    """The newest rows as a plain count has them."""
    rows = newest_rows(metrics.read(Folders(folder))).to_pylist()
    names = ("clicks", "visitors", "bytes", "status_2xx", "status_4xx", "top_pages")
    return {row["minute"]: {name: row[name] for name in names} for row in rows}


def on_topic(cluster):
    """How many messages the topic of the rejected has taken."""
    return sum(found["message_count"] for _, found in cluster.topics(metrics.REJECTED_TOPIC))


def test_the_figures_through_kills_and_repeats(sink, messages, tmp_path, cluster):
    """A batch that failed half-way, and one repeated by a new driver, change nothing."""
    topic, make = sink
    bodies = generate(SIZE, 6).lines
    bodies[10] = bodies[700] = b"no click"
    frames = [
        metrics.prepared(messages(bodies[at : at + BATCH], at)) for at in range(0, SIZE, BATCH)
    ]
    first = make()
    first(frames[0], 0)
    topic.fails = True
    with pytest.raises(ConnectionError):
        first(frames[1], 1)
    first(frames[1], 1)
    second = make()
    second(frames[1], 1)
    second(frames[2], 2)
    second.close(3)

    expected, unreadable = counted(bodies)
    rejected = metrics.read_rejected(Folders(tmp_path)).to_pylist()
    assert written(tmp_path) == expected
    assert sorted(row["id"] for row in rejected) == sorted({row["id"] for row in rejected})
    assert len(rejected) == unreadable
    assert {row["body"] for row in rejected} >= {b"no click"}
    assert all(row["final"] for row in newest_rows(metrics.read(Folders(tmp_path))).to_pylist())
    assert on_topic(cluster) >= unreadable
    assert {name for name, _ in topic.bodies} == {metrics.METRICS_TOPIC}


def test_a_rejected_message_fits_its_topic(sink, messages, cluster):
    """Whatever it is: a megabyte of control characters, or no text at all."""
    _, make = sink
    before = on_topic(cluster)
    bodies = [b"\x01" * 1_000_000, b"\xff" * 1_000_000, b'"' * 1_000_000, b"x"]
    make()(metrics.prepared(messages(bodies)), 0)

    assert on_topic(cluster) - before == len(bodies)


def test_a_long_page_keeps_its_name(messages):
    """Long pages that differ only behind the bound stay different."""
    lines = [
        f'1.2.3.4 - - [10/Oct/2025:13:55:36 +0000] "GET /{"a" * 600}{end} HTTP/1.1" 200 1'.encode()
        for end in ("x", "y", "y")
    ]
    groups = metrics.reduced(metrics.prepared(messages(lines))).toArrow()
    entries = metrics.entries_of(groups).to_pylist()
    pages = [entry["key"] for entry in entries if entry["kind"] == 2]

    assert len(set(pages)) == 2
    assert max(map(len, pages)) <= metrics.PAGE_CHARACTERS_MAX
