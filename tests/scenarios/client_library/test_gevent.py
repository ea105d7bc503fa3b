"""The blocking API in a program that gevent has patched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.interop.environments import Missing, client_command
from tests.support.servers import spawn_nsqd

PROGRAM = """
import sys
address, packages, patches = sys.argv[1:]
sys.path.append(packages)
from gevent import monkey
monkey.patch_all(thread=patches == "threads")
import sparq
with sparq.connect(address) as session:
    session.producer().publish("t", b"hello")
    print(session.consumer("t", "c").receive(30).body)
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder with gevent: that of gnsq's environment, which needs it."""
    try:
        [python, _], _ = client_command("gnsq")
    except Missing:
        pytest.skip("needs gevent")
    return next(Path(python).parents[1].glob("lib/python*/site-packages"))


def test_gevents_patched_threads_are_refused_at_once(packages: Path, tmp_path: Path) -> None:
    """After `monkey.patch_all()` a session raises an error; the remedy that it names works."""
    with spawn_nsqd(tmp_path) as nsqd:

        def run(patches: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", PROGRAM, nsqd.tcp, str(packages), patches]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        refused, done = run("threads"), run("the rest")

    assert "RuntimeError: 'gevent' has replaced Python's threads" in refused.stderr
    assert "patch_all(thread=False)" in refused.stderr
    assert ("b'hello'\n", 0) == (done.stdout, done.returncode), done.stderr
