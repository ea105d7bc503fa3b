"""Counts the source files that a message passes in nsq_to_file, from its flags to its file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.servers import spawn_nsqd

FILES_MAX = 25

# Calls while a module is loaded do not count: the function below it on the stack only imports it.
TRACED = """
import os, signal, sys, threading
import sparq
from sparq import scripts

SPARQ = os.path.dirname(sparq.__file__) + os.sep
OPTIMIZED = 1  # of functions, not of modules and classes
files = set()


def is_loading(frame):
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename != "<string>"


def note(frame, event, _):
    code = frame.f_code
    if "finished" in files or not code.co_filename.startswith(SPARQ):
        return
    if event == "return" and code.co_name == "_finish":  # after the sync
        files.add("finished")
        os.kill(os.getpid(), signal.SIGTERM)
    elif event == "call" and code.co_flags & OPTIMIZED and not is_loading(frame):
        files.add(code.co_filename.removeprefix(SPARQ))


threading.setprofile(note)
sys.setprofile(note)
status = scripts.nsq_to_file(sys.argv[1:])
sys.setprofile(None)
print(*sorted(files - {"finished"}))
sys.exit(status)
"""


def test_a_message_passes_few_files(tmp_path: Path) -> None:
    """From the flags to the written and synced file, functions of at most FILES_MAX files run."""
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=nsq_to_file")
        nsqd.post("/pub?topic=t", b"a message")
        flags = [f"--nsqd-tcp-address={nsqd.tcp}", "--topic=t", "--filename-format=written"]
        # With one message in flight, each is synced and finished at once.
        flags += [f"--output-dir={tmp_path}", "--max-in-flight=1"]
        command = [sys.executable, "-c", TRACED, *flags]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (0, b"a message\n") == (ran.returncode, (tmp_path / "written").read_bytes()), ran.stderr
    files = ran.stdout.split()
    assert "tools/nsq_to_file.py" in files
    assert len(files) <= FILES_MAX, files
