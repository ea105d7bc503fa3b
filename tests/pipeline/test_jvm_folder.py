"""Temporary files of the driver's JVM: they go with it, or at the next start if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.pipeline.jvm import OPTION, PREFIX, new_folder, options_with
from tests.support.waiting import wait_for

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
    """A folder for temporary files that nobody else uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def holder(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a folder, which has a file."""
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


def test_a_folder_of_a_living_process_stays(holder: tuple[subprocess.Popen[str], Path]) -> None:
    """A second start leaves it alone, with what it has."""
    process, folder = holder

    second = new_folder()

    assert process.poll() is None
    assert (folder / "library.so").exists()
    assert folder != second


def test_a_folder_of_a_killed_process_goes(
    holder: tuple[subprocess.Popen[str], Path], temporary: Path
) -> None:
    """The next start removes it; folders of other names stay."""
    process, folder = holder
    other = temporary / "other"
    other.mkdir()
    process.kill()
    process.wait()

    mine = new_folder()

    assert not folder.exists()
    assert {other, mine} == set(temporary.iterdir())


def test_javas_option(tmp_path: Path) -> None:
    """It is added behind others, and not at all if the place is named already."""
    assert f"{OPTION}{tmp_path}" == options_with(tmp_path, "")
    assert f"-Da=b '{OPTION}/a folder'" == options_with(Path("/a folder"), "-Da=b")
    assert f"{OPTION}/here" == options_with(tmp_path, f"{OPTION}/here")


@pytest.mark.timeout(300)
def test_a_killed_jvm_leaves_nothing_behind(temporary: Path, tmp_path: Path) -> None:
    """RocksDB's library, 15 MB, is there after kill -9, and no more after the next run."""
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
