"""Output files on a real disk: names, folders, rotation, revisions, gzip, files of earlier runs."""

from __future__ import annotations

import errno
import gzip
import os
import resource
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.tools import nsq_to_file as output_module
from sparq.tools.commands import NsqToFileOptions as Options
from sparq.tools.nsq_to_file import (
    FilenameError,
    Folder,
    Template,
    TopicOutput,
    entries_of,
    template,
    whole_gzip,
)
from tests.tools.recording import files

WHEN = datetime(2026, 3, 5, 16, 7, 9, tzinfo=timezone(timedelta(hours=2), "EET"))
HOST = socket.gethostname()


def put(folder: Folder, *entries: str, data: bytes = b"data") -> None:
    """Create a file with some data."""
    fd = folder.open("/".join(entries), os.O_CREAT | os.O_EXCL)
    os.write(fd, data)
    os.close(fd)


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder in another file system than that of temporary files."""
    path = Path("/dev/shm") / f"sparq-{os.getpid()}"
    path.mkdir()
    yield path
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink()
    path.rmdir()


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    """Neither parent folders nor files may be links; the output folder itself may be one."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"precious")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = Folder(str(tmp_path / "link"))
    (tmp_path / "real" / "away").symlink_to(outside)
    (tmp_path / "real" / "file").symlink_to(outside / "file")
    (tmp_path / "real" / "new").symlink_to(outside / "new")

    for name in ("away/x", "file", "new"):
        with pytest.raises(OSError, match=r"Too many levels|Not a directory"):
            folder.open(name)
    assert ["file"] == [path.name for path in outside.iterdir()]
    assert b"precious" == (outside / "file").read_bytes()
    assert folder.has("new")


def test_only_regular_files_are_written(tmp_path: Path) -> None:
    """A pipe or a folder of that name is refused immediately."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    folder = Folder(str(tmp_path))

    with pytest.raises(OSError, match="not a regular file"):
        folder.open("pipe")
    with pytest.raises(OSError, match="Is a directory"):
        folder.open("folder")


def test_a_file_is_moved_to_a_free_name(tmp_path: Path) -> None:
    """The file leaves the first folder; an existing file of that name is not replaced."""
    work, done = Folder(str(tmp_path / "work")), Folder(str(tmp_path / "done"))
    put(work, "x", "a")
    put(done, "a", data=b"old")

    with pytest.raises(FileExistsError):
        done.move_in(work, "x/a", "a")
    assert b"data" == (tmp_path / "work" / "x" / "a").read_bytes()
    done.move_in(work, "x/a", "y/b")

    assert b"old" == (tmp_path / "done" / "a").read_bytes()
    assert b"data" == (tmp_path / "done" / "y" / "b").read_bytes()
    assert [] == os.listdir(tmp_path / "work" / "x")


def test_a_file_is_moved_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems without hard links the name is reserved first, just as exclusively."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    work, done = Folder(str(tmp_path / "work")), Folder(str(tmp_path / "done"))
    put(work, "a")
    put(done, "a", data=b"old")

    with pytest.raises(FileExistsError):
        done.move_in(work, "a", "a")
    done.move_in(work, "a", "b")

    assert [b"old", b"data"] == [(tmp_path / "done" / name).read_bytes() for name in ("a", "b")]
    assert [] == os.listdir(tmp_path / "work")


def test_a_file_is_moved_to_another_disk(tmp_path: Path, other_disk: Path) -> None:
    """The data is copied first, then the name appears; no other file is left."""
    if other_disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    work, done = Folder(str(tmp_path)), Folder(str(other_disk))
    put(work, "a", data=b"x" * 3_000_000)
    put(done, "a", data=b"old")

    with pytest.raises(FileExistsError):
        done.move_in(work, "a", "a")
    done.move_in(work, "a", "b")

    assert ["a", "b"] == sorted(os.listdir(other_disk))
    assert b"x" * 3_000_000 == (other_disk / "b").read_bytes()
    assert [] == os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127, "a" + "ä" * 127])
def test_a_file_with_a_long_name_is_moved_to_another_disk(
    tmp_path: Path, other_disk: Path, name: str
) -> None:
    """The name of the incomplete copy is no longer than file systems accept."""
    if other_disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    work, done = Folder(str(tmp_path)), Folder(str(other_disk))
    put(work, name)

    done.move_in(work, name, name)

    assert [name] == os.listdir(other_disk)


def made(
    filename_format: str, topic: str = "clicks", *, moved: bool = False, **changes: Any
) -> Template:
    """Return a template with the host `web`; revision and gzip are off by default."""
    options = Options(
        filename_format=filename_format, datetime_format="%H", host_identifier="web", **changes
    )
    return template(options, topic, is_moved=moved)


@pytest.mark.parametrize(
    ("format_text", "expected"),
    [
        ("%Y-%m-%d_%H", "2026-03-05_16"),
        ("%B %b %A %a %y", "March Mar Thursday Thu 26"),
        ("%I:%M:%S %p %Z %z", "04:07:09 PM EET +0200"),
        ("100%%", "100%"),
        ("%Q %j %", "%Q %j %"),
        ("%%H", "%H"),
        ("2006 Jan 15", "2006 Jan 15"),
    ],
)
def test_dates_are_filled_in(format_text: str, expected: str) -> None:
    """NSQ's conversions are replaced, in English; other text is unchanged."""
    assert expected == Template("<DATETIME>", format_text, "t", "h").at(WHEN)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "./.", "..", "../a", "a/../b", "a/..", "a\0b", "a\nb", "a\u202eb", "\ud800"),
        *("a" * 256, "ä" * 128, f"{'a' * 256}/b"),
    ],
)
def test_an_invalid_path_is_refused(name: str) -> None:
    """A path out of the folder, an empty, unreadable or too long name is refused."""
    with pytest.raises(FilenameError):
        entries_of(name)


@given(st.text(alphabet="ab./<>\0\n%TOPIC", max_size=20), st.sampled_from(["t", ".", "..", "..."]))
def test_no_template_leads_out_of_the_folder(filename_format: str, topic: str) -> None:
    """Any template yields plain entries or is refused."""
    try:
        found = entries_of(made(filename_format, topic).at(WHEN))
    except FilenameError:
        return

    assert found
    assert not any(entry in ("", ".", "..") or "/" in entry for entry in found)
    assert os.path.normpath("/".join(found)) == "/".join(found)


TEMPLATE = Template("<TOPIC>/<HOST><REV>.<DATETIME>.<PID>", "%Y", "t.x", "web")

MILLISECOND = 1_000_000


def make(
    tmp_path: Path,
    name: str = "t<REV>.log",
    *,
    datetime_format: str = "%Y",
    finished: str = "",
    size: int = 0,
    interval_ns: int = 0,
    gzip_level: int = 0,
    skip_empty_files: bool = False,
) -> TopicOutput:
    """Return an output that writes to `tmp_path/work`."""
    return TopicOutput(
        Template(name, datetime_format, "t", "host"),
        Folder(str(tmp_path / "work")),
        Folder(str(tmp_path / finished)) if finished else None,
        Options(
            rotate_size=size,
            rotate_interval_ns=interval_ns,
            gzip=bool(gzip_level),
            gzip_level=gzip_level,
            skip_empty_files=skip_empty_files,
        ),
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return the uncompressed files of a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found[path.name] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def test_appending_to_an_incomplete_message_adds_a_newline(tmp_path: Path) -> None:
    """If a kill has left a file without a newline at its end, one is added first."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "t.log").write_bytes(b"whole\nto")
    output = make(tmp_path, "t.log")
    output.write([b"next"], sync=True)
    output.close()

    assert {"t.log": b"whole\nto\nnext\n"} == contents(tmp_path / "work")


def test_a_file_that_is_too_large_is_closed(tmp_path: Path) -> None:
    """Rotation follows the message that exceeds the size, even in a batch; an exact fit stays."""
    output = make(tmp_path, size=6)
    assert output.write([b"ab", b"cd", b"e", b"f" * 20, b"g"], sync=False)
    assert not output.write([b"h"], sync=False)
    output.close()

    expected = [b"ab\ncd\ne\n", b"f" * 20 + b"\n", b"g\nh\n"]
    assert expected == list(contents(tmp_path / "work").values())
    again = make(tmp_path, size=6)
    again.write([b"i", b"j"], sync=True)
    again.close()
    assert [*expected[:2], b"g\nh\ni\nj\n"] == list(contents(tmp_path / "work").values())


def test_a_file_that_is_too_old_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age counts from opening; each file has the next revision, old files stay as they are."""
    now = [0]
    monkeypatch.setattr(output_module.time, "monotonic_ns", lambda: now[0])
    output = make(tmp_path, interval_ns=100 * MILLISECOND)
    for at, body in ((0, b"a"), (100, b"b"), (101, b"c"), (201, b"d"), (202, b"e")):
        now[0] = at * MILLISECOND
        output.write([body], sync=False)
    output.close()
    make(tmp_path, interval_ns=1).write([b"f"], sync=True)

    files = contents(tmp_path / "work")
    assert [b"a\nb\n", b"c\nd\n", b"e\n", b"f\n"] == list(files.values())
    assert [f"t-{n:06d}.log" for n in range(4)] == list(files)


def test_a_file_is_closed_when_its_name_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revisions restart at 0 with a new name."""
    name = ["a<REV>"]
    output = make(tmp_path, size=2)
    monkeypatch.setattr(output, "_name_now", lambda: name[0])
    output.write([b"long", b"long"], sync=False)
    name[0] = "b<REV>"
    assert output.write([b"x"], sync=False)
    output.close()

    assert ["a-000000", "a-000001", "b-000000"] == list(contents(tmp_path / "work"))


def test_each_sync_ends_a_gzip_member(tmp_path: Path) -> None:
    """Synced data stays readable after later writes; all members form one gzip file."""
    output = make(tmp_path, "t<REV>.gz", gzip_level=9)
    output.write([b"a", b"b"], sync=True)
    path = tmp_path / "work" / "t-000000.gz"
    assert b"a\nb\n" == gzip.decompress(path.read_bytes())
    output.write([b"c"], sync=False)
    output.write([b"d"], sync=True)
    assert b"a\nb\nc\nd\n" == gzip.decompress(path.read_bytes())
    assert 2 == path.read_bytes().count(b"\x1f\x8b\x08")
    output.close()
    make(tmp_path, "t<REV>.gz", gzip_level=1).write([b"e"], sync=True)

    assert [b"a\nb\nc\nd\n", b"e\n"] == list(contents(tmp_path / "work").values())


def test_empty_files_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick then only closes a file that is due, and the next message opens the next file."""
    name = ["a<REV>"]
    output = make(tmp_path, skip_empty_files=True)
    monkeypatch.setattr(output, "_name_now", lambda: name[0])
    output.tick()
    assert {} == contents(tmp_path / "work")
    output.write([b"x"], sync=True)
    name[0] = "b<REV>"
    output.tick()
    assert ["a-000000"] == list(contents(tmp_path / "work"))
    output.write([b"y"], sync=True)
    name[0] = "c<REV>"
    output.tick()

    assert ["a-000000", "b-000000"] == list(contents(tmp_path / "work"))
    unskipped = make(tmp_path, "d")
    unskipped.tick()
    assert {"a-000000": b"x\n", "b-000000": b"y\n", "d": b""} == contents(tmp_path / "work")


def test_finished_files_are_moved(tmp_path: Path) -> None:
    """Finished files keep their path in the other folder, where no file is replaced."""
    output = make(tmp_path, "<TOPIC>/f<REV>", finished="done", size=1)
    output.write([b"a"], sync=True)
    assert {} == contents(tmp_path / "done")
    (tmp_path / "done" / "t").mkdir(parents=True, exist_ok=True)
    (tmp_path / "done" / "t" / "f-000000").write_bytes(b"another's")
    output.close()
    (tmp_path / "done" / "t" / "f-000002").write_bytes(b"another's")
    output.write([b"b", b"c"], sync=True)
    output.close()

    assert {} == contents(tmp_path / "work")
    expected = {"f-000000": b"another's", "f-000001": b"a\n", "f-000002": b"another's"}
    expected |= {"f-000003": b"b\n", "f-000004": b"c\n"}
    assert expected == contents(tmp_path / "done")


def test_a_name_in_use_without_a_revision_is_an_error(tmp_path: Path) -> None:
    """Without <REV> no other name is free, so nothing is written."""
    output = make(tmp_path, "f", finished="done")
    (tmp_path / "done" / "f").write_bytes(b"another's")
    with pytest.raises(FileExistsError, match="its name is in use"):
        output.write([b"a"], sync=True)

    assert {"f": b"another's"} == contents(tmp_path)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files in the block; larger writes fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """The file ends with a part of the message; the next start begins a new line."""
    output = make(tmp_path, "t.log")
    output.write([b"a"], sync=True)
    with file_size_limit(8), pytest.raises(OSError, match="File too large"):
        output.write([b"b" * 20], sync=True)
    again = make(tmp_path, "t.log")
    again.write([b"b" * 20], sync=True)

    assert {"t.log": b"a\nbbbbbb\n" + b"b" * 20 + b"\n"} == contents(tmp_path / "work")


def test_write_returns_true_only_after_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`write` returns True only after it has synced new folders and then the file."""
    synced = []

    def note(call: str) -> None:
        real = getattr(os, call)

        def noting(fd: int) -> None:
            synced.append((call, os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size))
            real(fd)

        monkeypatch.setattr(os, call, noting)

    note("fsync")
    note("fdatasync")
    output = make(tmp_path, "x/t.log")
    synced.clear()
    assert output.write([b"abc"], sync=False)
    assert not output.write([b"def"], sync=False)

    work = tmp_path / "work"
    places = [(call, path) for call, path, _ in synced]
    assert [("fsync", str(work)), ("fsync", str(work / "x"))] == places[:2]
    assert [("fdatasync", str(work / "x" / "t.log"))] == places[2:]
    assert 4 == synced[-1][2]


def make_left_file(tmp_path: Path, name: str, data: bytes) -> None:
    """Create a file in the work folder."""
    path = tmp_path / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def finish(tmp_path: Path, *, is_gzip: bool = False) -> dict[str, bytes]:
    """Finish files of earlier runs; return those in the folder of finished files."""
    work, done = Folder(str(tmp_path / "work"), is_owned=True), Folder(str(tmp_path / "done"))
    TopicOutput(TEMPLATE, work, done, Options(gzip=is_gzip)).recover_files()
    return files(tmp_path / "done")


def test_files_of_earlier_runs_are_moved(tmp_path: Path) -> None:
    """Files that do not match the template stay where they are."""
    make_left_file(tmp_path, "t.x/web-000003.1999.1", b"a\n")
    make_left_file(tmp_path, "t.x/web-1000000.2026-1/2.77", b"b\n")
    others = ["t.x/web.1999.1", "t.x/web-000003.1999.x", "tax/web-000003.1999.1", "web-000003.1.1"]
    for name in others:
        make_left_file(tmp_path, name, b"other\n")

    expected = {"t.x/web-000003.1999.1": b"a\n", "t.x/web-1000000.2026-1/2.77": b"b\n"}
    assert expected == finish(tmp_path)
    assert sorted(others) == sorted(files(tmp_path / "work"))


def test_leftover_files_get_a_newline_or_are_removed(tmp_path: Path) -> None:
    """A newline is added after an incomplete message."""
    make_left_file(tmp_path, "t.x/web-000000.1.1", b"a\nto")
    make_left_file(tmp_path, "t.x/web-000001.1.1", b"")

    assert {"t.x/web-000000.1.1": b"a\nto\n"} == finish(tmp_path)
    assert {} == files(tmp_path / "work")


def test_gzip_is_truncated_after_its_last_complete_member(tmp_path: Path) -> None:
    """The file keeps all synced data, and is valid gzip."""
    whole = gzip.compress(b"a\n" * 3_000_000) + gzip.compress(b"b\n")
    make_left_file(tmp_path, "t.x/web-000000.1.1", whole + gzip.compress(b"c\n")[:-1])
    make_left_file(tmp_path, "t.x/web-000001.1.1", gzip.compress(b"d\n")[:12])
    make_left_file(tmp_path, "t.x/web-000002.1.1", whole)

    found = finish(tmp_path, is_gzip=True)
    assert ["t.x/web-000000.1.1", "t.x/web-000002.1.1"] == list(found)
    assert [whole, whole] == list(found.values())
    assert {} == files(tmp_path / "work")


@pytest.mark.parametrize("tail", [b"", b"\x1f", b"no gzip", b"\x1f\x8b\x08\xff", b"\0" * 3_000_000])
def test_bytes_after_complete_members_are_ignored(tmp_path: Path, tail: bytes) -> None:
    """Any bytes after complete members are ignored, even if a member inflates to 10 MB."""
    whole = gzip.compress(b"a") + gzip.compress(b"\0" * 10_000_000)
    make_left_file(tmp_path, "f", whole + tail)
    fd = os.open(tmp_path / "work" / "f", os.O_RDONLY)
    try:
        assert len(whole) == whole_gzip(fd)
    finally:
        os.close(fd)
    assert zlib.crc32(gzip.decompress(whole)) != 0


def test_a_file_of_the_same_name_is_not_replaced(tmp_path: Path) -> None:
    """The file is moved under the next free revision."""
    (tmp_path / "done" / "t.x").mkdir(parents=True)
    for number in (5, 6):
        (tmp_path / "done" / "t.x" / f"web-00000{number}.1.1").write_bytes(b"old")
    make_left_file(tmp_path, "t.x/web-000005.1.1", b"a\n")

    assert [b"old", b"old", b"a\n"] == list(finish(tmp_path).values())
    assert (tmp_path / "done" / "t.x" / "web-000007.1.1").exists()


def test_a_file_with_a_writer_is_left_alone(tmp_path: Path) -> None:
    """The file stays until its writer closes it or is killed; no other output appends to it."""
    work, done = Folder(str(tmp_path / "work"), is_owned=True), Folder(str(tmp_path / "done"))
    template = Template("f<REV>", "", "", "")
    first, second, third = (TopicOutput(template, work, done, Options()) for _ in range(3))
    first.write([b"a"], sync=True)
    third.recover_files()
    second.write([b"b"], sync=True)

    assert {"f-000000": b"a\n", "f-000001": b"b\n"} == files(tmp_path / "work")
    second.close()
    first.close()
    assert {"f-000000": b"a\n", "f-000001": b"b\n"} == files(tmp_path / "done")


def test_a_file_that_cannot_be_opened_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A symbolic link is not followed, and does not delay other files."""
    make_left_file(tmp_path, "t.x/web-000001.1.1", b"a\n")
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "work" / "t.x" / "web-000000.1.1").symlink_to(tmp_path / "outside")

    assert {"t.x/web-000001.1.1": b"a\n"} == finish(tmp_path)
    assert "cannot open a file left by an earlier run" in caplog.text
    assert b"precious" == (tmp_path / "outside").read_bytes()
