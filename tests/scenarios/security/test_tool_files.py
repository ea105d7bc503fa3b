"""S-2: tools check names again, and write files only in their folder. D-4: bodies are bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sparq.protocol.names import is_valid_name
from sparq.tools import commands, nsq_tail, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq
from tests.scenarios.security.test_names import NASTY
from tests.support.servers import NsqdServer, spawn_nsqd

TOOLS: dict[ModuleType, list[str]] = {
    nsq_tail: [],
    nsq_to_file: [],
    nsq_to_http: ["--post=http://127.0.0.1:1/"],
    nsq_to_nsq: ["--destination-nsqd-tcp-address=127.0.0.1:2"],
    to_nsq: [],
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """The nsqd with the malicious topics."""
    with spawn_nsqd(tmp_path_factory.mktemp("nasty")) as server:
        yield server


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_checks_names_again(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tool rejects an invalid topic in one line, before it connects or creates anything."""
    run = getattr(commands, tool.__name__.rpartition(".")[2])
    for name in [name for name in NASTY if name and not is_valid_name(name)]:
        words = ["--nsqd-tcp-address=127.0.0.1:1", *TOOLS[tool]]
        if tool is nsq_to_file:
            words.append(f"--output-dir={tmp_path}/out")
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(run([*words, f"--topic={name}"]))
        said = capsys.readouterr().err
        assert (1, 1) == (ended.value.code, said.count("\n"))
        assert "name" in said
    assert [] == os.listdir(tmp_path)
