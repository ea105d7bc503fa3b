"""The driver's JVM: its temporary files, its options, and the size of its heap.

Temporary files are deleted when the JVM ends, or at the next start if it was killed. The options
are checked by running Java before Spark's JVM starts.
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

from sparq.pipeline.jvm import (
    OPTION,
    PREFIX,
    check_java_options,
    default_heap,
    machine_bytes,
    new_folder,
    options_with,
)
from sparq.pipeline.settings import SettingsError
from sparq.program.mistakes import shown
from sparq.spark.java import ensure_java
from tests.support.waiting import wait_for

GIB = 1 << 30

EXTRA = "spark.driver.extraJavaOptions"

HOLDER = """
import sys
from sparq.pipeline.jvm import new_folder
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


@pytest.fixture(scope="module")
def java() -> str:
    """The path of Java's program."""
    before = os.environ.get("JAVA_HOME")
    try:
        return ensure_java()
    finally:
        os.environ.pop("JAVA_HOME", None)
        if before is not None:
            os.environ["JAVA_HOME"] = before


@pytest.mark.parametrize(
    "options",
    [
        "",
        " ",
        "-Dkey=value -Dother='two words' -XX:+UseSerialGC -Xss4m",
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+NoSuchFlag",
        "-javaagent:/no/such.jar=7071 -agentlib:jdwp=transport=dt_socket,server=y,suspend=y",
    ],
)
def test_valid_java_options_pass(java: str, options: str) -> None:
    """Valid options pass; agents are not loaded in the check, since they may wait."""
    check_java_options(java, {EXTRA: options, "spark.driver.memory": "512m"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-no-such-flag", "(Unrecognized option: -no-such-flag)"),
        ("-Da=b -XX:+NoSuchFlag", "(Unrecognized VM option 'NoSuchFlag'"),
        ("stray", "(Error: Could not find or load main class stray"),
        ("-version", "Java does not start with it (openjdk"),
        ("-Da='b", "a quotation mark is not closed"),
        ("-Xmx1g", "the maximum heap has its own flag: --driver-memory"),
    ],
)
def test_an_invalid_java_option_is_one_sentence(java: str, options: str, message: str) -> None:
    """The one-sentence error has Spark's option, its value, and Java's message."""
    with pytest.raises(SettingsError) as raised:
        check_java_options(java, {EXTRA: options})

    assert str(raised.value).startswith(f"--spark {EXTRA}={shown(options)}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_heap_that_java_cannot_reserve_is_an_error(java: str) -> None:
    """A heap that Java cannot reserve is an error that names its flag."""
    with pytest.raises(SettingsError, match=r"--driver-memory=1000000g: Java does not start"):
        check_java_options(java, {"spark.driver.memory": "1000000g"})


def test_a_missing_or_hanging_java_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Java hangs or is missing, the check passes: Spark's own start will report it."""
    monkeypatch.setattr("sparq.pipeline.jvm.LIMIT_SECONDS", 0.2)
    hanging = tmp_path / "java"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    hanging.chmod(0o755)

    check_java_options(str(hanging), {EXTRA: "-Da=b"})
    check_java_options(str(tmp_path / "none"), {EXTRA: "-Da=b"})


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
