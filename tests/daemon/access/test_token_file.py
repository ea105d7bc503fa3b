"""A change of a token file takes effect as a whole, and keeps the file's mode and owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from sparq.daemon.access.token_file import TokenFile
from sparq.daemon.access.tokens import FORM, TokenFileError
from tests.support.waiting import wait_for


def line(name: str) -> str:
    return tokens.make(name, "read")[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    found.write_text(f"# ours\n{line('web')}")
    return found


def test_the_mode_and_the_owner_are_kept(path: Path) -> None:
    """The new file has them before it takes the place of the old one; a link stays a link."""
    path.chmod(0o640)
    owner = (os.getuid(), os.getgid())
    if os.geteuid() == 0:
        os.chown(path, *(owner := (1234, 2345)))
    link = path.parent / "link"
    link.symlink_to(path)
    with TokenFile(str(link), FORM) as file:
        file.replace([*file.lines, line("new")])
    facts = path.stat()
    assert (0o640, owner) == (stat.S_IMODE(facts.st_mode), (facts.st_uid, facts.st_gid))
    assert link.is_symlink()
    assert 2 == len(tokens.read(str(path)))
    assert {path, link} == {*path.parent.iterdir()}


def test_a_new_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """A token file that is not there yet is made with mode 0600."""
    path = tmp_path / "new"
    with TokenFile(str(path), FORM) as file:
        file.replace([line("web")])
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    with pytest.raises(TokenFileError, match="cannot be read"):
        TokenFile(str(tmp_path / "none"), FORM, changes=False).__enter__()


def test_changes_at_once_are_made_one_after_the_other(path: Path) -> None:
    """No change undoes another one, and none is refused."""
    words = [sys.executable, "-m", "sparq.cli", "token", "make"]
    with TokenFile(str(path), FORM) as file:
        waiting = [
            subprocess.Popen(
                [*words, name, "read", f"--file={path}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in "bcd"
        ]
        wait_for(lambda: all(waits_for_a_lock(one.pid) for one in waiting))
        file.replace([*file.lines, line("a")])
    assert [0, 0, 0] == [one.wait(60) for one in waiting]
    with TokenFile(str(path), FORM, changes=False) as file:
        assert ["web", "a"] == [one.name for one in file.tokens][:2]
        assert set("bcd") == {one.name for one in file.tokens[2:]}
    assert [path] == [*path.parent.iterdir()]


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process waits for a lock on a file."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in lock and str(pid) in lock.split() for lock in locks)


def test_what_the_daemons_would_refuse_is_not_written(path: Path) -> None:
    """The old file stays: a token twice, a line with a mistake, a file that all may write."""
    before = path.read_text()
    with TokenFile(str(path), FORM) as file:
        for more in (file.lines[1], "web boss 00"):
            with pytest.raises(TokenFileError, match="line 3"):
                file.replace([*file.lines, more])
    assert before == path.read_text()
    path.chmod(0o666)
    with pytest.raises(TokenFileError, match="chmod o-w"):
        TokenFile(str(path), FORM).__enter__()
    assert [path] == [*path.parent.iterdir()]


def test_a_kill_leaves_the_old_file(path: Path) -> None:
    """Killed before the new file takes its place, `sparq token` leaves the old one whole.

    The next change is not hindered by what the killed one left.
    """
    before = path.read_text()
    program = (
        "import os, signal, sys; from sparq.daemon.access import command;"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "command.main(sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, "make", "new", "read", f"--file={path}"]
    killed = subprocess.run(words, capture_output=True, check=False, text=True)
    assert (-signal.SIGKILL, "") == (killed.returncode, killed.stdout)
    assert before == path.read_text()
    again = subprocess.run(
        [sys.executable, "-m", "sparq.cli", "token", *words[3:]],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (0, True) == (again.returncode, "added new" in again.stderr)
    assert [path] == [*path.parent.iterdir()]
