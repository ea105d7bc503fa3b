"""The shell blocks of README.md, run as they are: a queue in a minute, a cluster on one screen.

Each block is run as if it was pasted, so a command may run before its daemon listens. Only the
installation and the ports are changed: the programs are this checkout's, and each port becomes a
free one; `4${n}50`, the form of the ports of three nsqds, becomes another form for three free ones.
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

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PORTS = ("4160", "4161", "4171", "5160", "5161")
WAIT_SECONDS = 60


def block(heading: str) -> str:
    """The indented lines of a section; the first may be the installation."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))


def is_free(port: int) -> bool:
    """Whether the port is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


DEFAULTS = {
    'nsqd --data-path="': "--tcp-address=127.0.0.1:4150 --http-address=127.0.0.1:4151",
}
"""The default addresses of daemons that the page starts without flags for them."""


def with_free_ports(script: str) -> str:
    """The script with free ports.

    Of ports such as `4${n}50`, those with n = 1, 2, 3 are free.
    """
    for command, addresses in DEFAULTS.items():
        program = command.split()[0]
        script = script.replace(command, command.replace(program, f"{program} {addresses}"))
    head = random.choice(
        [
            head
            for head in range(20, 32)
            if all(is_free(1000 * head + 100 * n + tail) for n in (1, 2, 3) for tail in (50, 51))
        ]
    )
    others = (port for port in iter(lambda: random.randrange(2000, 9999), None) if is_free(port))
    taken = {"4150": f"{head}150", "4151": f"{head}151", "4${n}5": f"{head}${{n}}5"}
    for port in PORTS:
        taken[port] = str(next(port for port in others if str(port) not in taken.values()))
    return re.sub("|".join(map(re.escape, taken)), lambda found: taken[found[0]], script)


def run(script: str, folder: Path) -> str:
    """Run the script and end the daemons it leaves running; returns its output."""
    bins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": bins, "TMPDIR": str(folder)}
    with (folder / "output").open("wb") as output, (folder / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=folder,
            env=environment,
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


def test_the_block_a_queue_in_a_minute(tmp_path: Path) -> None:
    """nsqd starts and accepts a message, and a consumer gets it."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    script = "\n".join(block("A queue in a minute").splitlines()[1:])

    assert "pip install" not in script
    assert run(with_free_ports(script), tmp_path) == "OKhello world\n"


def test_the_block_a_cluster_on_one_screen(tmp_path: Path) -> None:
    """Through nsqlookupd, a consumer finds three nsqds and gets the messages of each."""
    printed = run(with_free_ports(block("A cluster on one screen")), tmp_path)

    assert sorted(printed.split(), key=int) == [
        str(number) for number in range(1, 101) for _ in "123"
    ]


def test_the_block_about_looking_at_a_cluster(tmp_path: Path) -> None:
    """In the cluster of the page, each command finds the topic, the channel and the messages."""
    cluster = block("A cluster on one screen").partition("\nkill ")[0]
    look = block("Look at a cluster, and manage it")

    printed = run(with_free_ports(f"{cluster}\necho ----\nset -e\n{look}"), tmp_path)

    shown = printed.partition("----\n")[2]
    assert "peek greetings hello" in look
    assert shown.count("greetings") > 3, shown
    assert len(re.findall(r"(?<!\d)42(?!\d)", shown)) >= 3, shown
