"""`sparq token` makes, lists and removes tokens, and never shows one twice."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from sparq.daemon.access.command import Edit, change, main
from sparq.daemon.access.rules import Role
from sparq.daemon.access.tokens import ADMINS_FORM, FORM, TokenFileError
from tests.nsqadmin.access.options import NOW
from tests.support.waiting import wait_for


@dataclass
class TokenCommand:
    """A token file, and the command on it."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run `sparq token`; return its status, standard output and stderr."""
        self.capsys.readouterr()
        try:
            status = main([*words, f"--file={self.path}"])
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *self.capsys.readouterr()


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> TokenCommand:
    return TokenCommand(tmp_path / "tokens", capsys)


def test_a_token_is_shown_once_and_stored_as_a_hash(file: TokenCommand) -> None:
    """`make` prints the token alone; the file and `list` have neither it nor its whole hash."""
    status, token, said = file.run("make", "web", "publish:clicks*", "2030-01-01")
    assert (0, True) == (status, bool(re.fullmatch(r"nsq_[\w-]{43}\n", token)))
    assert f"added web to {file.path}: reload the daemons that use it (SIGHUP)\n" == said
    found = tokens.read(str(file.path)).find(token.strip(), NOW)
    assert found is not None
    assert ("web", ((Role.PUBLISH, "clicks*"),)) == (found.name, found.grants)

    assert 0 == file.run("make", "anybody", "read")[0]
    status, listed, _ = file.run("list")

    assert 0 == status
    assert [
        ["NAME", "ROLES", "ID", "LAST", "DAY"],
        ["web", "publish:clicks*", found.digest.hex()[:12], "2030-01-01"],
        ["anybody", "read", "-"],
    ] == [line.split() for line in listed.splitlines()]
    assert token.strip() not in file.path.read_text()
    assert Role.READ == tokens.read(str(file.path)).anybody[0].role


def test_without_a_file_the_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The token is on standard output, its line on stderr; nsqadmin's has another prefix."""
    assert 0 == main(["make", "--nsqadmin", "ann", "administer,bodies"])
    token, line = capsys.readouterr()
    assert token.startswith("nsqadmin_")
    parsed = tokens.parse("", line, ADMINS_FORM)
    assert parsed.find(token.strip(), NOW) is not None


def test_a_token_is_removed_by_name_or_by_id(file: TokenCommand) -> None:
    """A name of several tokens is not enough; comments and other lines stay."""
    file.path.write_text("# ours\n\n")
    first = file.run("make", "web", "read")[1].strip()
    second = file.run("make", "web", "consume", "2030-01-01")[1].strip()
    ids = [tokens.digest(one).hex()[:12] for one in (first, second)]

    status, out, said = file.run("remove", "web")
    assert (1, "") == (status, out)
    assert f"sparq token remove: 2 tokens web: use the id of one ({', '.join(ids)})\n" == said
    status, _, said = file.run("remove", "wbe")
    assert (1, f"no token wbe in {file.path}: it has web\n" in said) == (status, True)
    assert 0 == file.run("remove", ids[0])[0]
    found = tokens.read(str(file.path))
    assert [None, "web"] == [one and one.name for one in map(found.find, (first, second))]
    assert 0 == file.run("remove", "web")[0]
    assert "# ours\n\n" == file.path.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("make", "web", "boss"), "'boss' is not a role: use read, bodies, operate"),
        (("make", "web", "publish:a/b"), "role publish: invalid topic pattern"),
        (("make", "web", "read:t", "--nsqadmin"), "roles apply to all topics here"),
        (("make", "web", "read", "soon"), "'soon' is not a date: write it as 2027-03-31"),
        (("make", "web", "read", "2020-01-01"), "2020-01-01 has passed"),
        (("make", "anybody", "operate"), "anybody has no token and at most the role read"),
        (("make", "web"), "takes NAME ROLES [LAST_DAY], not web"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    file: TokenCommand, words: tuple[str, ...], sentence: str
) -> None:
    """The roles and days are checked as the daemons check them."""
    file.path.write_text("# ours\n")
    status, out, said = file.run(*words)
    assert (1, "", 1) == (status, out, said.count("\n"))
    assert said.startswith(f"sparq token make: {sentence}")
    assert "# ours\n" == file.path.read_text()
    assert [file.path] == [*file.path.parent.iterdir()]


def test_a_file_that_the_daemons_refuse_is_left_as_it_is(file: TokenCommand) -> None:
    """The line is named, and a token in the wrong column is not repeated."""
    token = tokens.make("a", "read")[0]
    file.path.write_text(f"a {token} {'0' * 64}\n")
    for words in (("make", "web", "read"), ("list",), ("remove", "a")):
        status, out, said = file.run(*words)
        assert (1, "") == (status, out)
        assert f"{file.path}, line 1: a long word is not a role" in said
        assert token not in said
    assert file.path.read_text().startswith("a nsq_")


def test_an_expired_token_is_marked(file: TokenCommand) -> None:
    """`list` says so; `--file` is required."""
    file.path.write_text(tokens.make("old", "read", "2020-01-01")[1])
    assert file.run("list")[1].splitlines()[1].endswith("2020-01-01  expired")
    with pytest.raises(SystemExit):
        main(["list"])
    assert "sparq token list: --file is required" in file.capsys.readouterr().err


def test_a_token_that_cannot_be_printed_is_named(
    file: TokenCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has the token then, so its line is of no use."""
    monkeypatch.setattr("sparq.daemon.access.command.write_stdout", lambda _text: False)
    status, _, said = file.run("make", "web", "read")
    assert (1, "the token is lost: remove its line" in said) == (status, True)


def line(name: str) -> str:
    return tokens.make(name, "read")[1]


def add(line: str) -> Edit:
    return lambda lines, _tokens: [*lines, line]


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
    change(str(link), FORM, add(line("new")))
    facts = path.stat()
    assert (0o640, owner) == (stat.S_IMODE(facts.st_mode), (facts.st_uid, facts.st_gid))
    assert link.is_symlink()
    assert 2 == len(tokens.read(str(path)))
    assert {path, link} == {*path.parent.iterdir()}


def test_a_new_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """A token file that is not there yet is made with mode 0600."""
    path = tmp_path / "new"
    change(str(path), FORM, add(line("web")))
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_changes_at_once_are_made_one_after_the_other(path: Path) -> None:
    """No change undoes another one, and none is refused."""
    words = [sys.executable, "-m", "sparq.cli", "token", "make"]
    waiting: list[subprocess.Popen[bytes]] = []

    def edit(lines: list[str], _tokens: object) -> list[str]:
        for name in "bcd":
            command = [*words, name, "read", f"--file={path}"]
            quiet = subprocess.DEVNULL
            waiting.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        wait_for(lambda: all(waits_for_a_lock(one.pid) for one in waiting))
        return [*lines, line("a")]

    change(str(path), FORM, edit)
    assert [0, 0, 0] == [one.wait(60) for one in waiting]
    names = [one.name for one in tokens.read(str(path)).lines]
    assert (["web", "a"], set("bcd")) == (names[:2], set(names[2:]))
    assert [path] == [*path.parent.iterdir()]


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process waits for a lock on a file."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in lock and str(pid) in lock.split() for lock in locks)


def test_what_the_daemons_would_refuse_is_not_written(path: Path) -> None:
    """The old file stays: a token twice, a line with a mistake, a file that all may write."""
    before = path.read_text()
    for more in (before.splitlines()[1], "web boss 00"):
        with pytest.raises(TokenFileError, match="line 3"):
            change(str(path), FORM, add(more))
    assert before == path.read_text()
    path.chmod(0o666)
    with pytest.raises(TokenFileError, match="chmod o-w"):
        change(str(path), FORM, add(line("new")))
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
