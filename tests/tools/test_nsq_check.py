"""nsq_check as a program: its exit status, table and JSON; it changes no file."""

import json
import subprocess
import sys
from pathlib import Path

from sparq.log.disk import RealDisk
from sparq.log.ledger import Ledger
from sparq.log.records import RecordKind
from sparq.testing import ManualClock
from tests.log.log_operations import commit, open_log
from tests.support.go_data import GoQueue, write_metadata


def run(*arguments: str) -> tuple[int, str, str]:
    """Return (exit status, standard output, standard error)."""
    command = [sys.executable, "-m", "sparq.tools", "nsq_check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and modification time of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def sparq_path(folder: Path) -> Path:
    """Write a data path with 100 messages, 30 of them finished; return the path of its log."""
    clock, disk, topic = ManualClock(), RealDisk(), folder / "topics" / "t-clicks"
    ledger, _ = Ledger.open(disk, str(topic))
    log = open_log(disk, clock, str(topic))
    ledger.note(RecordKind.CREATED, "archive", [log.end_index])
    first = commit(log, [b"a%d" % n for n in range(60)], clock).first_index
    commit(log, [b"b%d" % n for n in range(40)], clock)
    ledger.note(RecordKind.FINISHED, "archive", [first, first + 50], [first + 20, first + 60])
    ledger.note(RecordKind.REQUEUED, "archive", [first + 70], [clock.wall_ns * 2], [3])
    ledger.flush()
    log.close()
    ledger.close()
    (folder / "sparq.json").write_text('{"format": 1, "node_id": 7, "retired_index": "0"}')
    return next(topic.glob("*.log"))


def test_a_full_disk_at_standard_output_is_status_2(tmp_path: Path) -> None:
    """A full disk at standard output is status 2, not damage to the data path."""
    write_metadata(tmp_path, {"clicks": {"archive": True}})
    command = [sys.executable, "-m", "sparq.tools", "nsq_check", str(tmp_path)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)

    assert (2, b"failed to write to standard output - No space left on device\n") == (
        done.returncode,
        done.stderr,
    )


def test_an_undamaged_data_path_of_go(tmp_path: Path) -> None:
    """The table has a row per queue, and the exit status is 0."""
    GoQueue(tmp_path, "clicks:archive").put(b"a", b"b").put(b"c", attempts=2).close()
    write_metadata(tmp_path, {"clicks": {"archive": True}})
    before = contents(tmp_path)

    status, out, err = run(str(tmp_path))

    assert (0, "") == (status, err)
    assert ["clicks", "archive", "3", "0", "1", "0.0", "yes", "-"] in [
        line.split() for line in out.splitlines()
    ]
    assert out.endswith("sound\n")
    assert before == contents(tmp_path)


def test_a_data_path_of_sparq(tmp_path: Path) -> None:
    """The depth excludes finished and deferred messages; a flipped bit loses one batch."""
    log = sparq_path(tmp_path)
    before = contents(tmp_path)

    status, out, _ = run("--json", str(tmp_path))

    (own, archive) = json.loads(out)["topics"]
    assert (0, 0, "") == (status, own["depth"], own["channel"])
    figures = (archive["depth"], archive["deferred"], archive["attempted"])
    assert (69, 1, 1) == figures
    assert before == contents(tmp_path)
    data = bytearray(log.read_bytes())
    data[5_000] ^= 1
    log.write_bytes(data)
    status, out, _ = run(str(tmp_path))
    assert 1 == status
    assert "damaged: " in out
    assert "60 messages lost" in out


def test_an_unreadable_data_path_is_status_2(tmp_path: Path) -> None:
    """Status 2 with the reason: no such folder, a running nsqd, an empty folder, no argument."""
    held = RealDisk().lock(str(tmp_path))
    answers = [run(str(tmp_path / "none")), run(str(tmp_path))]
    held.close()
    answers += [run(str(tmp_path)), run()]

    assert [2] * 4 == [status for status, _, _ in answers]
    texts = [
        "no such folder",
        "in use by an nsqd: stop it first",
        "no nsqd data found",
        "--data-path",
    ]
    assert all(text in err for text, (_, _, err) in zip(texts, answers, strict=True))
    assert not (tmp_path / "none").exists()
