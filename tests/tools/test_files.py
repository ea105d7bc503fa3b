"""Output files on a real disk: their names; nothing is written elsewhere or replaced."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.tools.files import (
    FilenameError,
    Folder,
    Template,
    entries_of,
    template,
    with_revision,
)

WHEN = datetime(2026, 3, 5, 16, 7, 9, tzinfo=timezone(timedelta(hours=2), "EET"))
HOST = socket.gethostname()


def host_of(identifier: str) -> str:
    """Return the host in names with this `--host-identifier`."""
    return template("x", "", "t", identifier, is_revised=False, is_gzip=False).host


def put(folder: Folder, *entries: str, data: bytes = b"data") -> None:
    """Create a file with some data."""
    fd = folder.open(entries, os.O_CREAT | os.O_EXCL)
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


def test_missing_parent_folders_are_created(tmp_path: Path) -> None:
    """The folder and its parents have NSQ's modes, less the umask."""
    umask = os.umask(0o022)
    os.umask(umask)
    folder = Folder(str(tmp_path / "a" / "b"))
    put(folder, "c", "d")

    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b/c", "a/b/c/d")]
    assert [0o770 & ~umask, 0o770 & ~umask, 0o666 & ~umask] == modes


def test_an_existing_file_is_not_created_again(tmp_path: Path) -> None:
    """`create` refuses an existing file, `open` appends to it."""
    folder = Folder(str(tmp_path))
    put(folder, "a")
    with pytest.raises(FileExistsError):
        folder.open(["a"], os.O_CREAT | os.O_EXCL)
    fd = folder.open(["a"])
    os.write(fd, b" and more")
    os.close(fd)

    assert b"data and more" == (tmp_path / "a").read_bytes()
    assert [True, False] == [folder.has(["a"]), folder.has(["b"])]


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

    for entries in (["away", "x"], ["file"], ["new"]):
        with pytest.raises(OSError, match=r"Too many levels|Not a directory"):
            folder.open(entries)
    assert ["file"] == [path.name for path in outside.iterdir()]
    assert b"precious" == (outside / "file").read_bytes()
    assert folder.has(["new"])


def test_only_regular_files_are_written(tmp_path: Path) -> None:
    """A pipe or a folder of that name is refused immediately."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    folder = Folder(str(tmp_path))

    with pytest.raises(OSError, match="not a regular file"):
        folder.open(["pipe"])
    with pytest.raises(OSError, match="Is a directory"):
        folder.open(["folder"])


def test_a_file_is_moved_to_a_free_name(tmp_path: Path) -> None:
    """The file leaves the first folder; an existing file of that name is not replaced."""
    work, done = Folder(str(tmp_path / "work")), Folder(str(tmp_path / "done"))
    put(work, "x", "a")
    put(done, "a", data=b"old")

    with pytest.raises(FileExistsError):
        done.move_in(work, ["x", "a"], ["a"])
    assert b"data" == (tmp_path / "work" / "x" / "a").read_bytes()
    done.move_in(work, ["x", "a"], ["y", "b"])

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
        done.move_in(work, ["a"], ["a"])
    done.move_in(work, ["a"], ["b"])

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
        done.move_in(work, ["a"], ["a"])
    done.move_in(work, ["a"], ["b"])

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

    done.move_in(work, [name], [name])

    assert [name] == os.listdir(other_disk)


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error appears at the start, not with the first message; tests may run as root."""
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    with pytest.raises(OSError, match=rf"files cannot be created there: '{tmp_path}'"):
        Folder(str(tmp_path))


def made(filename_format: str, topic: str = "clicks", **changes: bool) -> Template:
    """Return a template with the host `web`; revision and gzip are off by default."""
    kinds = {"is_revised": False, "is_gzip": False, **changes}
    return template(filename_format, "%H", topic, "web", **kinds)


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


def test_inserted_text_is_not_expanded_again() -> None:
    """Inserted text is not expanded again: a host named like a placeholder is kept."""
    filled = Template("<TOPIC>/<HOST>.<PID><REV>.<DATETIME>.<X>", "%Y<TOPIC>", "t", "<PID>")

    assert f"t/<PID>.{os.getpid()}<REV>.2026<TOPIC>.<X>" == filled.at(WHEN)
    assert "a-000012.b" == with_revision("a<REV>.b", 12)


def test_the_host_name_is_filled_in() -> None:
    """The default is the short host name; placeholders in a given text are filled in."""
    short = HOST.partition(".")[0]

    assert short == host_of("")
    assert f"a-{short}-{HOST}-<TOPIC>" == host_of("a-<SHORT_HOST>-<HOSTNAME>-<TOPIC>")


def test_the_revision_is_required_or_removed() -> None:
    """<REV> is required if files have revisions, and removed if they have none."""
    assert "a<REV>" == made("a<REV>", is_revised=True).text
    assert "a.log" == made("a<REV>.log").text
    with pytest.raises(FilenameError, match="missing <REV> in --filename-format"):
        made("a", is_revised=True)


def test_gzip_adds_a_suffix_to_the_name() -> None:
    """`.gz` is added unless the name already ends with it."""
    assert "a.log.gz" == made("a.log", is_gzip=True).text
    assert "a.gz" == made("a.gz", is_gzip=True).text


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


def test_a_topic_named_dot_dot_is_refused_as_a_folder() -> None:
    """`..` is a valid topic name, and harmless unless it becomes a folder."""
    assert "...web.16" == made("<TOPIC>.<HOST>.<DATETIME>", topic="..").at(WHEN)
    with pytest.raises(FilenameError, match="leads out of its folder"):
        made("<TOPIC>/<HOST>", topic="..")


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
