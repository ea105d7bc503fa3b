"""The query `metrics` in Spark, batch by batch, compared with a plain count."""

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparq.demo.generator import generate
from sparq.pipeline import metrics
from sparq.pipeline.maintenance import merge
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.sink import ResultTopics, Sink
from sparq.pipeline.tables import files_of
from tests.pipeline import plain
from tests.pipeline.query_input import forget_last_commit
from tests.pipeline.stored import files_by, process, stored, summed_up

SIZE, BATCH = 1200, 500
LINE = '%s - - [%s +0000] "GET %s HTTP/1.1" %s %s "-" "%s"'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster with one real nsqd, for the topic of minutes."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder, folder, nsqds=1)
    cluster.start()
    for path in ("topic/create?", "channel/create?channel=c&"):
        cluster.nsqds[0].request("POST", f"/{path}topic=clicks.metrics")
    yield cluster
    cluster.stop()


class FailsOnce(ResultTopics):
    """Topics whose second publish fails."""

    published = 0

    def publish(self, result, bodies):
        FailsOnce.published += 1
        if FailsOnce.published == 2:
            raise ConnectionError("killed")
        super().publish(result, bodies)


def counted(bodies):
    """{minute: figures} and {(minute, page): clicks}, by plain Python."""
    minutes, pages = defaultdict(list), Counter()
    for body in bodies:
        try:
            click = plain.read(body)
        except plain.Unreadable:
            continue
        minute = click["time"].replace(second=0)
        minutes[minute].append(click)
        if click["page"]:
            pages[minute, click["page"]] += 1
    return {minute: _figures(mine) for minute, mine in minutes.items()}, pages


def _figures(clicks):
    classes = Counter((click["status"] or 0) // 100 for click in clicks)
    return {
        "clicks": len(clicks),
        "visitors": len({(click["address"], click["user_agent"]) for click in clicks}),
        "bytes": sum(click["bytes"] for click in clicks),
        **{f"status_{name}": classes[int(name[0])] for name in metrics.STATUS_CLASSES[:-1]},
    }


def minutes_of(folder):
    """The minutes, in the form of `counted`."""
    rows = stored(folder, "minutes").drop(["status_other"]).to_pylist()
    return {row.pop("minute"): row for row in rows}


def pages_of(folder):
    """The pages, in the form of `counted`."""
    rows = DeltaTable(folder / "pages").to_pyarrow_table().to_pylist()
    found = Counter()
    for row in rows:
        found[row["minute"], row["page"]] += row["clicks"]
    return found


def on_topic(spark, cluster):
    """The minutes on the topic, in their order; they are published by one task."""
    source = spark.read.format("nsq").option("nsqd_tcp_addresses", cluster.nsqds[0].tcp)
    rows = source.option("topic", "clicks.metrics").load().orderBy("index").collect()
    return [json.loads(bytes(row.body)) for row in rows]


def test_failed_and_repeated_batches_leave_the_figures_exact(spark, query_input, tmp_path, cluster):
    """A batch that fails half-way and one that a new driver repeats leave the figures exact.

    The topic has the totals so far of the minutes of each batch; their revision grows.
    """
    bodies = generate(SIZE, 6).lines
    bodies[10] = bodies[700] = b"no click"
    bodies[400:600] = bodies[:200]  # minutes of the first batch, again in the second
    query, options = query_input(metrics.QUERY), {"nsqd_tcp_addresses": cluster.nsqds[0].tcp}
    for at in range(0, SIZE, BATCH):
        query.add(bodies[at : at + BATCH])

    names = {"metrics": "clicks.metrics"}

    def run(topics):
        sink = Sink(spark, str(tmp_path), metrics.output(), topics)
        query.run(files_by(sink.tables, metrics.split), sink)

    with pytest.raises(Exception, match="killed"):
        run(FailsOnce(options, names))
    run(ResultTopics(options, names))
    forget_last_commit(query.checkpoint)
    run(ResultTopics(options, names))
    minutes, pages = counted(bodies)
    published, newest, revisions = on_topic(spark, cluster), {}, defaultdict(list)
    for row in published:
        minute = datetime.fromisoformat(row["minute"])
        revisions[minute].append(row.pop("revision"))
        newest[minute] = {"clicks": row["clicks"], "visitors": row["visitors"]}

    assert minutes == minutes_of(tmp_path)
    assert pages == pages_of(tmp_path)
    assert newest == {
        minute: {name: row[name] for name in ("clicks", "visitors")}
        for minute, row in minutes.items()
    }
    assert any(len(one) > 1 for one in revisions.values())
    assert all(one == sorted(one) for one in revisions.values())


def test_merged_rows_give_the_same_figures(spark, query, messages, tmp_path):
    """A merge of files sums up the rows of a minute, and of a page, and changes no figure."""
    bodies = generate(600, 7).lines
    sink = Sink(spark, str(tmp_path), metrics.output())
    for number, at in enumerate(range(0, 600, 200)):
        process(sink, messages(bodies[at : at + 200], first=at), number, metrics.split)
    before = len(DeltaTable(tmp_path / "minutes").to_pyarrow_table())
    for table in sink.tables.opened.values():
        table.delta.update_incremental()
        assert merge(spark, table, files_of(table.delta))
    minutes, pages = counted(bodies)

    assert len(minutes) == len(DeltaTable(tmp_path / "minutes").to_pyarrow_table()) < before
    assert minutes == minutes_of(tmp_path)
    assert pages == pages_of(tmp_path)


def test_odd_clicks_are_counted():
    """Clicks without status or page, of huge bytes and pages, and of no visitor, are counted."""
    lines = [
        LINE % ("1.2.3.4", "02/Mar/2026:10:00:59", "/" + "x" * 5_000, 200, 2**55, "a"),
        LINE % ("1.2.3.4", "02/Mar/2026:10:00:00", "/" + "x" * 5_000, 200, 2**55, "a"),
        '1.2.3.4 - - [02/Mar/2026:10:00:59 +0000] "odd" - -',
        "no click",
    ]
    batch = pa.record_batch([pa.array(map(str.encode, lines), pa.binary())], names=["body"])
    (rows,) = metrics.split([batch])
    (minute,) = summed_up(rows["minutes"]).to_pylist()
    (page,) = rows["pages"].to_pylist()

    assert datetime(2026, 3, 2, 10, tzinfo=UTC) == minute["minute"]
    assert (3, 2, 2 * metrics.BYTES_MAX, 2, 1) == tuple(
        minute[name] for name in ("clicks", "visitors", "bytes", "status_2xx", "status_other")
    )
    assert (2, metrics.PAGE_CHARACTERS_MAX) == (page["clicks"], len(page["page"]))
    assert [] == list(metrics.split([]))


def test_a_visitor_has_the_same_hash_everywhere():
    """The hash is stored, so it must never change. A click without an address has none."""
    addresses = pa.chunked_array([["203.0.113.7", "203.0.113.7", None]], pa.string())
    agents = pa.chunked_array([["curl/8.5", None, "curl/8.5"]], pa.string())

    assert [-8674517076258410245, 6974523533129668977, None] == metrics.visitor_hashes(
        addresses, agents
    ).to_pylist()
