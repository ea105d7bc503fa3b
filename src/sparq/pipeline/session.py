"""The one Spark session of the pipeline, for any master.

The driver's JVM is started first, unless spark-submit has already done so. The JVM tells which
options it has from spark-submit and spark-defaults.conf; then the session is made with these and
with the pipeline's own options, which `session_options` lists with their reasons.

1. PySpark is loaded inside `session`, after JAVA_HOME and PYSPARK_PYTHON have been set.
2. A wrong master, file system or option is a SettingsError within seconds, before a query starts.
   Any other reason why Spark does not start is a SessionError.
3. PySpark installs a handler for SIGINT: install your own after `session` has returned.
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
"""The time that a standalone master has to accept a connection."""

EXECUTORS_SECONDS: Final = 15.0
"""The maximum time to wait for the executors of a cluster before their cores are counted."""

SETTLED_SECONDS: Final = 1.0
"""The cores are counted when no executor has joined for this time."""

POLL_SECONDS: Final = 0.1
PYTHON: Final = "PYSPARK_PYTHON"
GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this variable for the Python program that it starts."""

CONNECT: Final = ("SPARK_REMOTE", "SPARK_API_MODE")
"""Variables that turn every session into one of Spark Connect."""


class SessionError(Mistake):
    """Spark does not start; the text is one sentence."""


def session(settings: Settings) -> SparkSession:
    """Make the session, with the state store, time zone and memory that the queries need.

    Raises:
        SettingsError: the master does not answer, Spark has no file system for the data, or an
            option comes too late to have an effect.
        SessionError: Spark does not start.
    """
    jvm = _jvm_for(settings)
    found = jvm.found
    sentence = options.other_master(settings, found)
    if jvm.was_running:
        sentence = sentence or options.too_late(settings, found)
    if sentence:
        raise SettingsError(sentence)
    wanted = options.of_session(settings, found)
    choose_python({**found, **wanted})
    spark = _created(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    _register_nsq(spark)
    try:
        _check_data(spark, settings.data)
    except SettingsError:
        spark.stop()
        raise
    if options.SHUFFLE_PARTITIONS not in {**found, **wanted}:
        spark.conf.set(options.SHUFFLE_PARTITIONS, str(_cores(spark)))
    return spark


class _Jvm(NamedTuple):
    """The driver's JVM: whether it was already running, and the options found there."""

    was_running: bool
    found: dict[str, str]


def _jvm_for(settings: Settings) -> _Jvm:
    """Find the driver's JVM, or start it.

    Raises:
        SettingsError: the master does not answer, or Spark Connect is asked for.
        SessionError: the JVM does not start.
    """
    for name in CONNECT:
        if os.environ.get(name, "classic") != "classic":
            raise SettingsError(
                f"{name} is set: unset it, since the pipeline cannot use Spark Connect"
            )
    launch = options.at_launch(settings, os.environ)
    is_submitted = GATEWAY in os.environ
    if not is_submitted:
        check_master(launch[options.MASTER])
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
        # PySpark's only way to start a JVM without a session, after which options are fixed.
        SparkContext._ensure_initialized(conf=conf)
    except (OSError, PySparkException) as error:
        raise SessionError(
            "Spark's JVM ended while it started: see its own messages above"
        ) from error
    return _Jvm(was_running, dict(SparkConf().getAll()))


def choose_python(given: Mapping[str, str]) -> None:
    """Set the Python interpreter of the driver and of Spark's workers.

    Both use this process's interpreter. On a cluster, the option spark.pyspark.python or the
    variable PYSPARK_PYTHON may name another one for the workers.

    Args:
        given: the options of Spark that are known so far.
    """
    workers = given.get(options.WORKERS_PYTHON) or os.environ.get(PYTHON, "")
    use_this_python()
    if workers and not options.is_local(given.get(options.MASTER, "")):
        os.environ[PYTHON] = workers


def check_master(master: str) -> None:
    """Check that a standalone master accepts connections, at one of its addresses at least.

    Spark itself would try for a minute before it gives up.

    Raises:
        SettingsError: no address accepts a connection.
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


def _register_nsq(spark: SparkSession) -> None:
    """Make the format `nsq` known to this session.

    Spark would find it by itself, but starts a Python process for that, which loads every package
    named `pyspark_*`.
    """
    from sparq.spark.data_source import NsqDataSource  # noqa: PLC0415 - it loads PySpark

    spark.dataSource.register(NsqDataSource)


def _reason(error: Exception) -> str:
    """The first line of the Java exception, or else of the Python one."""
    thrown: Any = getattr(error, "java_exception", None)
    text = str(thrown.toString()) if thrown is not None else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]


def _check_data(spark: SparkSession, data: str) -> None:
    """Check that Spark has a file system for the data; nothing is read or written.

    Raises:
        SettingsError: Spark has none, or its default for a path is not the local disk.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - only with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads PySpark

    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    path: Any = spark._jvm.org.apache.hadoop.fs.Path(data)
    try:
        address = str(path.getFileSystem(hadoop).getUri().toString())
    except (Py4JJavaError, PySparkException) as error:
        raise SettingsError(
            f"--data={data}: Spark has no file system for it ({_reason(error)}): add its jars by"
            " --spark spark.jars.packages=..., its options by --spark spark.hadoop.fs...=..."
        ) from error
    if data.startswith("/") and not address.startswith("file:"):
        raise SettingsError(
            f"--data={data} has no scheme, and Spark's default file system is {address}: write"
            f" file://{data} or {address.rstrip('/')}{data}"
        )


def _cores(spark: SparkSession) -> int:
    """The number of tasks that can run at once.

    The executors of a cluster join one by one. A stateful query keeps the number of partitions of
    its first start, so it is worth a second to wait until no more executors join.
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
