"""The units of deploy/systemd are valid, and the daemons work within their restrictions."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.options.declare import flags_of
from sparq.program.flags import parse
from sparq.protocol.commands import pub
from tests.support import strace
from tests.support.options import value
from tests.support.servers import spawn_nsqd
from tests.support.v2_client import OK, V2Client

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAMS = {"nsqadmin": NsqadminOptions, "nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions}
EXPOSURE_MAX = 20
"""In tenths, of 100: systemd calls less than 30 "OK", and a unit without settings has 96."""
CALL = re.compile(r"^\d+ +(\w+)\(", re.M)
SOCKET = re.compile(r"\bsocket\((AF_\w+)")


@cache
def calls_of(group: str) -> frozenset[str]:
    """The system calls in one of systemd's groups, and in the groups within it."""
    said = run("systemd-analyze", "syscall-filter", group).stdout
    words = [line.strip() for line in said.splitlines()[1:]]
    names = {word for word in words if word and word[0] not in "#@"}
    return frozenset(names).union(*(calls_of(word) for word in words if word.startswith("@")))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def settings(unit: Path, key: str) -> list[str]:
    """The values of a key of a unit, in order."""
    found = re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.M)
    return [str(value) for value in found]


@pytest.fixture(scope="module")
def _systemd() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")


@pytest.mark.usefixtures("_systemd")
def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` reports nothing, with the path of the programs replaced."""
    here = str(Path(sys.executable).parent).replace(" ", r"\x20")  # as systemd writes a space
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        assert "/opt/sparq/bin/" in text
        (tmp_path / unit.name).write_text(text.replace("/opt/sparq/bin", here))
    names = [unit.name.replace("@.", "@1.") for unit in UNITS]

    verified = run("systemd-analyze", "verify", *(str(tmp_path / name) for name in names))

    assert (0, "", "") == (verified.returncode, verified.stdout, verified.stderr)


@pytest.mark.usefixtures("_systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_units_exposure_is_low(unit: Path) -> None:
    """A unit's exposure, as measured by systemd, is at most 2.0 of 10."""
    command = ("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}")
    measured = run(*command, str(unit))
    if "unrecognized option" in measured.stderr:
        pytest.skip("needs systemd 250 or newer, which measures units that are not installed")

    assert 0 == measured.returncode, measured.stdout[-200:] + measured.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_daemon_accepts_execstart_and_the_sample_file(unit: Path) -> None:
    """The daemon accepts ExecStart, with the sample file as configuration."""
    (start,) = settings(unit, "ExecStart")
    program, *words = shlex.split(start)
    options = PROGRAMS[Path(program).name]
    sample = DEPLOY / f"{unit.stem.rstrip('@')}.toml"
    own = sample.name.replace(".", "-%i.") if unit.stem.endswith("@") else sample.name
    assert f"--config=/etc/nsq/{own}" in words
    words = [re.sub(r"^--config=.*", f"--config={sample}", word) for word in words]
    keys = {flag.key for flag in flags_of(options)}

    taken: Any = parse(options, sample.stem, words)

    assert set() == set(tomllib.loads(sample.read_text(encoding="utf-8"))) - keys
    if sample.stem == "nsqadmin":
        assert all(":4161" in address for address in taken.lookupd_http_addresses)
    else:
        assert value(taken, "broadcast_address").endswith(".example")
    assert settings(unit, "ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert settings(unit, "Type") == ["notify"]


@pytest.mark.usefixtures("_systemd")
def test_nsqd_makes_only_allowed_system_calls(tmp_path: Path) -> None:
    """Started, used over TCP and HTTP, reloaded and stopped, nsqd makes only allowed calls."""
    if lack := strace.missing():
        pytest.skip(lack)
    record = tmp_path / "calls"
    prefix = (*strace.QUIET, "-o", str(record))
    with spawn_nsqd(tmp_path, "--max-bytes-per-file=4096", prefix=prefix) as server:
        with V2Client(server) as line:
            assert all(line.ask(pub("t", b"x" * 1000)) == OK for _ in range(8))
        server.post("/channel/create?topic=t&channel=c")
        server.post("/topic/delete?topic=t")
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        server.request("GET", "/metrics")
        assert 0 == server.terminate()

    (unit,) = (unit for unit in UNITS if unit.stem == "nsqd")
    text = record.read_text(errors="replace")
    allowed = frozenset[str]().union(*map(calls_of, settings(unit, "SystemCallFilter")))
    made = set(CALL.findall(text))

    assert {"fdatasync", "accept4"} <= made
    assert set() == made - allowed
    assert set(SOCKET.findall(text)) <= set(settings(unit, "RestrictAddressFamilies")[0].split())
