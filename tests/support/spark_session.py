"""The Spark session of all tests: there is one a process, and what its processes say is kept.

It is a plugin, not part of a folder's conftest: a fixture that a second conftest imports is a
second fixture, with a second log that the session, started by the first, never writes to.

JVMs that a test starts in a process of its own get the same options of Java.
"""

import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparq.pipeline.session import use_this_python
from sparq.spark.java import ensure_java

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")
"""The classes that Spark loads; the Makefile has it made (`tests.support.spark_classes`)."""

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What tests run once need not be compiled well: it took two fifths of the processor's time."""

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""An archive that does not fit is no news."""


def java_options() -> str:
    """The options of a JVM that a test starts."""
    if not ARCHIVE.is_file():
        return JVM_OPTIONS
    return f"{JVM_OPTIONS} {QUIET} {shlex.quote(f'-XX:SharedArchiveFile={ARCHIVE}')}"


JAVA_OPTIONS = java_options()


def pytest_configure() -> None:
    """Give every JVM that Spark's launcher starts these options, unless the caller has others."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)


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


def builder(folder):
    """Of a local session with two tasks at a time, no user interface, nothing beyond loopback."""
    ensure_java()
    use_this_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    files = "org.apache.spark.sql.execution.streaming.checkpointing"
    return (
        SparkSession.builder.master("local[2]")
        .appName("sparq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # A query that does not stop is waited for without end by default.
        .config("spark.sql.streaming.stopTimeout", "60s")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        # A local disk needs no renames through Hadoop: a third of a small batch's time.
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            f"{files}.FileSystemBasedCheckpointFileManager",
        )
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory, spark_log):
    """The session of this process."""
    with standard_error(spark_log):
        session = builder(tmp_path_factory.mktemp("spark")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
