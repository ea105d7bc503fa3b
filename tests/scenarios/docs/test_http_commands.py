"""The commands of docs/http.md and docs/policies.md, run in order with a real nsqd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import NsqdServer, spawn_nsqd

DOCS = Path(__file__).parents[3] / "docs"

STRICT = 'curl() { command curl -sS --fail-with-body "$@"; }\n'
"""Makes curl, and thereby the command, fail if a request is refused."""


def commands(page: str) -> list[tuple[str, str]]:
    """Each command of a page with the output it shows; empty: it shows none."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def run(nsqd: NsqdServer, command: str, folder: Path) -> str:
    command = command.replace("127.0.0.1:4151", nsqd.http)
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", STRICT + command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (0, ""), (command, done.stdout, done.stderr)
    return done.stdout


def with_zeros(text: str) -> str:
    """A text with every number replaced by 0: numbers differ from run to run."""
    return re.sub(r"\d+", "0", text).rstrip("\n")


@pytest.mark.parametrize(("name", "least"), [("http.md", 8), ("policies.md", 4)])
def test_each_command_does_what_the_page_shows(tmp_path: Path, name: str, least: int) -> None:
    """Each command succeeds, and its output matches the page apart from numbers."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    page = (DOCS / name).read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S):
        (tmp_path / "policies.toml").write_text(block)
    with spawn_nsqd(tmp_path) as nsqd:
        ran = [
            (command, run(nsqd, command, tmp_path), output) for command, output in commands(page)
        ]

    assert len(ran) >= least
    for command, printed, output in ran:
        if output:
            assert with_zeros(printed) == with_zeros(output), command
        if "seek" in command:
            assert '"older_are_gone":false' in printed
