"""The one Spark session of the pipeline, for any master.

The driver's JVM is started first, or found running where spark-submit has started it. Then it is
asked what it knows (spark-submit's options, spark-defaults.conf, the master), and what the session
needs beside that is set; `session_options` says what that is, and why.

1. Only `session` loads PySpark, after JAVA_HOME and PYSPARK_PYTHON are right.
2. What is wrong with the master, the file system or an option is a SettingsError within seconds,
   before a query starts. What else keeps Spark from starting is a SessionError.
3. PySpark takes over SIGINT: who handles signals does so after `session`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparq.pipeline import session_options as options
from sparq.pipeline.memory import default_heap, machine_bytes
from sparq.pipeline.settings import Settings, SettingsError
from sparq.pipeline.workers_python import use_this_python
from sparq.program.mistakes import Mistake
from sparq.spark.java import JavaNotFoundError, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_SECONDS: Final = 3.0
"""How long a standalone master may take to accept a connection."""

EXECUTORS_SECONDS: Final = 15.0
"""How long executors of a cluster are waited for, to count their cores at a first start."""

SETTLED_SECONDS: Final = 1.0
"""No new executor for so long: those that are there are counted."""

POLL_SECONDS: Final = 0.1
PYTHON: Final = "PYSPARK_PYTHON"
CONNECT: Final = ("SPARK_REMOTE", "SPARK_API_MODE")
"""Variables that turn every session into one of Spark Connect."""


class SessionError(Mistake):
    """Spark does not start; the text is one sentence."""


def session(settings: Settings) -> SparkSession:
    """The session, with the state store, time zone and memory that the queries need.

    Raises:
        SettingsError: the master does not answer, Spark has no file system for the data, or an
            option cannot be followed.
        SessionError: Spark does not start.
    """
    jvm = _jvm_for(settings)
    found = jvm.options
    sentence = options.other_master(settings, found)
    if jvm.was_running:
        sentence = sentence or options.too_late(settings, found)
    if sentence:
        raise SettingsError(sentence)
    wanted = options.of_session(settings, found)
    choose_python({**found, **wanted})
    spark = _created(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        _check_data(spark, settings.data)
    except SettingsError:
        spark.stop()
        raise
    if options.SHUFFLE_PARTITIONS not in {**found, **wanted}:
        spark.conf.set(options.SHUFFLE_PARTITIONS, str(_cores(spark)))
    return spark


class _Jvm(NamedTuple):
    """The driver's JVM: whether it ran before it was asked for, and the options that it has."""

    was_running: bool
    options: dict[str, str]


def _jvm_for(settings: Settings) -> _Jvm:
    """Find the driver's JVM, or start it.

    Raises:
        SettingsError: the master does not answer, or Spark Connect is asked for.
        SessionError: the JVM does not start.
    """
    for name in CONNECT:
        if os.environ.get(name, "classic") != "classic":
            raise SettingsError(f"{name} is set: unset it, the pipeline needs a JVM of its own")
    launch = options.at_launch(settings, os.environ)
    is_submitted = options.GATEWAY in os.environ
    if not is_submitted:
        check_master(launch.get(options.MASTER, ""))
        try:
            ensure_java()
        except JavaNotFoundError as error:
            raise SessionError(str(error)) from error
        heap = default_heap(machine_bytes())
        os.environ.update(options.variables(launch, os.environ, heap))
        choose_python(launch)

    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - needs Java's place first
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads PySpark

    was_running = is_submitted or SparkContext._jvm is not None
    conf = SparkConf(loadDefaults=False).setAll(list(launch.items()))
    try:
        # There is no other way to a JVM without a session, which would fix the options.
        SparkContext._ensure_initialized(conf=conf)
    except (OSError, PySparkException) as error:
        raise SessionError(
            "Spark's JVM ended at its start: what it wrote stands above, if it wrote anything"
        ) from error
    return _Jvm(was_running, dict(SparkConf().getAll()))


def choose_python(given: Mapping[str, str]) -> None:
    """Set which interpreter runs in the driver, and which in Spark's workers.

    It is this one; but on a cluster it may lie elsewhere, and then the option spark.pyspark.python
    or the variable PYSPARK_PYTHON says where.

    Args:
        given: Spark's options, as far as they are known.
    """
    workers = given.get(options.WORKERS_PYTHON) or os.environ.get(PYTHON, "")
    use_this_python()
    if workers and not options.is_local(given.get(options.MASTER, "")):
        os.environ[PYTHON] = workers


def check_master(master: str) -> None:
    """Look whether one of the addresses of a standalone master accepts connections.

    Spark itself tries for a minute, and then ends the application without a reason.

    Raises:
        SettingsError: none does.
    """
    if not master.startswith("spark://"):
        return
    reason = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise SettingsError(f"--master={master}: nothing answers there ({reason})")


def _created(wanted: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError  # noqa: PLC0415 - only with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads PySpark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loads PySpark

    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        raise SessionError(f"Spark does not start: {_reason(error)}") from error
    return spark


def _reason(error: Exception) -> str:
    """The first line of what Java says, or else of what Python says."""
    thrown: Any = getattr(error, "java_exception", None)
    text = str(thrown.toString()) if thrown is not None else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]


def _check_data(spark: SparkSession, data: str) -> None:
    """Look whether Spark has a file system for the data's address; nothing is read or written.

    Raises:
        SettingsError: it has none, or a path would not be on the local disk.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - only with PySpark

    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    path: Any = spark._jvm.org.apache.hadoop.fs.Path(data)
    try:
        address = str(path.getFileSystem(hadoop).getUri().toString())
    except Py4JJavaError as error:
        raise SettingsError(
            f"--data={data}: Spark has no file system for it ({_reason(error)}): add its jars by"
            " --spark spark.jars.packages=..., its options by --spark spark.hadoop.fs...=..."
        ) from error
    if data.startswith("/") and not address.startswith("file:"):
        raise SettingsError(
            f"--data={data} is a path, and Spark takes paths for those of {address}: write"
            f" file://{data} or {address.rstrip('/')}{data}"
        )


def _cores(spark: SparkSession) -> int:
    """How many tasks run at once.

    Executors of a cluster come one by one. The number that a stateful query starts with is kept in
    its checkpoint, so it is worth a second to wait until no more come.
    """
    context = spark.sparkContext
    if context.master == "local" or context.master.startswith("local["):
        return int(context.defaultParallelism)
    tracker = context.statusTracker()
    deadline = time.monotonic() + EXECUTORS_SECONDS
    count, since = 0, time.monotonic()
    while (now := time.monotonic()) < deadline:
        executors = len(tracker.getExecutorInfos()) - 1  # the driver is one of them
        if executors != count:
            count, since = executors, now
        elif count and now - since >= SETTLED_SECONDS:
            break
        time.sleep(POLL_SECONDS)
    return int(context.defaultParallelism)
