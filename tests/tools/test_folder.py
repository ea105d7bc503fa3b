"""A folder of output files, on a real disk: nothing leaves it and no file takes another's place."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.tools.folder import Folder


def put(folder: Folder, *entries: str, data: bytes = b"data") -> None:
    """A new file with something in it."""
    fd = folder.create(entries)
    os.write(fd, data)
    os.close(fd)


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder in another file system than temporary files."""
    path = Path("/dev/shm") / f"sparq-{os.getpid()}"
    path.mkdir()
    yield path
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink()
    path.rmdir()


def test_it_is_made_with_all_above_it(tmp_path: Path) -> None:
    """With the modes that NSQ uses, less the umask."""
    umask = os.umask(0o022)
    os.umask(umask)
    folder = Folder(str(tmp_path / "a" / "b"))
    put(folder, "c", "d")

    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b/c", "a/b/c/d")]
    assert [0o770 & ~umask, 0o770 & ~umask, 0o666 & ~umask] == modes


def test_what_is_there_is_not_created_again(tmp_path: Path) -> None:
    """`create` refuses a name in use, `open` continues it at its end."""
    folder = Folder(str(tmp_path))
    put(folder, "a")
    with pytest.raises(FileExistsError):
        folder.create(["a"])
    fd = folder.open(["a"])
    os.write(fd, b" and more")
    os.close(fd)

    assert b"data and more" == (tmp_path / "a").read_bytes()
    assert [True, False] == [folder.has(["a"]), folder.has(["b"])]


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    """Neither a folder on the way nor the file; the folder itself may be one."""
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


def test_only_files_are_written(tmp_path: Path) -> None:
    """A pipe or a folder of that name is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    folder = Folder(str(tmp_path))

    with pytest.raises(OSError, match="not a regular file"):
        folder.open(["pipe"])
    with pytest.raises(OSError, match="Is a directory"):
        folder.open(["folder"])


def test_a_file_is_moved_to_a_free_name(tmp_path: Path) -> None:
    """It is gone from the first folder; a name in use stays with who has it."""
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
    """Some file systems have none: the name is reserved first, as exclusively."""

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
    """Its bytes are copied, and the name appears when all are there; nothing else is left."""
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


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at once, not when the first message has come; root could write anywhere."""
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    with pytest.raises(OSError, match=rf"files cannot be created there: '{tmp_path}'"):
        Folder(str(tmp_path))
