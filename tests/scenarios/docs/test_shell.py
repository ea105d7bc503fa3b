"""The shell lines of README.md and of docs/http.md, policies.md and operating.md, run as they are.

Only the installation, the ports and the folders are changed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.scenarios.docs import pages
from tests.support.servers import NsqdServer, free_port, spawn_nsqd

WAIT_SECONDS = 60
STRICT = 'curl() { command curl -sS --fail-with-body "$@"; }\n'
"""Makes curl, and thereby the command, fail if a request is refused."""

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def readme(heading: str) -> str:
    """The indented lines of a section of README.md, without an installation."""
    lines = pages.section("README.md", heading).splitlines()
    return "\n".join(line[4:] for line in lines if line.startswith("    ") and "pip" not in line)


def is_free(port: int) -> bool:
    """Whether the port is free now."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def with_free_ports(script: str) -> str:
    """The script with free ports; of ports such as `4${n}50`, those with n = 1, 2, 3 are free."""
    script = script.replace(
        'nsqd --data-path="',
        'nsqd --tcp-address=127.0.0.1:4150 --http-address=127.0.0.1:4151 --data-path="',
    )
    tails = [100 * n + tail for n in (1, 2, 3) for tail in (50, 51)]
    heads = [h for h in range(20, 32) if all(is_free(1000 * h + tail) for tail in tails)]
    head = random.choice(heads)
    taken = {"4150": f"{head}150", "4151": f"{head}151", "4${n}5": f"{head}${{n}}5"}
    taken |= {port: str(free_port()) for port in ("4160", "4161", "4171", "5160", "5161")}
    return re.sub("|".join(map(re.escape, taken)), lambda found: taken[found[0]], script)


def run_shell(script: str, folder: Path) -> str:
    """Run the script and end the daemons it leaves running; returns its output."""
    bins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "output").open("wb") as output, (folder / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": bins, "TMPDIR": str(folder)},
            stdout=output,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = shell.wait(WAIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    assert status == 0, (folder / "log").read_text()
    return (folder / "output").read_text()


@needs_curl
def test_the_readmes_queue_in_a_minute(tmp_path: Path) -> None:
    """nsqd starts and accepts a message, and a consumer gets it."""
    printed = run_shell(with_free_ports(readme("A queue in a minute")), tmp_path)

    assert printed == "OKhello world\n"


def test_the_readmes_cluster_and_the_looks_at_it(tmp_path: Path) -> None:
    """Each command finds topic, channel and messages; a consumer gets those of three nsqds."""
    cluster, kill, after = readme("A cluster on one screen").partition("\nkill ")
    look = readme("Look at a cluster, and manage it")

    printed = run_shell(
        with_free_ports(f"{cluster}\necho ----\nset -e\n{look}\n{kill}{after}"), tmp_path
    )

    numbers, _, shown = printed.partition("----\n")
    assert sorted(numbers.split(), key=int) == [str(n) for n in range(1, 101) for _ in "123"]
    assert shown.count("greetings") > 3, shown
    assert len(re.findall(r"(?<!\d)42(?!\d)", shown)) >= 3, shown


def run(nsqd: NsqdServer, command: str, folder: Path) -> str:
    """Run a command with this nsqd's address; returns its output."""
    command = command.replace("127.0.0.1:4151", nsqd.http)
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", STRICT + command],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (0, ""), (command, done.stdout, done.stderr)
    return done.stdout


@needs_curl
@pytest.mark.parametrize(("page", "least"), [("docs/http.md", 8), ("docs/policies.md", 4)])
def test_each_request_does_what_the_page_shows(tmp_path: Path, page: str, least: int) -> None:
    """Each command succeeds, and its output matches the page apart from numbers."""
    text = pages.text_of(page)
    for block in pages.blocks(text, "toml"):
        (tmp_path / "policies.toml").write_text(block)
    found = pages.commands(text)

    with spawn_nsqd(tmp_path) as nsqd:
        for command, output in found:
            printed = run(nsqd, command, tmp_path)
            assert not output or pages.with_zeros(printed) == pages.with_zeros(output), command

    assert len(found) >= least
