"""The interpreter that Spark's workers run: this process's own.

Spark takes the program that PYSPARK_PYTHON names for its workers, else the system's python3, which
knows neither sparq nor Arrow. It starts that itself, with no shell, so that the whole path serves
whatever is in it, also on another machine that has the same folder.

Before the driver looks for data sources it asks a shell whether the program is there that
PYSPARK_DRIVER_PYTHON names, `sh -c "command -v <program>"`, without quotes. A path that a shell
would split, such as one with a space, is never found so, and the format `nsq` would be unknown.
There the driver's program is given by its name, and its folder comes first on the PATH.
"""

import os
import shlex
import sys


def use_this_python() -> None:
    """Set PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON and if need be PATH for a session made later."""
    program = os.environ["PYSPARK_PYTHON"] = sys.executable
    if shlex.quote(program) != program:
        folder, program = os.path.split(program)
        os.environ["PATH"] = os.pathsep.join((folder, os.environ.get("PATH", os.defpath)))
    os.environ["PYSPARK_DRIVER_PYTHON"] = program
