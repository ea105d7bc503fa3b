"""The one Spark session of the pipeline, for any master.

The driver's JVM is started first, unless spark-submit has already done so, and says which options
it has. Precedence, strongest first: REQUIRED; settings and `--spark`; spark-submit and
spark-defaults.conf; the pipeline's own defaults. PySpark installs a handler for SIGINT.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparq.options.mistakes import Mistake, shown
from sparq.pipeline import java
from sparq.pipeline.settings import Settings, SettingsError
from sparq.spark.data_source import NsqDataSource

STREAMING: Final = "org.apache.spark.sql.execution.streaming"
LOOPBACK: Final = "127.0.0.1"
MASTER: Final = "spark.master"
LOCAL: Final = "local"  # how masters begin whose executors run on this machine only
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"

REQUIRED: Final[Mapping[str, tuple[str, str]]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        f"{STREAMING}.state.RocksDBStateStoreProvider",
        "transformWithState works only with the RocksDB state store",
    ),
    # A stateful task may run twice: by speculation, by a retry, or by a driver that was presumed
    # dead. In Spark's default format, 1, all attempts write the same file of the state. In format 2
    # each has its own, and the batch's commit names the one that counts.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": (
        "2",
        "a checkpoint keeps the state format that it started with",
    ),
    "spark.sql.session.timeZone": ("UTC", "minutes and the days of the tables are in UTC"),
}
"""Options with only one allowed value, and why; they override spark-defaults.conf, too."""

FLAG_OF: Final[Mapping[str, str]] = {
    MASTER: "master",
    "spark.driver.memory": "driver-memory",
    "spark.executor.memory": "executor-memory",
    SHUFFLE_PARTITIONS: "shuffle-partitions",
}
"""Options that are set by a flag of their own, and only by it."""

AT_START: Final = {
    *(MASTER, "spark.driver.memory", "spark.driver.extraJavaOptions"),
    *("spark.driver.extraClassPath", "spark.driver.extraLibraryPath"),
    *("spark.jars.packages", "spark.jars.repositories"),
}
"""Options that take effect only while the driver's JVM starts."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Each query runs in a pool of its own, so that a long job of one query, such as a merge of
    # files, leaves task slots for the others.
    "spark.scheduler.mode": "FAIR",
    # The UI is in the driver's heap. By default it keeps 1,000 jobs, stages and plans and 100,000
    # tasks, so the driver would grow with every batch for hours.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "5000",
    "spark.sql.ui.retainedExecutions": "100",
    # Workers are forked from a process that has loaded what all of them need.
    "spark.python.daemon.module": "sparq.pipeline.workers_daemon",
    # A batch uploads the changes of the state, not a snapshot of RocksDB.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # By default `stop()` waits forever for a query that hangs.
    "spark.sql.streaming.stopTimeout": "60s",
    # A Python worker gets 10,000 messages at a time (4,000 to 20,000 cost the same per row), of up
    # to 1 MiB each; the default limit of their bytes is 2 GiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}

OF_QUERIES: Final[Mapping[str, str]] = {
    # Adaptive execution sizes partitions by measured data: a repeated batch might be split
    # differently. Spark turns it off for stateful queries anyway.
    "spark.sql.adaptive.enabled": "false",
    # Arrow and numpy do the work. Compiling Java for the few expressions around them delays the
    # first batch of each query, and made later batches no faster.
    "spark.sql.codegen.wholeStage": "false",
}
"""Defaults of the pipeline's three queries; other programs with this session keep Spark's."""

HASTY: Final[Mapping[str, str]] = {
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "0",
    "ipc.client.connect.timeout": "3000",
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
}
"""Hadoop's options with which a file system gives up within seconds, not minutes."""

PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"


def session(settings: Settings) -> SparkSession:
    """Make the session, with the state store, time zone and memory that the queries need.

    Raises SettingsError, within seconds, for an option, the master or the data's file system, and
    Mistake if Spark does not start.
    """
    given = explicit(settings)
    named = os.environ.get(PYTHON, "")
    use_this_python()
    found = _jvm_options(given)
    wanted = options_for(settings, given, found)
    workers = {**found, **wanted}.get("spark.pyspark.python", named)
    if workers and not found[MASTER].startswith(LOCAL):
        os.environ[PYTHON] = workers
    # No stack trace in the log: the text of the Mistake has the reason.
    log4j = getattr(SparkContext._jvm, "org.apache.logging.log4j")
    off = log4j.Level.OFF
    log4j.core.config.Configurator.setLevel("org.apache.spark.SparkContext", off)
    try:
        spark: SparkSession = SparkSession.builder.config(map=wanted).getOrCreate()
        spark._jsparkSession.sessionState()  # Spark reads the options of SQL only now
    except (Py4JError, PySparkException, OSError) as error:
        raise Mistake(f"Spark does not start: {_java_reason(error)}") from error
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(NsqDataSource)  # the session does not look for it: see `_start_jvm`
    try:
        _check_data(spark, settings.data)
    except SettingsError:
        spark.stop()
        raise
    if SHUFFLE_PARTITIONS not in found | wanted:
        spark.conf.set(SHUFFLE_PARTITIONS, str(_cores(spark)))
    return spark


def _cores(spark: SparkSession) -> int:
    """The number of tasks that can run at once.

    The executors of a cluster join one by one, and a stateful query keeps the partitions of its
    first start for good: so wait, for 15 s at most, until none has joined for a second.
    """
    context, count, before = spark.sparkContext, 0, -1
    deadline = time.monotonic() + (0.0 if context.master.startswith(LOCAL) else 15.0)
    while not count == before > 1 and time.monotonic() < deadline:  # the driver is one of them
        time.sleep(1.0)
        count, before = len(context.statusTracker().getExecutorInfos()), count
    return int(context.defaultParallelism)


def use_this_python() -> None:
    """Let Spark run this interpreter, in a session made later."""
    os.environ[PYTHON] = os.environ[DRIVER_PYTHON] = sys.executable


def explicit(settings: Settings) -> dict[str, str]:
    """The options that the user has set; SettingsError: one of `--spark` is refused."""
    for key, value in settings.spark:
        needed, why = REQUIRED.get(key, (value, ""))
        if not key.startswith("spark."):
            wrong = f"{shown(key)} is not a Spark option: these begin with spark."
        elif key in FLAG_OF:
            wrong = f"{key} has its own flag: write --{FLAG_OF[key]}"
        elif value != needed:
            wrong = f"{key} must be {needed}: {why}"
        else:
            continue
        raise SettingsError(f"--spark: {wrong}")
    own = {key: getattr(settings, flag.replace("-", "_")) for key, flag in FLAG_OF.items()}
    return {**dict(settings.spark), **{key: str(value) for key, value in own.items() if value}}


def options_for(
    settings: Settings, given: Mapping[str, str], found: Mapping[str, str]
) -> dict[str, str]:
    """The options for making the session; the JVM has those of `found`, among them its master."""
    wanted = {"spark.ui.showConsoleProgress": "false"}  # bars on stderr, which is a log file
    # Names that Spark's launcher gives to a program without `--name`.
    if found.get("spark.app.name", "app.py") in ("app.py", "pyspark-shell"):
        wanted["spark.app.name"] = "sparq clicks"
    defaults = dict(DEFAULTS)
    if found[MASTER].startswith("spark://"):
        # A killed Java leaves unpacked libraries in its temporary folder. An executor's working
        # folder is deleted with the application; YARN's has both.
        defaults["spark.executor.defaultJavaOptions"] = "-Djava.io.tmpdir=."
    if found[MASTER].startswith(LOCAL):
        # On a cluster the executors connect to the driver from other machines.
        defaults |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if settings.data.startswith(("/", "file:")):
            # Spark's default, Hadoop's FileContext, costs a third of a small batch's time. This
            # manager relies on atomic renames, which S3A lacks.
            defaults["spark.sql.streaming.checkpointFileManagerClass"] = (
                f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
            )
    wanted |= {key: value for key, value in defaults.items() if key not in found}
    wanted |= {**given, **{key: value for key, (value, _) in REQUIRED.items()}}
    return {key: value for key, value in wanted.items() if key != MASTER}


def _jvm_options(given: Mapping[str, str]) -> dict[str, str]:
    """Find the driver's JVM or start it; returns its options, which always include the master."""
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_API_MODE", "classic") != "classic":
        raise SettingsError("SPARK_REMOTE or SPARK_API_MODE is set: unset it (no Spark Connect)")
    # spark-submit sets this variable for the Python program that it starts.
    if "PYSPARK_GATEWAY_PORT" not in os.environ and SparkContext._jvm is None:
        _start_jvm({MASTER: _default_master(), **given})
    SparkContext._ensure_initialized()
    found = dict(SparkConf().getAll())
    for key in sorted(given.keys() & AT_START):
        # Spark's launcher adds https to Kubernetes addresses.
        if given[key].replace("https://", "") != found.get(key, "").replace("https://", ""):
            name = f"--{FLAG_OF[key]}" if key in FLAG_OF else f"--spark {key}"
            late = "Spark's JVM is already running and would ignore it: give it to spark-submit"
            raise SettingsError(f"{name}: {late}, as --conf {key}=...")
    return found


def _default_master() -> str:
    """The master in spark-defaults.conf, or else all cores of this machine."""
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    found = None
    with suppress(OSError):
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^\s*spark\.master[\s=:]+(\S+)", text, re.MULTILINE)
    return found[1] if found else "local[*]"


def check_master(master: str) -> None:
    """Check that one of a standalone master's addresses accepts connections; else SettingsError."""
    if not master.startswith("spark://"):
        return
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        with suppress(OSError, ValueError):  # ValueError: the port or the name is invalid
            # Spark itself would try for a minute.
            socket.create_connection((host, int(port)), 3.0).close()
            return
    raise SettingsError(f"--master={master}: nothing answers there")


def _start_jvm(launch: Mapping[str, str]) -> None:
    """Start the driver's JVM."""
    check_master(launch[MASTER])
    java.ensure_java()
    # As a variable it is a default: flags and spark-defaults.conf override it.
    os.environ.setdefault("SPARK_DRIVER_MEMORY", java.default_heap())
    if launch[MASTER].startswith(LOCAL):
        # The address of Spark's UI can only be set by this variable.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    before = {name: os.environ.get(name, "") for name in (DRIVER_PYTHON, JAVA_OPTIONS)}
    # The JVM would start Python to look for data sources, which takes two seconds.
    os.environ[DRIVER_PYTHON] = "sparq-registers-its-data-source"
    folder = shlex.quote(f"-Djava.io.tmpdir={java.temporary_folder()}")
    # The user's options win.
    os.environ[JAVA_OPTIONS] = f"{folder} {java.from_archive()} {before[JAVA_OPTIONS]}"
    try:
        # PySpark's only way to start a JVM without a session, after which options are fixed.
        conf = SparkConf(loadDefaults=False).setAll(list(launch.items()))
        SparkContext._ensure_initialized(conf=conf)
    except (OSError, PySparkException) as error:
        given = [f"--{FLAG_OF.get(key, f'spark {key}')}" for key in launch if key in AT_START]
        raise Mistake(
            "Spark's JVM ended during start-up: see its messages above, and check "
            + " and ".join(given)
        ) from error
    finally:
        os.environ.update(before)  # Spark ignores empty values


def _java_reason(error: Exception) -> str:
    """The first line of the innermost Java exception, or else of the Python error."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and thrown.getCause() is not None:
        thrown = thrown.getCause()
    text = str(error if thrown is None else thrown.toString()).strip()
    return (text or type(error).__name__).splitlines()[0]


def prepare_for_queries(spark: SparkSession) -> None:
    """Set the options of the pipeline's own queries, except those that the user has set."""
    given = dict(spark.sparkContext.getConf().getAll())
    for key, value in OF_QUERIES.items():
        if key not in given:
            spark.conf.set(key, value)


def _check_data(spark: SparkSession, data: str) -> None:
    """Check that Spark has a file system for the data, and can write a file; else SettingsError."""
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    for key, value in HASTY.items():
        hadoop.set(key, value)
    fs: Any = getattr(spark._jvm, "org.apache.hadoop.fs")
    try:
        path = fs.Path(data)
        # Not the file system that queries share: this one gives up sooner.
        files = fs.FileSystem.newInstance(path.toUri(), hadoop)
        files.mkdirs(path)
        probe = fs.Path(path, f"_probe-{uuid4()}")
        files.create(probe).close()
        files.delete(probe, False)
        files.close()
    except (Py4JError, PySparkException) as error:
        reason = _java_reason(error)
        is_unknown = "No FileSystem for scheme" in reason or "ClassNotFound" in reason
        hint = ": add the jars of its file system with --spark spark.jars.packages=..."
        wrong = f"--data={data} cannot be written ({reason}){hint if is_unknown else ''}"
        raise SettingsError(wrong) from error
