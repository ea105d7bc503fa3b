"""The Spark session of all tests, one per process, and a log of its processes' standard error.

This is a plugin, not part of a folder's conftest: if a second conftest imported the fixture, that
would be a second fixture, with a second log that the session of the first never writes to.

JVMs that a test starts in a process of its own get the same Java options.
"""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparq.pipeline.java import ensure_java, from_archive
from sparq.pipeline.session import use_this_python

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

IN_A_SESSION = [
    # The first test also waits for the JVM to start, even on a busy machine.
    pytest.mark.timeout(400),
    # Py4J leaves closing its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""The marks of a test that uses `spark`."""

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Code that tests run once needs no optimisation: it took two fifths of the CPU time."""

JAVA_OPTIONS = f"{JVM_OPTIONS} {from_archive()}"


def pytest_configure() -> None:
    """Give these options to all JVMs of Spark's launcher, unless the user has set others."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory) -> Path:
    """The file with the standard error of Spark's JVM and its Python workers."""
    return tmp_path_factory.mktemp("log") / "stderr"


@contextmanager
def standard_error(path: Path):
    """Send the standard error of processes that are started in this block to a file."""
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def builder(folder):
    """Return the builder of a local session: two concurrent tasks, no web UI, loopback only."""
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
        # By default Spark waits without limit for a query to stop.
        .config("spark.sql.streaming.stopTimeout", "60s")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        # Renames through Hadoop took a third of a small batch's time; a local disk does not need
        # them.
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
