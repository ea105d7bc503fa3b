"""Completion of verbs, flags and names of a cluster, also in real shells."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq import cli
from sparq.tools.admin import completion
from sparq.tools.admin.completion import SHELLS, candidates
from sparq.tools.admin.verbs import VERBS
from tests.tools.admin.conftest import Cluster, Run
from tests.tools.admin.shells import Shell

ROOT = Path(__file__).parents[3]
TYPED = {
    "sparq to": "sparq to",
    "sparq tok": "sparq token ",
    "sparq token rem": "sparq token remove ",
    "nsqd --data-p": "nsqd --data-path=",
    "nsqd --data-path=/et": "nsqd --data-path=/etc/",
    "nsq_tail --print": "nsq_tail --print-topic ",
    "sparq ad": "sparq admin ",
    "sparq admin": "sparq admin ",
    "sparq run ": "sparq run ",
    "sparq admin pau": "sparq admin pause ",
    "sparq admin pause cl": "sparq admin pause clicks ",
    "sparq admin pause clicks ": "sparq admin pause clicks archive ",
    "sparq admin pause clicks --dr": "sparq admin pause clicks --dry-run ",
    "sparq admin pause --dry-run cl": "sparq admin pause --dry-run clicks ",
    "sparq admin pause --token=x cl": "sparq admin pause --token=x clicks ",
    "sparq admin find --where='n = 3' cl": "sparq admin find --where='n = 3' clicks ",
    "sparq admin peek --lim": "sparq admin peek --limit=",
    "sparq admin peek clicks --state=de": "sparq admin peek clicks --state=deferred ",
    "sparq admin seek clicks archive last": "sparq admin seek clicks archive last:100 ",
    "sparq admin pause nothing-begins-so": "sparq admin pause nothing-begins-so",
    "sparq admin completion z": "sparq admin completion zsh ",
}


def found(*words: str) -> list[str]:
    """The completion of words after `sparq admin`."""
    return asyncio.run(candidates(["sparq", "admin", *words]))


def test_verbs_and_flags() -> None:
    """Words that begin like the last one are returned; a flag with a value ends in `=`."""
    assert [*VERBS] == found("")
    assert ["pause", "peek", "policies"] == found("p")
    assert ["--dry-run"] == found("pause", "--d")
    assert ["--lookupd-http-address="] == found("pause", "clicks", "--look")
    assert ["--state=deferred"] == found("peek", "--state=de")
    assert ["--format=jsonl", "--format=csv"] == found("export", "--format=")
    assert ["bash"] == found("completion", "b")
    assert ["latest", "last:100"] == found("seek", "t", "c", "la")
    assert ["-1h"] == found("seek", "t", "c", "-1")
    assert [] == found("nonsense", "t")
    assert [] == found("pause", "a", "b", "c")
    assert ["admin"] == found()


def test_all_programs_are_completed() -> None:
    """Console scripts and commands of `sparq` complete flags that their help pages list."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {*scripts} == {"sparq", *completion.PROGRAMS}
    assert [*cli.COMMANDS] == [*completion.COMMANDS]
    for line, flags in {
        "nsqd --data-p": ["--data-path="],
        "nsq_stat --topic x -ch": ["--channel="],
        "nsq_to_file --gzip": ["--gzip", "--gzip-level="],
        "sparq run --se": ["--seed="],
        "sparq token ": ["make", "list", "remove"],
        "sparq token make web --f": ["--file="],
        "nsqd x": [],
        "ls --all": [],
        "sparq no --x": [],
    }.items():
        assert flags == asyncio.run(candidates(line.split(" "))), line


def test_names_of_the_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics and their channels are completed; for `tombstone` also addresses of nsqds."""
    cluster.recreate("clicks", "archive", dead=False)
    cluster.recreate("orders", "mail", dead=False)

    assert ["clicks"] == found("pause", cluster.flag, "cl")
    assert ["mail"] == found("pause", "orders", "--dry-run", cluster.flag, "")
    nodes = found("tombstone", cluster.flag, "orders", "")
    assert {*cluster.alive, cluster.dead} == {*nodes}
    assert [cluster.nsqds[0].http] == found(
        "tombstone", cluster.flag, "orders", cluster.nsqds[0].http
    )
    flags = [f"--nsqd-http-address={nsqd.http}" for nsqd in cluster.nsqds]
    assert ["orders"] == found("empty", *flags, "ord")
    assert ["mail"] == found("empty", *flags, "orders", "")
    monkeypatch.setenv("SPARQ_LOOKUPD_HTTP_ADDRESS", cluster.lookupd.http)
    assert ["mail"] == found("delete", "orders", "m")


def test_an_unreachable_cluster_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed, and five failing completions take less than 5 s."""
    began = time.monotonic()
    for words in (
        ["pause", "--lookupd-http-address=127.0.0.1:1", ""],
        ["pause", "--lookupd-http-address=nonsense", ""],
        ["pause", "--no-such-flag", ""],
        ["pause", "--token=a b", ""],
        ["pause", ""],
    ):
        assert 0 == completion.start(["sparq", "admin", *words])
    assert ("", "") == capsys.readouterr()
    assert time.monotonic() - began < 5


async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An nsqlookupd that lists names with shell commands."""
    await reader.readuntil(b"\r\n\r\n")
    body = (
        b'{"topics":["$(touch owned)","`id`","a b","ok","x\\u001b[2J"],"producers":'
        b'[{"broadcast_address":"$(touch owned)","hostname":"h","http_port":4151,"tcp_port":4150,'
        b'"version":"1"},{"broadcast_address":"10.0.0.1","hostname":"h","http_port":4151,'
        b'"tcp_port":4150,"version":"1"}],"broadcast_address":"$(touch owned)","http_port":4151}'
    )
    writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


async def test_hostile_names_do_not_reach_the_shell() -> None:
    """Only valid names and addresses are returned."""
    server = await asyncio.start_server(hostile, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        flag = f"--lookupd-http-address=127.0.0.1:{port}"
        words = ["sparq", "admin", "tombstone"]
        assert ["ok"] == await candidates(["sparq", "admin", "pause", flag, ""])
        assert ["10.0.0.1:4151"] == await candidates([*words, flag, "ok", ""])
        given = f"--nsqd-http-address=127.0.0.1:{port}"
        assert [] == await candidates([*words, given, "ok", ""])


def test_each_supported_shell_has_a_script(admin: Run) -> None:
    """Each supported shell has a script; another shell is an error."""
    for shell in completion.SHELLS:
        ran = admin("completion", shell)
        assert (0, completion.SCRIPTS[shell]) == (ran.status, ran.out)
    ran = admin("completion", "tcsh")
    assert (1, "there is no script for this shell: use bash, zsh, fish" in ran.err) == (
        ran.status,
        True,
    )


def sparq_in(folder: Path) -> dict[str, str]:
    """Return an environment in which `sparq` is this checkout."""
    program = folder / "sparq"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sparq.cli "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(cluster: Cluster, tmp_path: Path) -> None:
    """The script works in a real bash: COMP_WORDS in, COMPREPLY out."""
    cluster.recreate("clicks", "archive", dead=False)
    script = r"""
        eval "$(sparq admin completion bash)"
        line() { COMP_LINE=$1 COMP_POINT=${#1}; }
        COMP_WORDS=(sparq admin pause cl); COMP_CWORD=3; line "sparq admin pause cl"
        _sparq sparq cl pause; echo "${COMPREPLY[@]}"
        COMP_WORDS=(sparq admin pause clicks ""); COMP_CWORD=4; line "sparq admin pause clicks "
        _sparq sparq "" clicks; echo "${COMPREPLY[@]}"
        COMP_WORDS=(sparq ad); COMP_CWORD=1; line "sparq ad"
        _sparq sparq ad sparq; echo "${COMPREPLY[@]}"
    """
    environment = {**sparq_in(tmp_path), "SPARQ_LOOKUPD_HTTP_ADDRESS": cluster.lookupd.http}
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ["clicks", "archive", "admin"] == ran.stdout.split()


@pytest.fixture(params=SHELLS)
def name(request: pytest.FixtureRequest) -> str:
    """A shell that is installed."""
    shell = str(request.param)
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    return shell


@pytest.fixture
def shell(cluster: Cluster, name: str, tmp_path: Path) -> Iterator[Shell]:
    """A shell whose environment names the cluster."""
    cluster.recreate("clicks", "archive", dead=False)
    environment = {**sparq_in(tmp_path), "SPARQ_LOOKUPD_HTTP_ADDRESS": cluster.lookupd.http}
    with Shell(name, tmp_path, environment) as found:
        yield found


def test_typed_words_are_completed(cluster: Cluster, shell: Shell) -> None:
    """Verbs, flags, values and names are completed; a space follows a complete word."""
    assert TYPED == {typed: shell.completed(typed) for typed in TYPED}
    begin = f"sparq admin tombstone clicks {cluster.nsqds[0].http}"
    assert f"{begin} " == shell.completed(begin)


def test_names_come_from_the_cluster_of_the_flags(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """An address is one word, although bash splits words at colons."""
    cluster.recreate("clicks", "archive", dead=False)
    environment = sparq_in(tmp_path)
    assert "SPARQ_LOOKUPD_HTTP_ADDRESS" not in os.environ
    with Shell(name, tmp_path, environment) as shell:
        for flag in (cluster.flag, cluster.flag.replace("=", " ")):
            begin = f"sparq admin pause {flag}"
            assert f"{begin} clicks " == shell.completed(f"{begin} cl")
            assert f"{begin} clicks archive " == shell.completed(f"{begin} clicks a")
