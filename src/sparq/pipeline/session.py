"""The one Spark session of the pipeline, for any master.

The driver's JVM is started first, unless spark-submit has already done so. The JVM then reports
which options it got from spark-submit and spark-defaults.conf; the session is made with these and
with the pipeline's own options, which `session_options` lists with their reasons.

1. PySpark is loaded inside `session`, after JAVA_HOME and PYSPARK_PYTHON have been set.
2. A wrong master, file system or option is a SettingsError within seconds, before a query starts.
   Any other reason why Spark does not start is a SessionError.
3. PySpark installs a handler for SIGINT: install your own after `session` has returned.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sparq.pipeline import java
from sparq.pipeline import session_options as options
from sparq.pipeline.masters import check_master
from sparq.pipeline.settings import Settings, SettingsError
from sparq.program.mistakes import Mistake

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOOKING: Final[Mapping[str, str]] = {
    # By default each of these tries for minutes before it gives up.
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "0",
    "ipc.client.connect.timeout": "3000",
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.connection.establish.timeout": "3000",
}
"""Hadoop options for the check of the data's file system, unless the user has set them."""

EXECUTORS_SECONDS: Final = 15.0
"""The maximum time to wait for the executors of a cluster before their cores are counted."""

SETTLED_SECONDS: Final = 1.0
"""The cores are counted once no executor has joined for this time."""

POLL_SECONDS: Final = 0.1
PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
NO_PYTHON: Final = "sparq-registers-its-data-source"
"""A program that does not exist. The JVM would start the driver's Python to look for data sources,
which takes two seconds; if there is no such program, it skips this step."""

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
    was_running, found = _jvm_for(settings)
    sentence = options.other_master(settings, found)
    if was_running:
        sentence = sentence or options.too_late(settings, found)
    if sentence:
        raise SettingsError(sentence)
    wanted = options.of_session(settings, found)
    choose_python({**found, **wanted})
    spark = _created(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    register_nsq(spark)
    try:
        _check_data(spark, settings.data)
    except SettingsError:
        spark.stop()
        raise
    if options.SHUFFLE_PARTITIONS not in {**found, **wanted}:
        spark.conf.set(options.SHUFFLE_PARTITIONS, str(_cores(spark)))
    return spark


def _jvm_for(settings: Settings) -> tuple[bool, dict[str, str]]:
    """Find the driver's JVM or start it; returns whether it was running, and its options.

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
            java.ensure_java()
        except java.JavaNotFoundError as error:
            raise SessionError(str(error)) from error
        heap = java.default_heap(java.machine_bytes())
        os.environ.update(options.variables(launch, os.environ, heap))
        choose_python(launch)
        os.environ[DRIVER_PYTHON] = NO_PYTHON

    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - needs Java's place first

    was_running = is_submitted or SparkContext._jvm is not None
    if not was_running:
        _start_jvm(SparkConf(loadDefaults=False).setAll(list(launch.items())), settings)
    else:
        SparkContext._ensure_initialized()
    return was_running, dict(SparkConf().getAll())


def _start_jvm(conf: SparkConf, settings: Settings) -> None:
    """Start the driver's JVM, which gets a folder of its own for temporary files.

    Raises:
        SessionError: it ends at once.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - needs Java's place first
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads PySpark

    folder = java.new_folder()
    before = os.environ.get(java.VARIABLE, "")
    os.environ[java.VARIABLE] = java.options_with(folder, before)
    try:
        # PySpark's only way to start a JVM without a session, after which options are fixed.
        SparkContext._ensure_initialized(conf=conf)
    except (OSError, PySparkException) as error:
        shutil.rmtree(folder, ignore_errors=True)
        given = [key for key, _ in settings.spark if key in options.AT_START]
        blame = f", and check --spark {' and '.join(given)}" if given else ""
        raise SessionError(
            f"Spark's JVM ended during start-up: see its messages above{blame}"
        ) from error
    finally:
        os.environ[java.VARIABLE] = before  # Spark ignores an empty value
    # Java deletes registered files in reverse order: the folder comes last, and is empty by then.
    getattr(SparkContext._jvm, "java.io.File")(str(folder)).deleteOnExit()


def use_this_python() -> None:
    """Set PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON and, if needed, PATH for a session made later.

    Spark runs its workers with the program that PYSPARK_PYTHON names, by default the system's
    python3, which has neither sparq nor Arrow. Spark starts it directly, without a shell, so the
    full path works whatever characters it contains, also on another machine that has the same
    folder.

    Before the driver looks for data sources, it asks a shell whether the program that
    PYSPARK_DRIVER_PYTHON names exists: `sh -c "command -v <program>"`, without quotes. A path that
    a shell would split, such as one with a space, is never found this way, and the format `nsq`
    would be unknown. For such a path, PYSPARK_DRIVER_PYTHON gets only the program's name, and its
    folder comes first on the PATH.
    """
    program = os.environ[PYTHON] = sys.executable
    if shlex.quote(program) != program:
        folder, program = os.path.split(program)
        os.environ["PATH"] = os.pathsep.join((folder, os.environ.get("PATH", os.defpath)))
    os.environ[DRIVER_PYTHON] = program


def choose_python(given: Mapping[str, str]) -> None:
    """Set the Python interpreter of the driver and of Spark's workers.

    Both use this process's interpreter. On a cluster, the option spark.pyspark.python or the
    variable PYSPARK_PYTHON may name another one for the workers.

    Args:
        given: the options of Spark that are set so far.
    """
    workers = given.get(options.WORKERS_PYTHON) or os.environ.get(PYTHON, "")
    use_this_python()
    if workers and not options.is_local(given.get(options.MASTER, "")):
        os.environ[PYTHON] = workers


def _created(wanted: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError  # noqa: PLC0415 - only with PySpark
    from pyspark import SparkContext  # noqa: PLC0415 - loads PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads PySpark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loads PySpark

    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    # No stack trace in the log: the text of SessionError has the reason.
    log_level(SparkContext._jvm, "org.apache.spark.SparkContext", "OFF")
    try:
        spark: SparkSession = builder.getOrCreate()
        # Spark reads the options of SQL only now.
        spark._jsparkSession.sessionState()
    except (Py4JError, PySparkException, OSError) as error:
        raise SessionError(f"Spark does not start: {java_reason(error)}") from error
    return spark


def java_reason(error: Exception) -> str:
    """The first line of the root cause: the innermost Java exception, or else the Python error."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and thrown.getCause() is not None:
        thrown = thrown.getCause()
    text = str(thrown.toString()) if thrown is not None else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]


def log_level(jvm: Any, name: str, level: str) -> None:
    """Set the level of a logger in the JVM, such as OFF or ERROR."""
    log4j = "org.apache.logging.log4j"
    configurator = getattr(jvm, f"{log4j}.core.config.Configurator")
    configurator.setLevel(name, getattr(getattr(jvm, f"{log4j}.Level"), level))


def prepare_for_queries(spark: SparkSession) -> None:
    """Set the options of the pipeline's own queries, except those that the user has set."""
    given = dict(spark.sparkContext.getConf().getAll())
    for key, value in options.OF_QUERIES.items():
        if key not in given:
            spark.conf.set(key, value)


def register_nsq(spark: SparkSession) -> None:
    """Register the format `nsq` in a session, which does not look for it itself (`NO_PYTHON`).

    Register it again for each query that runs at the same time as others. Queries that share one
    registration share a Java map of environment variables. Spark changes this map while it plans a
    query. Sometimes a task of another query was being serialized at that moment, and then no
    executor could read the task.
    """
    from sparq.spark.data_source import NsqDataSource  # noqa: PLC0415 - it loads PySpark

    spark.dataSource.register(NsqDataSource)


def _check_data(spark: SparkSession, data: str) -> None:
    """Check that Spark has a file system for the data, and can write an empty file there.

    Raises:
        SettingsError: Spark has no file system for the data, its default file system for a path is
            not the local disk, or the file cannot be written.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - only with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads PySpark

    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    path_class: Any = getattr(spark._jvm, "org.apache.hadoop.fs.Path")
    path = path_class(data)
    given = dict(spark.sparkContext.getConf().getAll())
    for key, value in LOOKING.items():
        if f"spark.hadoop.{key}" not in given:
            hadoop.set(key, value)
    try:
        # Not the file system that queries share: this one gives up sooner.
        file_system: Any = getattr(spark._jvm, "org.apache.hadoop.fs.FileSystem")
        files = file_system.newInstance(path.toUri(), hadoop)
        address = str(files.getUri().toString())
    except (Py4JJavaError, PySparkException) as error:
        reason = java_reason(error)
        if "UnknownHost" in reason:
            raise SettingsError(f"--data={data} cannot be reached ({reason})") from error
        raise SettingsError(
            f"--data={data}: Spark has no file system for it ({reason}): add its jars with"
            " --spark spark.jars.packages=..., its options with --spark spark.hadoop.fs...=..."
        ) from error
    if data.startswith("/") and not address.startswith("file:"):
        raise SettingsError(
            f"--data={data} has no scheme, and Spark's default file system is {address}: write"
            f" file://{data} or {address.rstrip('/')}{data}"
        )
    try:
        files.mkdirs(path)
        probe = path_class(path, f"_probe-{uuid4()}")
        files.create(probe).close()
        files.delete(probe, False)
    except (Py4JJavaError, PySparkException) as error:
        raise SettingsError(f"--data={data} cannot be written ({java_reason(error)})") from error
    finally:
        files.close()


def _cores(spark: SparkSession) -> int:
    """The number of tasks that can run at once.

    The executors of a cluster join one by one. A stateful query keeps the number of partitions of
    its first start, so it is worth waiting until no executor has joined for a second.
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
