"""D-3: files are private, and daemons need no privileges."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol.commands import dpub, pub, sub
from tests.support.go_data import GoQueue
from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import OK, V2Client, drain
from tests.support.waiting import wait_for

NOBODY = 65_534
GROUP_AND_OTHERS = 0o077


@pytest.fixture
def _open_umask() -> Iterator[None]:
    """A umask of 0, as a careless start script may leave it."""
    before = os.umask(0)
    yield
    os.umask(before)


def use(server: NsqdServer) -> None:
    """Make nsqd create files of every kind: logs, ledgers, metadata, trash."""
    with V2Client(server) as line:
        assert line.ask(sub("t", "c")) == OK
        for topic in ("t", "gone", "e#ephemeral"):
            assert line.ask(pub(topic, b"x" * 1000)) == OK
            assert line.ask(dpub(topic, 1, b"soon")) == OK
    for path in ("/channel/create?topic=t&channel=d", "/topic/delete?topic=gone"):
        server.post(path)
    drain(server, "t", "c")


def modes(folder: Path) -> dict[Path, int]:
    """Return the permissions of the folder and everything in it."""
    found = [folder, *folder.rglob("*")]
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in found}


def own(folder: Path) -> dict[Path, int]:
    """Return the permissions of nsqd's files, without the log, which the test creates."""
    return {p: m for p, m in modes(folder).items() if p != folder and p.name != "nsqd.log"}


@pytest.mark.usefixtures("_open_umask")
def test_files_are_private(tmp_path: Path) -> None:
    """Folders have mode 0700 and files 0600 whatever the umask, also after restarts."""
    with spawn_nsqd(tmp_path, "--max-bytes-per-file=4096") as server:
        use(server)
        server.restart(gracefully=True)
        use(server)
        server.restart()
        found = own(tmp_path / "nsqd")
    kinds = {path.suffix or path.name.partition("-")[0] for path in found}
    assert {".log", ".json", "ledger"} <= kinds
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))
    assert not any(path.is_symlink() for path in found)


@pytest.mark.usefixtures("_open_umask")
def test_imported_files_are_private(tmp_path: Path) -> None:
    """Data imported from Go's nsqd, whose files were not private, becomes private."""
    folder = tmp_path / "nsqd"
    folder.mkdir()
    GoQueue(folder, "t").put(b"one", b"two").close()
    (folder / "nsqd.dat").write_text('{"topics":[{"name":"t","channels":[]}],"version":"1.3.0"}')
    with spawn_nsqd(tmp_path) as server:
        # Finished messages are deleted soon, with their file: it is checked before that.
        made = {path: mode for path, mode in own(folder).items() if "topics" in path.parts}
        assert drain(server, "t", "c") == [b"one", b"two"]
    assert any(path.suffix == ".log" for path in made)
    assert [] == [path for path, mode in made.items() if mode & GROUP_AND_OTHERS]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """nsqd does not follow a symlink in its data path, neither to read nor to write."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    with spawn_nsqd(tmp_path) as server:
        use(server)
        server.terminate()
        for ledger in (tmp_path / "nsqd" / "topics" / "t-t").glob("ledger-*"):
            ledger.unlink()
            ledger.symlink_to(precious)
        server.launch()
        # /ping reports the topic that cannot be opened, so it does not answer with 200.
        wait_for(lambda: _status(server, "/info") == 200)
        assert _status(server, "/ping") == 500
        assert b"PUB_FAILED" in server.request("POST", "/pub?topic=t", b"x")[1]
        assert server.request("POST", "/pub?topic=other", b"x") == (200, b"OK")
    assert b"precious" == precious.read_bytes()


def _status(server: NsqdServer, path: str) -> int:
    try:
        return server.request("GET", path)[0]
    except OSError:
        return 0


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that any user may enter, unlike the test's own."""
    folder = Path(tempfile.mkdtemp(prefix="sparq-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_daemons_need_no_privilege(reachable: Path) -> None:
    """nsqd and nsqlookupd work and exit cleanly as user nobody, without capabilities."""
    prefix: tuple[str, ...] = ()
    for name in ("nsqd", "nsqlookupd"):
        (reachable / name).mkdir()
    if os.geteuid() == 0:
        prefix = as_nobody()
        os.chown(reachable / "nsqd", NOBODY, NOBODY)
    with (
        spawn_nsqlookupd(reachable) as lookupd,
        spawn_nsqd(reachable, lookupds=(lookupd,), prefix=prefix) as server,
    ):
        status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
        facts = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        assert "0" not in facts["Uid"].split()
        assert 0 == int(facts["CapEff"], 16) == int(facts["CapPrm"], 16)
        use(server)
        server.restart()
        use(server)
        assert 0 == server.terminate()


def as_nobody() -> tuple[str, ...]:
    """Return the command prefix that runs a program as nobody; skip the test if that fails."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv, to run as nobody")
    words = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
    words = (*words, "--inh-caps=-all", "--bounding-set=-all")
    tried = subprocess.run([*words, sys.executable, "-c", "import sparq.nsqd.main"], check=False)
    if tried.returncode:
        pytest.skip("needs a copy of sparq that nobody can read")
    return words
