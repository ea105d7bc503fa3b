"""Spark options of the pipeline's session, with their reasons. Spark is not loaded.

Precedence, strongest first: REQUIRED; settings and `--spark`; spark-submit and spark-defaults.conf;
the pipeline's own defaults (DEFAULTS, ON_LOOPBACK, ON_STANDALONE, ON_A_LOCAL_DISK).

1. `--spark` refuses an option that has its own flag, or that must have another value.
2. Some options take effect only while the JVM starts. If it is already running, as after
   spark-submit, they are refused, since Spark would accept and then ignore them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sparq.pipeline.settings import Settings

APPLICATION_NAME: Final = "sparq clicks"
LOCAL_MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"

NAME: Final = "spark.app.name"
MASTER: Final = "spark.master"
DRIVER_MEMORY: Final = "spark.driver.memory"
EXECUTOR_MEMORY: Final = "spark.executor.memory"
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
WORKERS_PYTHON: Final = "spark.pyspark.python"

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
FILE_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class RequiredValue(NamedTuple):
    """The only value that an option may have, and the reason."""

    value: str
    why: str


REQUIRED: Final[Mapping[str, RequiredValue]] = {
    "spark.sql.streaming.stateStore.providerClass": RequiredValue(
        ROCKSDB, "transformWithState works only with the RocksDB state store"
    ),
    # A stateful task may run twice: speculation runs a second attempt at the same time, a retry
    # runs it later, and a driver that was presumed dead may still be running it. In Spark's default
    # format, 1, all attempts write the same file of the state. In format 2 each attempt has its own
    # file, and the batch's commit names the one that counts; Spark's real-time mode needs it for
    # the same reason. The price: each file of the state has an extra checksum file, so a batch's
    # commit of the state took 64 ms instead of 33 (metrics) and 17 instead of 10 (spam_analysis),
    # of batches of 1 to 4 s on two busy cores. The state cannot be read as a feed of changes
    # (readChangeFeed), and a session of another program that reads it needs this option, too.
    STATE_FORMAT: RequiredValue("2", "a checkpoint keeps the state format that it started with"),
    "spark.sql.session.timeZone": RequiredValue(
        "UTC", "minutes and the hours of the archive are in UTC"
    ),
}
"""Options with only one allowed value; they override a site's spark-defaults.conf, too."""

FLAG_OF: Final[Mapping[str, str]] = {
    MASTER: "master",
    DRIVER_MEMORY: "driver-memory",
    EXECUTOR_MEMORY: "executor-memory",
    SHUFFLE_PARTITIONS: "shuffle-partitions",
}
"""Options that have their own flag and can be set only by it."""

REFUSED: Final[Mapping[str, str]] = {
    "spark.submit.deployMode": "use spark-submit --deploy-mode instead",
    "spark.remote": "the pipeline cannot use Spark Connect",
    "spark.api.mode": "the pipeline cannot use Spark Connect",
}

AT_START: Final = (
    DRIVER_MEMORY,
    "spark.driver.extraJavaOptions",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.jars.packages",
    "spark.jars.repositories",
    "spark.jars.ivySettings",
)
"""Options that take effect only while the driver's JVM starts."""

ENDING_JAVA: Final = frozenset(
    (
        *("-version", "--version", "-help", "--help", "-h", "-?", "-X", "--help-extra"),
        *("--list-modules", "--dry-run"),
    )
)
"""Words of the driver's Java options with which Java ends at once; PySpark would wait forever."""

ALWAYS: Final[Mapping[str, str]] = {
    # PySpark's launcher turns progress bars on, and they go to stderr, which is a log file here.
    "spark.ui.showConsoleProgress": "false"
}
"""Defaults that override the JVM's options, but not `--spark`."""

LAUNCHERS_NAMES: Final = ("pyspark-shell", "app.py")
"""Names that Spark's launcher gives to a program started without `--name`."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Three queries share the executors. Each runs in a pool of its own (the local property
    # spark.scheduler.pool of the thread that starts it), so that a long job of one query, such as a
    # merge of the archive's files, leaves task slots for the others. FIFO would make them wait.
    "spark.scheduler.mode": "FAIR",
    # By default the UI keeps 1,000 jobs, stages and plans and 100,000 tasks in the driver's heap:
    # the driver would grow with every batch until three queries have reached these numbers.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "5000",
    "spark.sql.ui.retainedExecutions": "100",
    # Workers are forked from a process that has loaded what all of them need.
    "spark.python.daemon.module": "sparq.pipeline.workers_daemon",
    # Times in Spark's default Parquet type do not tell other readers their time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch uploads the changes of the state, not a snapshot of RocksDB.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # By default `stop()` waits forever for a query that hangs.
    "spark.sql.streaming.stopTimeout": "60s",
    # An archive batch has clicks of a few hours. With a file open for each hour, Spark need not
    # sort the batch by date and hour first.
    "spark.sql.maxConcurrentOutputFileWriters": "48",
    # Small tables move between the JVM and the driver's Python as Arrow, not row by row.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A Python worker gets 10,000 messages at a time (4,000 to 20,000 cost the same per row). A
    # message may be 1 MiB large, so the bytes need a limit, too: the default is 2 GiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}

OF_QUERIES: Final[Mapping[str, str]] = {
    # Adaptive execution plans every stage again and sizes partitions by measured data: a repeated
    # batch might be split differently. Spark turns it off for stateful queries anyway.
    "spark.sql.adaptive.enabled": "false",
    # Arrow and numpy do the work. Compiling Java for the few expressions around them delays the
    # first batch of each query, and made later batches no faster when measured alone.
    "spark.sql.codegen.wholeStage": "false",
}
"""Defaults of the pipeline's three queries; other programs with this session keep Spark's."""

ON_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}
"""For local masters. On a cluster the executors connect to the driver from other machines."""

ON_STANDALONE: Final[Mapping[str, str]] = {
    # Java unpacks native libraries (RocksDB's has 15 MB) into its temporary folder, and leaves them
    # there if it is killed. An executor's own working folder is deleted with the application. YARN
    # does the same by itself.
    "spark.executor.defaultJavaOptions": "-Djava.io.tmpdir=."
}
"""For spark:// masters."""

ON_A_LOCAL_DISK: Final[Mapping[str, str]] = {
    # Spark's default, Hadoop's FileContext, costs a third of a small batch's time on a local disk.
    # This manager relies on atomic renames, which S3A lacks; elsewhere Spark's default is kept.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER
}


def is_local(master: str) -> bool:
    """Whether the executors run on this machine only."""
    return master.startswith("local")


def conflict(key: str, value: str) -> str:
    """The reason why `--spark` refuses an option; empty if it accepts it."""
    if key in FLAG_OF:
        return f"has its own flag: write --{FLAG_OF[key]}"
    if key in REFUSED:
        return f"is not allowed: {REFUSED[key]}"
    needed = REQUIRED.get(key)
    if needed is not None and value != needed.value:
        return f"must be {needed.value}: {needed.why}"
    if key.startswith("spark.driver.") and key.endswith("JavaOptions"):
        ending = ENDING_JAVA.intersection(value.split())
        return f"contains {min(ending)}, with which Java ends at once" if ending else ""
    return ""


def explicit(settings: Settings) -> dict[str, str]:
    """The options that the user has set, by settings or `--spark`."""
    given = {
        MASTER: settings.master,
        DRIVER_MEMORY: settings.driver_memory,
        EXECUTOR_MEMORY: settings.executor_memory,
        SHUFFLE_PARTITIONS: str(settings.shuffle_partitions or ""),
    }
    return {**dict(settings.spark), **{key: value for key, value in given.items() if value}}


def at_launch(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """The options that the JVM is started with; always includes spark.master."""
    return {MASTER: named_master(environment) or LOCAL_MASTER, **explicit(settings)}


def named_master(environment: Mapping[str, str]) -> str:
    """The master in environment variables or spark-defaults.conf, where Spark's launcher looks."""
    arguments = environment.get("PYSPARK_SUBMIT_ARGS", "")
    home = environment.get("SPARK_HOME", "")
    folder = environment.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else "")
    found = re.search(r"(?:--master[ =]|\bspark\.master=)\s*[\"']?([^\s\"']+)", arguments)
    found = found or re.search(
        r"^\s*spark\.master[\s=:]+(\S+)", _text(folder, "spark-defaults.conf"), re.MULTILINE
    )
    return found[1] if found else environment.get("MASTER", "")


def _text(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text(encoding="utf-8", errors="replace") if folder else ""
    except OSError:
        return ""


def variables(
    launch: Mapping[str, str], environment: Mapping[str, str], memory: str
) -> dict[str, str]:
    """Environment variables to set before the JVM starts; those already set are left out.

    Args:
        launch: the result of `at_launch`.
        environment: the variables that are already set.
        memory: the default heap of the driver, such as "4g".
    """
    # As a variable it is a default: flags and spark-defaults.conf override it.
    wanted = {"SPARK_DRIVER_MEMORY": memory}
    if is_local(launch[MASTER]):
        # The address of Spark's UI can only be set by this variable.
        wanted["SPARK_LOCAL_IP"] = LOOPBACK
    return {name: value for name, value in wanted.items() if not environment.get(name)}


def other_master(settings: Settings, found: Mapping[str, str]) -> str:
    """An error message if the JVM was started with a different master; else empty."""
    started = found.get(MASTER, "")
    if not settings.master or not started or _bare(settings.master) == _bare(started):
        return ""
    return (
        f"--master={settings.master}: Spark was started with {started}: name the master in one"
        " place only (if you use spark-submit: there)"
    )


def too_late(settings: Settings, found: Mapping[str, str]) -> str:
    """An error message if an option is too late for a JVM that already runs; else empty."""
    given = explicit(settings)
    for key in AT_START:
        if key in given and given[key] != found.get(key):
            name = f"--{FLAG_OF[key]}" if key in FLAG_OF else f"--spark {key}"
            return (
                f"{name}: Spark's JVM is already running and would ignore it: give it to"
                f" spark-submit, as --conf {key}=..."
            )
    return ""


def _bare(master: str) -> str:
    """A master without prefixes: Spark's launcher adds https to Kubernetes addresses."""
    return master.removeprefix("k8s://").removeprefix("https://")


def of_session(settings: Settings, found: Mapping[str, str]) -> dict[str, str]:
    """The options for making the session.

    Args:
        settings: the pipeline's settings.
        found: the options that the JVM has already.
    """
    given = explicit(settings)
    master = found.get(MASTER) or given.get(MASTER, LOCAL_MASTER)
    local = is_local(master)
    wanted = {**DEFAULTS, MASTER: LOCAL_MASTER}
    if master.startswith("spark://"):
        wanted |= ON_STANDALONE
    if local:
        wanted |= ON_LOOPBACK
    if local and settings.is_local:
        wanted |= ON_A_LOCAL_DISK
    kept = {key: value for key, value in wanted.items() if key not in found}
    if found.get(NAME, LAUNCHERS_NAMES[0]) in LAUNCHERS_NAMES:
        kept[NAME] = APPLICATION_NAME
    needed = {key: needed.value for key, needed in REQUIRED.items()}
    wanted = {**kept, **ALWAYS, **given, **needed}
    if MASTER in found:
        wanted.pop(MASTER, None)  # keep the launcher's spelling of it
    return wanted
