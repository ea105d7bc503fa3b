"""The steps of docs/operating.md ("Install") and docs/access.md ("Turn it on"), word for word.

They run as root in a fresh root: an overlay over this machine's file system, in which /opt/sparq
has been installed from the wheel. `systemctl` there starts the daemons with the users, folders and
file systems that their units name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.deploy.building import Stages
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX, ROOT, Missing
from tests.support.waiting import wait_for

STAGE = "nsqd-packages"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DAEMONS = ("nsqlookupd", "nsqd")
HOSTS = "127.0.0.1 localhost nsqd-1.example lookupd-1.example\n"
EDITED = "sed -i 's/, \"lookupd-2.example:[0-9]*\"//' /etc/nsq/*.toml\n"
"""What the operator edits in the sample files: there is one nsqlookupd."""

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


def blocks(page: str, heading: str) -> list[str]:
    """The commands of a section: its fenced blocks without a language."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"\n```\n(.*?)\n```\n", section, re.S)


class Machine:
    """The fresh root, with /opt/sparq."""

    def __init__(self, stages: Stages) -> None:
        self._chroot = (*stages.prefix, "chroot", str(stages.merged(STAGE)))
        self.root = stages.seen(STAGE)

    def run(self, text: str, *, status: int = 0) -> str:
        """Run commands as root, in the checkout; return their standard output."""
        command = [*self._chroot, "env", "-i", "-C", str(ROOT), PATH, "sh", "-ec", text]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert status == ran.returncode, (text, ran.stdout, ran.stderr, self.logs())
        return ran.stdout

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def facts(self, name: str) -> tuple[str, int, int]:
        """A file's mode, and the numbers of its owner and group."""
        found = self.path(name).stat()
        return oct(stat.S_IMODE(found.st_mode)), found.st_uid, found.st_gid

    def logs(self) -> str:
        """The logs of the daemons."""
        return "".join(path.read_text() for path in self.path("/run").glob("nsq*.log"))

    def kill(self) -> None:
        """End the daemons."""
        for file in self.path("/run").glob("nsq*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A fresh root with the steps of docs/operating.md done."""
    with contextlib.ExitStack() as stack:
        try:
            stages = stack.enter_context(Stages(STAGE, tmp_path))
        except Missing as missing:
            pytest.skip(f"needs {missing}")
        found = Machine(stages)
        stack.callback(found.kill)
        program = Path(__file__).with_name("systemctl.py").read_text(encoding="utf-8")
        found.path("/base/systemctl.py").write_text(program)
        place = found.path("/usr/local/bin/systemctl")
        place.write_text('#!/bin/sh\nexec /base/python /base/systemctl.py "$@"\n')
        place.chmod(0o755)
        found.path("/etc/hosts").write_text(HOSTS)
        (install, *_) = blocks("operating.md", "Install")
        # The first lines are those of deploy/Dockerfile, which the stage has run.
        links, last, start = ("ln -s " + install.partition("\nln -s ")[2]).rpartition(
            "\nsystemctl e"
        )
        found.run(f"{links}\n{EDITED}{last}{start}")
        yield found


def test_the_steps_turn_access_control_on(machine: Machine) -> None:
    """The daemons can read their files and write their audit; each token can do its part alone."""
    make, turn_on, change = blocks("access.md", "Turn it on")
    shown = machine.run(make)
    web, archive = re.findall(r"^nsq_\S+$", shown, re.M)
    listed = machine.run(turn_on)

    group = int(machine.run("id -g nsq"))
    names = ("tokens", "lookupd_token", "nsqadmin_token")
    assert [("0o640", 0, group)] * 3 == [machine.facts(f"/etc/nsq/{name}") for name in names]
    assert ["nsqds", "nsqadmin", "web", "archive"] == re.findall(
        r"^(\w+) .* [0-9a-f]{12}$", shown, re.M
    )
    assert listed.startswith("TOPIC ")

    publish = (
        "echo hello | to_nsq --nsqd-tcp-address=127.0.0.1:4150 --producer-opt=auth_without_tls"
    )
    machine.run(f"{publish} --topic=clicks --producer-opt=auth_secret,{web}")
    machine.run(f"{publish} --topic=other --producer-opt=auth_secret,{web}", status=1)
    consume = "nsq_tail --nsqd-tcp-address=127.0.0.1:4150 --n=1 --channel=c --topic=clicks"
    consume += f" --consumer-opt=auth_without_tls --consumer-opt=auth_secret,{archive}"
    assert "hello\n" == machine.run(consume)

    get = "/base/python -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read())'"
    wait_for(lambda: "clicks" in machine.run(f"{get} http://127.0.0.1:4171/api/topics"), 20)
    machine.run(f"{get} http://127.0.0.1:4151/stats 2> /tmp/refused", status=1)
    assert "401" in machine.path("/tmp/refused").read_text()

    user = int(machine.run("id -u nsq"))
    for name in DAEMONS:
        assert ("0o700", user, group) == machine.facts(f"/var/log/{name}")
        assert ("0o600", user, group) == machine.facts(f"/var/log/{name}/audit.jsonl")
    entries = machine.path("/var/log/nsqd/audit.jsonl").read_text().splitlines()
    assert ("web", "PUB", "refused", "other") == tuple(
        json.loads(entries[0])[key] for key in ("user", "action", "outcome", "topic")
    )

    machine.run(change)
    assert ("0o640", 0, group) == machine.facts("/etc/nsq/tokens")
    read = "tokens were read again: {} are valid"
    for name in DAEMONS:
        log = machine.path(f"/run/{name}.log")
        wait_for(lambda at=log: read.format(4) in at.read_text(), 20, machine.logs)
        assert read.format(5) in log.read_text()
