"""What a killed run has left where files are written: made whole, and moved at the next start."""

import gzip
import os
import zlib
from pathlib import Path

import pytest

from sparq.tools.filename import Template
from sparq.tools.folder import Folder
from sparq.tools.output import Rotation, TopicOutput, whole_gzip
from tests.tools.recording import files

TEMPLATE = Template("<TOPIC>/<HOST><REV>.<DATETIME>.<PID>", "%Y", "t.x", "web")


def left(tmp_path: Path, name: str, data: bytes) -> None:
    """A file in the folder where files are written."""
    path = tmp_path / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def finish(tmp_path: Path, *, is_gzip: bool = False) -> dict[str, bytes]:
    """Finish what is left; what is in the folder of finished files then."""
    work, done = Folder(str(tmp_path / "work"), is_owned=True), Folder(str(tmp_path / "done"))
    TopicOutput(TEMPLATE, work, done, Rotation(), gzip_level=int(is_gzip)).finish_left_over()
    return files(tmp_path / "done")


def test_files_of_other_times_and_processes_are_moved(tmp_path: Path) -> None:
    """What is not of this template stays where it is."""
    left(tmp_path, "t.x/web-000003.1999.1", b"a\n")
    left(tmp_path, "t.x/web-1000000.2026-1/2.77", b"b\n")
    others = ["t.x/web.1999.1", "t.x/web-000003.1999.x", "tax/web-000003.1999.1", "web-000003.1.1"]
    for name in others:
        left(tmp_path, name, b"other\n")

    expected = {"t.x/web-000003.1999.1": b"a\n", "t.x/web-1000000.2026-1/2.77": b"b\n"}
    assert expected == finish(tmp_path)
    assert sorted(others) == sorted(files(tmp_path / "work"))


def test_a_torn_message_is_ended_and_an_empty_file_removed(tmp_path: Path) -> None:
    """Whatever else is written, it stands in a line of its own."""
    left(tmp_path, "t.x/web-000000.1.1", b"a\nto")
    left(tmp_path, "t.x/web-000001.1.1", b"")

    assert {"t.x/web-000000.1.1": b"a\nto\n"} == finish(tmp_path)
    assert {} == files(tmp_path / "work")


def test_gzip_is_cut_behind_its_last_whole_member(tmp_path: Path) -> None:
    """All that was synced is there, and gzip takes it."""
    whole = gzip.compress(b"a\n" * 3_000_000) + gzip.compress(b"b\n")
    left(tmp_path, "t.x/web-000000.1.1", whole + gzip.compress(b"c\n")[:-1])
    left(tmp_path, "t.x/web-000001.1.1", gzip.compress(b"d\n")[:12])
    left(tmp_path, "t.x/web-000002.1.1", whole)

    found = finish(tmp_path, is_gzip=True)
    assert ["t.x/web-000000.1.1", "t.x/web-000002.1.1"] == list(found)
    assert [whole, whole] == list(found.values())
    assert {} == files(tmp_path / "work")


@pytest.mark.parametrize("tail", [b"", b"\x1f", b"no gzip", b"\x1f\x8b\x08\xff", b"\0" * 3_000_000])
def test_only_whole_members_count(tmp_path: Path, tail: bytes) -> None:
    """Whatever stands behind them, also what inflates to very much."""
    whole = gzip.compress(b"a") + gzip.compress(b"\0" * 10_000_000)
    left(tmp_path, "f", whole + tail)
    fd = os.open(tmp_path / "work" / "f", os.O_RDONLY)
    try:
        assert len(whole) == whole_gzip(fd)
    finally:
        os.close(fd)
    assert zlib.crc32(gzip.decompress(whole)) != 0


def test_a_name_in_use_stays_with_who_has_it(tmp_path: Path) -> None:
    """The file goes to the next revision that is free."""
    (tmp_path / "done" / "t.x").mkdir(parents=True)
    for number in (5, 6):
        (tmp_path / "done" / "t.x" / f"web-00000{number}.1.1").write_bytes(b"old")
    left(tmp_path, "t.x/web-000005.1.1", b"a\n")

    assert [b"old", b"old", b"a\n"] == list(finish(tmp_path).values())
    assert (tmp_path / "done" / "t.x" / "web-000007.1.1").exists()


def test_a_file_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    """Until it is closed, by its writer or by a kill; nobody else continues it, either."""
    work, done = Folder(str(tmp_path / "work"), is_owned=True), Folder(str(tmp_path / "done"))
    template = Template("f<REV>", "", "", "")
    first, second = (TopicOutput(template, work, done, Rotation()) for _ in range(2))
    first.write([b"a"], sync=True)
    TopicOutput(template, work, done, Rotation()).finish_left_over()
    second.write([b"b"], sync=True)

    assert {"f-000000": b"a\n", "f-000001": b"b\n"} == files(tmp_path / "work")
    second.close()
    first.close()
    assert {"f-000000": b"a\n", "f-000001": b"b\n"} == files(tmp_path / "done")


def test_what_cannot_be_opened_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A planted link is not followed, and holds up nothing else."""
    left(tmp_path, "t.x/web-000001.1.1", b"a\n")
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "work" / "t.x" / "web-000000.1.1").symlink_to(tmp_path / "outside")

    assert {"t.x/web-000001.1.1": b"a\n"} == finish(tmp_path)
    assert "cannot open a file left by an earlier run" in caplog.text
    assert b"precious" == (tmp_path / "outside").read_bytes()
