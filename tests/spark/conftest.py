"""One Spark session for all tests of this folder: starting one takes longer than most tests."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparq.pipeline.workers_python import use_this_python
from sparq.spark.decode import SCHEMA
from sparq.spark.java import ensure_java
from sparq.spark.options import SourceOptions
from sparq.spark.source import NsqStreamReader
from tests.spark.range_server import RangeServer


@pytest.fixture
def servers():
    """Two nsqds, with four and with six messages."""
    with RangeServer() as first, RangeServer() as second:
        second.log = "cd" * 16
        for number in range(2):
            first.add([b"%da" % number, b"%db" % number], gap=100)
            second.add([b"%da" % number, b"%db" % number, b"%dc" % number])
        yield first, second


@pytest.fixture
def readers(servers):
    """Makes stream readers and closes them."""
    made = []

    def make(*used: RangeServer, **options: str) -> NsqStreamReader:
        given = {
            "topic": "clicks",
            "channel": "archive",
            "nsqd_tcp_addresses": ",".join(server.address for server in used or servers),
            "startingOffsets": "earliest",
            "nsqdTimeoutMs": "10000",
        }
        made.append(NsqStreamReader(SourceOptions.of(given | options, stream=True), SCHEMA.names))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory) -> Path:
    """What Spark's JVM and its Python workers write to standard error."""
    return tmp_path_factory.mktemp("log") / "stderr"


@contextmanager
def standard_error(path: Path):
    """Processes that are started meanwhile write their standard error to a file."""
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.fixture(scope="session")
def spark(tmp_path_factory, spark_log):
    """A local session with two tasks at a time, no user interface and nothing beyond loopback."""
    ensure_java()
    use_this_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    files = "org.apache.spark.sql.execution.streaming.checkpointing"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("sparq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # What the tests run once need not be compiled well: half of the JVM's time at the start.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        # A local disk needs no renames through Hadoop: a third of a small batch's time.
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            f"{files}.FileSystemBasedCheckpointFileManager",
        )
    )
    with standard_error(spark_log):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
