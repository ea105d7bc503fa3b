"""A look at Java's options before Spark's JVM starts. Spark is not loaded.

Spark starts every JVM with -XX:+IgnoreUnrecognizedVMOptions, so Java says nothing of an option
that it does not know; with others, such as -version, it ends at once with status 0, and PySpark
waits for it without end. So Java is started with these options alone, for a class that is not
there: it looks for the class only if it takes all of them. That costs 0.1 s, and only where
options are given.

1. Options of executors are not looked at: their machines may have another Java.
2. Whoever wants unknown options ignored adds -XX:+IgnoreUnrecognizedVMOptions to them.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from typing import Final

from sparq.pipeline.session_options import DRIVER_MEMORY, FLAG_OF
from sparq.pipeline.settings import SettingsError
from sparq.program.mistakes import shown

JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
LIMIT_SECONDS: Final = 5.0
NO_CLASS: Final = "sparq.looks.at.options"
"""A class that is not there; Java's message has its name in every language."""

AGENTS: Final = ("-agentlib:", "-agentpath:", "-javaagent:", "-Xrunjdwp:")
"""These run a program, which may wait or take a port."""

NOISE: Final = ("Picked up ", " warning: ", "Error occurred during initialization")


def check_java_options(java: str, launch: Mapping[str, str]) -> None:
    """Check that Java starts with the options of the driver's JVM.

    Args:
        java: Java's program.
        launch: the options of Spark that the JVM is started with.
    Raises:
        SettingsError: Java does not, or a quotation mark is not closed.
    """
    memory = launch.get(DRIVER_MEMORY)
    if memory:
        _check(java, [f"-Xmx{memory}"], f"--{FLAG_OF[DRIVER_MEMORY]}={memory}")
    for key in JAVA_OPTIONS:
        text = launch.get(key, "")
        if not text.strip():
            continue
        named = f"--spark {key}={shown(text)}"
        try:
            words = shlex.split(text)
        except ValueError:
            raise SettingsError(f"{named}: a quotation mark is not closed") from None
        if any(word.startswith("-Xmx") for word in words):
            raise SettingsError(f"{named}: the maximum heap has its own flag: --driver-memory")
        _check(java, [word for word in words if not word.startswith(AGENTS)], named)


def _check(java: str, words: list[str], named: str) -> None:
    try:
        ran = subprocess.run(  # noqa: S603 - the Java that Spark runs with the same words, no shell
            [java, *words, NO_CLASS],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # Spark's own start tells
    if NO_CLASS in ran.stderr:
        return
    lines = [line.strip() for line in f"{ran.stderr}\n{ran.stdout}".splitlines()]
    told = [line for line in lines if line and not any(noise in line for noise in NOISE)]
    said = f"it says: {told[0]}" if told else f"it ends with status {ran.returncode}"
    raise SettingsError(f"{named}: Java does not start with it ({said})")
