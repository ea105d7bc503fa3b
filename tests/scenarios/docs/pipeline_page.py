"""docs/pipeline.md: its blocks of code, and how its programs are run.

1. A block is found by its heading, its language and its number under that heading.
2. A program runs as a separate process in a separate folder, as a reader would run it; only its
   addresses are changed.
3. Programs need Java, and Spark's workers need this interpreter: `environment` has both.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python
from tests.support.run_program import run_program
from tests.support.spark_session import JAVA_OPTIONS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
PROGRAM_SECONDS = 240.0
CONNECT = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}
"""What Spark Connect needs: packages by the modules they contain."""

PIPELINES = {**CONNECT, "yaml": "PyYAML"}
"""What spark-pipelines needs: packages by the modules they contain."""

SPARK_VARIABLES = re.compile(r"SPARK_|PYSPARK_")
"""Variables that another Spark session of this process may have set for its own children."""


def sections() -> dict[str, str]:
    """The text under each second-level heading."""
    parts = re.split(r"^## (.*)$", TEXT, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks(title: str, language: str) -> list[str]:
    """The blocks of a language under a heading; "": those without a language, such as outputs."""
    found = BLOCK.finditer(sections()[title])
    return [textwrap.dedent(block[3]) for block in found if block[2] == language]


def titles(language: str) -> list[str]:
    """The heading of each block of a language."""
    return [title for title in sections() for _ in blocks(title, language)]


def command_lines(program: str) -> list[str]:
    """The command lines of a program, without the prompt."""
    lines = re.findall(r"^ *\$ (.*)$", TEXT, re.M)
    return [line for line in lines if line.split()[0] == program]


def with_addresses(text: str, addresses: Mapping[str, str]) -> str:
    """The text with addresses replaced; each must occur in it."""
    for written, real in addresses.items():
        assert written in text
        text = text.replace(written, real)
    return text


def spark_home() -> str:
    """The folder of PySpark, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent)


def environment() -> dict[str, str]:
    """The environment of a process that starts Spark: its Java, its Python, its programs.

    Spark's scripts do not find their folder if its path has a space, unless SPARK_HOME is set.
    """
    ensure_java()
    use_this_python()
    kept = {name: value for name, value in os.environ.items() if not SPARK_VARIABLES.match(name)}
    programs = os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"]))
    return {
        **kept,
        "PATH": programs,
        "SPARK_HOME": spark_home(),
        "PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"],
        "PYSPARK_DRIVER_PYTHON": os.environ["PYSPARK_DRIVER_PYTHON"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DRIVER_MEMORY": "1g",
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
    }


def run(text: str, folder: Path) -> str:
    """Run a program in a folder; returns its output.

    Raises:
        AssertionError: its exit status was not 0; the text is the end of its stderr.
    """
    (folder / "program.py").write_text(text, encoding="utf-8")
    program = [sys.executable, "program.py"]
    ran = run_program(program, cwd=folder, env=environment(), seconds=PROGRAM_SECONDS)
    assert 0 == ran.returncode, ran.stderr[-4000:]
    return ran.stdout


def missing_packages(packages: Mapping[str, str]) -> str:
    """The names of packages that are not installed, separated by commas."""
    return ", ".join(name for module, name in packages.items() if not _is_there(module))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False
