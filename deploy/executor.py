#!/opt/sparq/bin/python
"""Becomes a Spark executor: the program that Spark on Kubernetes starts in an executor's pod.

Spark gives the image one argument, `executor`, and says everything else in environment variables.
Spark's own images have a shell script for that; the package pyspark has none, hence this file. The
image has it on its PATH under the name `executor`.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
MEMORY = "SPARK_EXECUTOR_MEMORY"
CLASS_PATHS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_CLASSPATH")
JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def spark_home() -> str:
    """The folder of the installed Spark, which has its jars.

    Raises:
        LookupError: there is no Spark.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise LookupError("pyspark is not installed: pip install 'sparq-mq[spark]'")
    return str(Path(found.origin).parent)


def command(environment: Mapping[str, str], home: str) -> list[str]:
    """The executor's command line.

    Args:
        environment: the variables that Spark's driver has set for the pod.
        home: Spark's folder.

    Raises:
        LookupError: a variable is missing.
    """
    missing = [name for name in (MEMORY, *ARGUMENTS.values()) if not environment.get(name)]
    if missing:
        raise LookupError(f"{missing[0]} is not set: only Spark's driver can start an executor")
    found = {JAVA_OPTION.fullmatch(name): value for name, value in environment.items()}
    numbered = sorted((int(match[1]), value) for match, value in found.items() if match)
    classes = [environment[name] for name in CLASS_PATHS if environment.get(name)]
    memory = environment[MEMORY]
    java_home = environment.get("JAVA_HOME")
    return [
        f"{java_home}/bin/java" if java_home else "java",
        *(value for _, value in numbered),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join([*classes, f"{home}/jars/*"]),
        BACKEND,
        *(word for flag, name in ARGUMENTS.items() for word in (flag, environment[name])),
    ]


def main() -> int:
    """Become the executor; the exit status if that cannot be."""
    try:
        home = spark_home()
        words = command(os.environ, home)
    except LookupError as error:
        sys.stderr.write(f"executor: {error.args[0]}\n")
        return 1
    # Python workers of this executor look there for Spark's own Python files.
    os.environ["SPARK_HOME"] = home
    os.execvp(words[0], words)  # noqa: S606 - the pod is the executor: no shell, no parent


if __name__ == "__main__":
    sys.exit(main())
