"""Real nsqd processes start on data paths of Go's nsqd and import them."""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparq.program.supervised import SupervisedProcess
from sparq.tools.nsq_check import CheckError, check_data_path
from tests.scenarios.migration.go_path import GoPath, drain, in_order
from tests.support.go_data import TIME, GoQueue
from tests.support.servers import NsqdServer, spawn_nsqd

COUNT = 100_000
SECONDS = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data path of the nsqd that `spawn_nsqd` starts."""
    return tmp_path / "nsqd"


def depths_of(nsqd: NsqdServer) -> dict[tuple[str, str], int]:
    depths = {}
    for topic in nsqd.get_json("/stats?format=json")["topics"]:
        depths[topic["topic_name"], ""] = topic["depth"]
        for channel in topic["channels"]:
            depths[topic["topic_name"], channel["channel_name"]] = channel["depth"]
    return depths


def checked_depths(folder: Path) -> dict[tuple[str, str], int]:
    """The depths that nsq_check reports."""
    return {(row.topic, row.channel): row.depth for row in check_data_path(str(folder)).rows}


def assert_all_is_delivered(nsqd: NsqdServer, path: GoPath) -> None:
    """Assert that each channel delivers exactly the messages of its own and its topic's queue."""
    nsqd.post("/channel/unpause?topic=clicks&channel=metrics")
    for (topic, channel), expected in path.expected.items():
        got = drain(nsqd.tcp_port, topic, channel, expected.total())
        assert expected == Counter(message for message, _ in got)
    assert 0 == nsqd.channel("clicks", "archive")["depth"]


def test_an_import_of_100_000_messages_is_complete(tmp_path: Path, folder: Path) -> None:
    """An import of 100,000 messages loses only the one record whose length is damaged.

    nsq_check reports the same depths as nsqd, before and after; pauses, attempts and timestamps are
    kept.
    """
    path = GoPath(folder, COUNT)
    before = check_data_path(str(folder))
    names = sorted(name.name for name in folder.iterdir())
    with spawn_nsqd(tmp_path) as nsqd:
        assert path.depths() == depths_of(nsqd)
        assert nsqd.channel("clicks", "metrics")["paused"]
        (late,) = nsqd.get_json("/stats?format=json&topic=late.topic")["topics"]
        assert late["paused"]
        nsqd.terminate()
        assert (
            path.depths()
            == checked_depths(folder)
            == {(row.topic, row.channel): row.depth for row in before.rows}
        )
        nsqd.start()
        assert path.depths() == depths_of(nsqd)
        assert_all_is_delivered(nsqd, path)
        nsqd.post("/topic/unpause?topic=late.topic")
        got = drain(nsqd.tcp_port, "late.topic", "c", 20)
        assert [(body, 1) for body in path.late] == [message for message, _ in got]
        assert TIME == got[0][1]
        log = nsqd.log_text
    (originals,) = folder.glob("go-nsqd-*")
    assert sorted([*names, "import.json"]) == sorted(file.name for file in originals.iterdir())
    damage = [line for line in log.splitlines() if "damaged, not imported" in line]
    assert 1 == len(damage) == len(before.all_damage())
    assert "clicks.diskqueue.00000" in damage[0]
    assert 1 == log.count("importing the data of Go's nsqd")


def test_an_import_keeps_the_order(tmp_path: Path, folder: Path) -> None:
    """A channel delivers its own Go queue in order, then its topic's queue in order."""
    path = GoPath(folder, 3_000)
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/channel/unpause?topic=clicks&channel=metrics")
        total = path.expected["clicks", "metrics"].total()
        got = [body for (body, _), _ in drain(nsqd.tcp_port, "clicks", "metrics", total)]
    words = [body.split()[0] for body in got]
    assert [b"metrics"] * 1000 + [b"tail"] * 50 + [b"own"] * 999 == words
    for word in (b"metrics", b"tail", b"own"):
        assert in_order([int(body.split()[1]) for body in got if body.startswith(word)])


# Kills during the import


def start_and_kill(folder: Path, condition: Callable[[], bool]) -> None:
    """Start an nsqd on the folder and kill -9 it as soon as the condition holds."""
    addresses = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    command = [sys.executable, "-m", "sparq.nsqd", f"--data-path={folder}", *addresses]
    nsqd = SupervisedProcess("nsqd", command, folder / "nsqd.log")
    nsqd.start()
    deadline = time.monotonic() + SECONDS
    try:
        while not condition() and not has_logs(folder) and not nsqd.has_ended():
            assert time.monotonic() < deadline
    finally:
        nsqd.kill()


def has_logs(folder: Path) -> bool:
    """Whether logs are in place, which means that the import is at its end."""
    return (folder / "topics" / "t-clicks").exists()


def written_bytes(folder: Path) -> int:
    total = 0
    # Unlike Path.glob, this tolerates files that are deleted during the iteration.
    for path in glob.glob(f"{folder}/go-import*/topics/*/*.log"):
        with contextlib.suppress(FileNotFoundError):
            total += os.stat(path).st_size
    return total


def moments(folder: Path) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the moments at which to kill nsqd: a name and a condition."""
    yield "begun", (folder / "go-import.tmp").exists
    for size in (10_000, 200_000, 2_000_000):
        yield f"{size} bytes", lambda size=size: written_bytes(folder) > size
    yield "committed", (folder / "go-import").exists
    yield "an original is moved", lambda: bool(glob.glob(f"{folder}/go-nsqd-*/*.dat"))
    yield "a log is in place", lambda: has_logs(folder)


@pytest.mark.parametrize("moment", range(7))
def test_an_import_that_is_killed_is_repeated(tmp_path: Path, folder: Path, moment: int) -> None:
    """Whenever nsqd is killed during the import, the next start has every message exactly once."""
    path = GoPath(folder, 20_000)
    _, condition = list(moments(folder))[moment]
    start_and_kill(folder, condition)
    with spawn_nsqd(tmp_path) as nsqd:
        assert path.depths() == depths_of(nsqd)
        nsqd.restart()
        assert path.depths() == depths_of(nsqd)
        assert_all_is_delivered(nsqd, path)
    assert [] == [*folder.glob("*.diskqueue.*"), *folder.glob("go-import*")]
    assert 1 == len([*folder.glob("go-nsqd-*")])


# Refused starts, and the way back to Go's nsqd


def refusal(folder: Path, *flags: str) -> str:
    """Return the error output of an nsqd that refuses to start."""
    command = [sys.executable, "-m", "sparq.nsqd", f"--data-path={folder}", *flags]
    done = subprocess.run(
        [*command, "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert 1 == done.returncode, done.stderr
    return done.stderr


def test_a_mix_of_both_kinds_of_data_is_refused(tmp_path: Path, folder: Path) -> None:
    """nsqd refuses a data path with topics of sparq and files of Go's nsqd, and changes nothing."""
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/pub?topic=clicks", b"ours")
        nsqd.terminate()
        queue = GoQueue(folder, "clicks").put(b"theirs").close()
        content = queue.path(0).read_bytes()

        text = refusal(folder)

        assert "contains both topics of sparq and files of Go's nsqd (clicks.diskqueue" in text
        assert content == queue.path(0).read_bytes()
        assert "both" == check_data_path(str(folder)).kind
        queue.path(0).unlink()
        queue.metadata.unlink()
        nsqd.start()
        assert {("clicks", ""): 1} == depths_of(nsqd)


def test_the_original_files_are_kept(tmp_path: Path, folder: Path) -> None:
    """The original files are kept unchanged, and can be used again as a data path."""
    path = GoPath(folder, 3_000)
    content = {file.name: file.read_bytes() for file in folder.iterdir()}
    with spawn_nsqd(tmp_path) as nsqd:
        assert path.depths() == depths_of(nsqd)
    (originals,) = folder.glob("go-nsqd-*")
    plan = json.loads((originals / "import.json").read_text())
    assert plan["originals"] == sorted(content)
    (originals / "import.json").unlink()
    assert content == {file.name: file.read_bytes() for file in originals.iterdir()}
    again = tmp_path / "again"
    shutil.copytree(originals, again)
    with spawn_nsqd(tmp_path, name="again") as nsqd:
        assert path.depths() == depths_of(nsqd)
        assert_all_is_delivered(nsqd, path)


def test_a_data_path_locked_by_go_is_refused(tmp_path: Path, folder: Path) -> None:
    """Both lock the data path itself: nsqd and nsq_check refuse one that Go's nsqd has locked."""
    GoQueue(folder, "clicks").put(b"x").close()
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(CheckError, match="in use by an nsqd"):
        check_data_path(str(folder))
    assert "cannot flock directory" in refusal(folder)
    os.close(held)
    assert {("clicks", ""): 1} == checked_depths(folder)
