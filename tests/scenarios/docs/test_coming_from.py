"""docs/coming_from.md: the programs of each library and those of sparq print the same.

Programs of other libraries run in the environments of the interop tests; Go's need a Go with
go-nsq.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.docs.examples import DOCS
from tests.scenarios.docs.running import run_command, run_sparq
from tests.scenarios.interop.environments import Missing, client_command
from tests.support.servers import NsqdServer, spawn_nsqd

TEXT = (DOCS / "coming_from.md").read_text(encoding="utf-8")
LIBRARIES = ("pynsq", "gnsq", "go-nsq")
PRINTED = ("published OK\n", "handled b'hello'\n")
BLOCK = re.compile(r"^```(?:python|go)\n(.*?)^```$", re.M | re.S)
BUILD_SECONDS = 120.0
GO = {**os.environ, "GO111MODULE": "off"}


def programs(library: str) -> list[str]:
    """A section's programs: the library's publisher, sparq's, the library's worker, sparq's."""
    _, section = TEXT.split(f"\n## {library}\n")
    return BLOCK.findall(section.partition("\n## ")[0])


def command(library: str, text: str, folder: Path) -> list[str]:
    """The command that runs a program of another library, which is written to the folder.

    Raises:
        Missing: something that it needs is not installed.
    """
    (folder / ("program.go" if library == "go-nsq" else "program.py")).write_text(text)
    if library != "go-nsq":
        return [client_command(library)[0][0], "program.py"]
    found = shutil.which("go") and go_program("list", "github.com/nsqio/go-nsq", folder=folder)
    if not found or found.returncode:
        raise Missing("Go, with go-nsq in its GOPATH")
    built = go_program("build", "-o", "program", "program.go", folder=folder)
    assert built.returncode == 0, built.stderr
    return ["./program"]


def go_program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *words],
        cwd=folder,
        env=GO,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd for all; every pair of programs has a separate topic."""
    with spawn_nsqd(tmp_path_factory.mktemp("coming")) as server:
        yield server


@pytest.mark.parametrize("side", ["theirs", "ours"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_programs_work_as_the_page_describes(
    library: str, side: str, nsqd: NsqdServer, tmp_path: Path
) -> None:
    """The publisher gets OK; the worker handles and finishes the message once; Ctrl-C ends it."""
    topic = f"{library}_{side}".replace("-", "_")
    for program, expected in zip(programs(library)[side == "ours" :: 2], PRINTED, strict=True):
        here = program.replace("127.0.0.1:4150", nsqd.tcp).replace("clicks", topic)
        if side == "ours":
            ran = run_sparq(here, expected, tmp_path, waits=expected == PRINTED[1])
            assert ran.unexpected_errors == ""
        else:
            try:
                words = command(library, here, tmp_path)
            except Missing as missing:
                pytest.skip(f"needs {missing}")
            ran = run_command(words, expected, tmp_path, waits=expected == PRINTED[1])
        assert (0, expected) == (ran.status, ran.output), ran.errors

    channel = nsqd.channel(topic, "worker")
    assert (1, 0) == (channel["finish_count"], channel["depth"])
