"""What queries read: messages or lines of files, each with the same id whenever a batch repeats."""

import gzip
import os
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from sparq.demo.generator import generate
from sparq.pipeline import archive, channels
from sparq.pipeline.channels import check_cluster
from sparq.pipeline.settings import SettingsError
from sparq.pipeline.sink import Sink
from tests.pipeline.query_input import forget_last_commit
from tests.pipeline.settings_examples import settings_with
from tests.pipeline.stored import files_by
from tests.support.published import numbered, publish, publish_batches
from tests.support.servers import free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

MIB = 1 << 20


def bodies(batches):
    """The function of the test."""
    for batch in batches:
        yield pa.record_batch([batch["body"]], names=["body"])


def test_a_function_makes_the_rows_and_spark_hears_of_the_messages(spark, tmp_path):
    """Only the function's rows come; messages and publish time are observed, over all tasks."""
    kept = []
    with spawn_nsqd(tmp_path / "nsqd") as nsqd:
        sent = numbered(0, 100)
        publish_batches(nsqd, "t", sent)
        options = {"topic": "t", "channel": "c", "queryName": "q", "nsqd_tcp_addresses": nsqd.tcp}
        rows = channels.with_batch_time(channels.channel(spark, options, bodies, "body BINARY"))
        query = (
            rows.writeStream.foreachBatch(lambda frame, _: kept.extend(frame.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    (progress,) = [one for one in query.recentProgress if one.numInputRows]
    read = progress.observedMetrics["sparq_read"]

    assert sorted(sent) == sorted(row.body for row in kept)
    assert 100 == read.messages
    assert 0 <= time.time() - read.newest_published_s < 300
    (batch_ms,) = {row.batch_ms for row in kept}
    assert 0 <= time.time() - batch_ms / 1000 < 300


def test_the_check_creates_no_topic_or_channel(tmp_path):
    """One nsqlookupd of two is enough; no topic or channel is created."""
    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
        publish(nsqd, "clicks", b"click", channel="")
        wait_for(lambda: "clicks" in lookupd.get_json("/topics")["topics"])
        addresses = (f"127.0.0.1:{free_port()}", lookupd.http)
        for topic in ("clicks", "other"):
            check_cluster(settings_with(lookupd_http_addresses=addresses, topic=topic))

        (found,) = nsqd.get_json("/stats?format=json")["topics"]
        assert ("clicks", []) == (found["topic_name"], found["channels"])


def test_the_check_waits_for_an_nsqlookupd_that_is_starting(monkeypatch, tmp_path):
    """The check waits for an nsqlookupd that a supervisor starts at the same time."""
    monkeypatch.setattr(channels, "ANSWER_SECONDS", 0.0)
    with spawn_nsqlookupd(tmp_path) as lookupd:
        lookupd.terminate()
        pauses = []

        def start_meanwhile(seconds):
            pauses.append(seconds)
            if len(pauses) == 1:
                lookupd.start()
            time.sleep(seconds)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=start_meanwhile)
        monkeypatch.setattr(channels, "time", clock)
        settings = settings_with(lookupd_http_addresses=(lookupd.http,), run_dir=str(tmp_path))
        check_cluster(settings)
        assert pauses


# Log files


class Logs:
    """A folder of log files, and the archive of what a query has read of them."""

    def __init__(self, spark, folder):
        self.spark, self.data = spark, folder / "data"
        self.folder = folder / "a log"
        self.folder.mkdir()
        self.written = 0

    def write(self, name, text):
        """Write a file; each is a second newer than the one before."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        os.utime(path, (1_700_000_000 + self.written,) * 2)
        self.written += 1
        return path.as_uri().replace("///", "/")

    def read(self, place=None):
        """Read what is new, and end."""
        rows = channels.file_messages(self.spark, str(place or self.folder))
        sink = Sink(self.spark, str(self.data), archive.output())
        checkpoint = f"{self.data}/checkpoint/files/archive"
        written = files_by(sink.tables, archive.split)(rows)
        query = written.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    def rows(self, *columns):
        """All rows of both tables, by place."""
        tables = [
            DeltaTable(self.data / name).to_pyarrow_table(columns=list(columns))
            for name in ("clicks", "rejected")
        ]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.fixture
def logs(spark, tmp_path):
    return Logs(spark, tmp_path)


def test_each_line_is_a_message_with_its_place(logs):
    """Lines keep their bytes, empty ones are left out, and none is too long."""
    line = generate(1, 3).lines[0]
    long = line[:-1] + b"x" * 2 * MIB + b'"'
    lines = [line, b"", b"\r", line + b"\r", b"a\rb", b"\xff", long]
    plain = logs.write("1.log", b"\n".join(lines))
    packed = logs.write("deep/2.log.gz", line + b"\n" + line + b"\n")
    logs.write("_hidden", line)
    logs.read()
    found = logs.rows("nsqd", "index", "body")

    assert found == [
        *((plain, 0, line), (plain, 3, line + b"\r"), (plain, 4, b"a\rb"), (plain, 5, b"\xff")),
        *((plain, 6, long), (packed, 0, line), (packed, 1, line)),
    ]
    times = {row[0].timestamp() for row in logs.rows("timestamp")}
    assert {1_700_000_000, 1_700_000_001} == times


def test_a_file_is_read_once_also_after_a_kill(logs):
    """New files are read, known ones are not, and a repeated batch has the same ids."""
    lines = generate(3_000, 3).lines
    for number in range(3):
        logs.write(f"{number}.log", b"\n".join(lines[number * 1000 :][:1000]) + b"\n")
        logs.read()
        before = logs.rows("id", "index", "body")
        forget_last_commit(logs.data / "checkpoint" / "files" / "archive")
        with (logs.folder / "0.log").open("ab") as grown:
            grown.write(b"appended later\n")
        logs.read()

        assert before == logs.rows("id", "index", "body")
    logs.write("old.log", lines[0])
    os.utime(logs.folder / "old.log", (1_600_000_000,) * 2)
    logs.read()

    assert sorted([*lines, lines[0]]) == sorted(row[2] for row in logs.rows("id", "index", "body"))
    assert 3_000 == len({row[0] for row in before})


def test_a_large_file_has_the_same_ids_wherever_it_is_read(logs, spark, tmp_path, monkeypatch):
    """Where the blocks of a file begin depends neither on other files nor on the cores."""
    monkeypatch.setitem(channels.SPLITS, "spark.sql.files.maxPartitionBytes", "400000")
    spark.conf.set("spark.sql.files.openCostInBytes", "1")
    try:
        lines = generate(2_000, 3).lines
        name = logs.write("1.log", b"\n".join(lines))
        logs.read()
        alone = logs.rows("index", "id", "body")
        logs.data = tmp_path / "again"
        logs.write("2.log", b"x\n" * 700_000)
        logs.read()
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")

    assert lines == [row[2] for row in alone]
    assert 2_000 == len({row[0] for row in alone}) == len({row[1] for row in alone})
    assert alone == [row[1:] for row in logs.rows("nsqd", "index", "id", "body") if row[0] == name]


def test_what_is_not_there_or_not_whole_is_an_error(logs, spark):
    """A path without files is one sentence; a damaged .gz fails the query, or is read as far."""
    with pytest.raises(SettingsError, match="no such file or folder"):
        logs.read(logs.folder / "*.log")
    logs.write("1.log.gz", b"a line\n" * 10)
    packed = logs.folder / "2.log.gz"
    packed.write_bytes(gzip.compress(b"another\n" * 100_000)[:-20])
    with pytest.raises(StreamingQueryException, match=r"2\.log\.gz"):
        logs.read()
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        logs.read()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")

    assert 10 == logs.rows("body").count((b"a line",))
