"""Which of Spark's options a session of the pipeline has, and why; nothing here loads Spark.

From the strongest: what must be so (REQUIRED), what a setting or `--spark` says, what spark-submit
or spark-defaults.conf says, sparq's own defaults (DEFAULTS, ON_LOOPBACK, ON_A_LOCAL_DISK).

1. An option that has a flag of its own, or that must be otherwise, is refused by its name.
2. Options that a JVM reads as it starts are refused where it is running already, as it is after
   spark-submit: Spark would take them without a word and never follow them.
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

GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this variable for the Python program that it starts."""

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILE_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class Needed(NamedTuple):
    """An option that has one value."""

    value: str
    why: str


REQUIRED: Final[Mapping[str, Needed]] = {
    "spark.sql.streaming.stateStore.providerClass": Needed(
        ROCKSDB, "only the RocksDB state store has what transformWithState needs"
    ),
    "spark.sql.session.timeZone": Needed(
        "UTC", "minutes, and the hours of the archive, are those of UTC"
    ),
}
"""What must be so. A site's spark-defaults.conf that says otherwise is overruled."""

FLAG_OF: Final[Mapping[str, str]] = {
    MASTER: "master",
    DRIVER_MEMORY: "driver-memory",
    EXECUTOR_MEMORY: "executor-memory",
    SHUFFLE_PARTITIONS: "shuffle-partitions",
}
"""Options that have a flag of their own, so that there is one place to look for them."""

REFUSED: Final[Mapping[str, str]] = {
    "spark.submit.deployMode": "use spark-submit --deploy-mode, which places the driver",
    "spark.remote": "the pipeline reads and writes through its own JVM, not Spark Connect",
    "spark.api.mode": "the pipeline reads and writes through its own JVM, not Spark Connect",
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
"""What only counts as the driver's JVM starts."""

ALWAYS: Final[Mapping[str, str]] = {
    # Spark's launcher sets this one for every program that it does not start itself, and then
    # writes its bars to stderr, where a supervisor keeps a log.
    "spark.ui.showConsoleProgress": "false",
}
"""What sparq sets whatever the JVM has, and only `--spark` sets otherwise."""

LAUNCHERS_NAMES: Final = ("pyspark-shell", "app.py")
"""What Spark's launcher calls a program that nobody has named."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Three queries share the executors. Whoever starts a query names a pool for it (local property
    # spark.scheduler.pool): a long job of one, as when the archive's files are merged, then leaves
    # tasks to the others. Without FAIR all of them would wait for it, first in, first out.
    "spark.scheduler.mode": "FAIR",
    # The UI keeps 1,000 jobs, stages and plans and 100,000 tasks in the driver's heap. Three
    # queries reach that after some minutes, and until then the driver grows with its batches.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "5000",
    "spark.sql.ui.retainedExecutions": "100",
    # It cuts partitions by their measured sizes, so that a batch that is run again might not have
    # the partitions that it had, and plans each stage anew. Stateful queries do without it anyway.
    "spark.sql.adaptive.enabled": "false",
    # The work is done by Arrow and numpy between Spark's exchanges. To compile Java for what is
    # left costs each query's first batches, and measured alone it gained nothing in later ones.
    "spark.sql.codegen.wholeStage": "false",
    # Only changes of the state are written in each batch, not whole snapshots of RocksDB.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # By default `stop()` waits without end for a query that does not stop.
    "spark.sql.streaming.stopTimeout": "60s",
    # A batch of the archive has clicks of a few hours: a file stays open for each of them, where
    # Spark would sort the batch by date and hour first.
    "spark.sql.maxConcurrentOutputFileWriters": "48",
    # The application's small tables, such as findings, come and go as Arrow, not row by row.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # 10,000 messages make one batch for a Python worker (4,000 to 20,000 cost the same). But a
    # message may have a MiB: without this, 10,000 such would be one buffer of 10 GiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}

ON_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}
"""For a local master, whose executors are in the driver. On a cluster they come from outside."""

ON_A_LOCAL_DISK: Final[Mapping[str, str]] = {
    # Spark's own choice, Hadoop's FileContext, takes a third of a small batch's time on a local
    # disk. This one renames, which on S3A is no single step, so Spark chooses for all the rest.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
}


def is_local(master: str) -> bool:
    """Whether the executors are processes or threads of this machine alone."""
    return master.startswith("local")


def conflict(key: str, value: str) -> str:
    """Why an option must not be given; empty if it may."""
    if key in FLAG_OF:
        return f"has a flag of its own: write --{FLAG_OF[key]}"
    if key in REFUSED:
        return f"is not for the pipeline: {REFUSED[key]}"
    needed = REQUIRED.get(key)
    if needed is not None and value != needed.value:
        return f"must be {needed.value}: {needed.why}"
    return ""


def explicit(settings: Settings) -> dict[str, str]:
    """What the user has said by settings and `--spark`."""
    given = {
        MASTER: settings.master,
        DRIVER_MEMORY: settings.driver_memory,
        EXECUTOR_MEMORY: settings.executor_memory,
        SHUFFLE_PARTITIONS: str(settings.shuffle_partitions or ""),
    }
    return {**dict(settings.spark), **{key: value for key, value in given.items() if value}}


def at_launch(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """What the JVM is started with.

    The master is among it unless something else may name one: then the JVM says which.
    """
    given = explicit(settings)
    if MASTER not in given and not names_a_master(environment):
        given[MASTER] = LOCAL_MASTER
    return given


def names_a_master(environment: Mapping[str, str]) -> bool:
    """Whether Spark's launcher has a master or finds one: in variables or spark-defaults.conf."""
    arguments = environment.get("PYSPARK_SUBMIT_ARGS", "")
    if environment.get(GATEWAY) or environment.get("MASTER"):
        return True
    if "--master" in arguments or MASTER in arguments:
        return True
    home = environment.get("SPARK_HOME", "")
    folder = environment.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else "")
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(rf"^\s*{re.escape(MASTER)}[\s=:]", text, re.MULTILINE) is not None


def variables(
    launch: Mapping[str, str], environment: Mapping[str, str], memory: str
) -> dict[str, str]:
    """Environment variables that are set before the JVM starts, where they are not set yet.

    Args:
        launch: what `at_launch` says.
        environment: the variables that there are.
        memory: the driver's heap if nothing else says how large, such as "4g".
    """
    # This variable is weaker than a flag and than spark-defaults.conf, an option would not be.
    wanted = {"SPARK_DRIVER_MEMORY": memory}
    if is_local(launch.get(MASTER, "")):
        # Spark's UI has no other way to be told where to listen.
        wanted["SPARK_LOCAL_IP"] = LOOPBACK
    return {name: value for name, value in wanted.items() if not environment.get(name)}


def other_master(settings: Settings, found: Mapping[str, str]) -> str:
    """A sentence if the JVM was started with another master than the setting's; else empty."""
    started = found.get(MASTER, "")
    if not settings.master or not started or _bare(settings.master) == _bare(started):
        return ""
    return (
        f"--master={settings.master}: Spark has been started with {started}; name the master in one"
        " place, which is spark-submit where that is used"
    )


def too_late(settings: Settings, found: Mapping[str, str]) -> str:
    """A sentence about what a JVM that runs already cannot follow any more; empty if nothing."""
    given = explicit(settings)
    for key in AT_START:
        if key in given and given[key] != found.get(key):
            name = f"--{FLAG_OF[key]}" if key in FLAG_OF else f"--spark {key}"
            return (
                f"{name}: Spark's JVM runs already and would not follow it; give it to"
                f" spark-submit, as --conf {key}=..."
            )
    return ""


def _bare(master: str) -> str:
    """A master as two spellings of it have it: Spark's launcher adds https to Kubernetes's."""
    return master.removeprefix("k8s://").removeprefix("https://")


def of_session(settings: Settings, found: Mapping[str, str]) -> dict[str, str]:
    """All that the session sets.

    Args:
        settings: what the user says.
        found: the options that the JVM has, from its start and from spark-defaults.conf.
    """
    given = explicit(settings)
    local = is_local(found.get(MASTER) or given.get(MASTER, LOCAL_MASTER))
    wanted = {**DEFAULTS, MASTER: LOCAL_MASTER}
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
        wanted.pop(MASTER, None)  # the launcher has it, and completes addresses of Kubernetes
    return wanted
