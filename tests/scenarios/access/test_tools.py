"""The tools that talk V2 reach an nsqd that requires TLS and a token, by flags alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from tests.client.certificates import Certificates, certificates
from tests.support.run_program import run_program
from tests.support.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

SECONDS = 60.0


@dataclass
class GuardedCluster:
    """An nsqd that requires TLS and tokens, its nsqlookupd, and a folder with a token's file."""

    nsqd: NsqdServer
    lookupd: Server
    made: Certificates
    folder: Path

    def flags(self, name: str = "consumer-opt", address: str = "nsqd-tcp-address") -> list[str]:
        """The flags of docs/tools.md: the nsqd, its CA and the token."""
        options = ("tls_v1", f"tls_root_ca_file,{self.made.authority}")
        options += (f"auth_secret,@{self.folder / 'token'}",)
        place = f"--{address}=127.0.0.1:{self.nsqd.tcp_port}"
        return [place, *(f"--{name}={option}" for option in options)]

    def publish(self, topic: str, *words: str, text: str = "hello\n") -> None:
        ran = run("to_nsq", f"--topic={topic}", *self.flags("producer-opt"), *words, given=text)
        assert (0, "") == (ran.returncode, ran.stdout), ran.stderr


def run(tool: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparq.tools", tool, *words]
    return run_program(command, seconds=SECONDS, given=given)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    folder = tmp_path_factory.mktemp("guarded")
    made = certificates(folder / "pem")
    token, line = tokens.make("tool", "publish,consume,register")
    (folder / "token").write_text(f"{token}\n")
    (folder / "tokens").write_text(f"{line}\nanybody read -\n")
    known = f"--token-file={folder / 'tokens'}"
    tls = (f"--tls-cert={made.server}", f"--tls-key={made.server}", "--tls-required=tcp-https")
    tls += (f"--https-address=127.0.0.1:{free_port()}",)
    with (
        spawn_nsqlookupd(folder, known, "--require-token") as lookupd,
        spawn_nsqd(
            folder, *tls, known, f"--lookupd-token=@{folder / 'token'}", lookupds=(lookupd,)
        ) as nsqd,
    ):
        yield GuardedCluster(nsqd, lookupd, made, folder)


def stopped(process: subprocess.Popen[str]) -> str:
    """End a tool that does not end by itself; return its log."""
    process.terminate()
    return process.communicate(timeout=SECONDS)[1]


def started(tool: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sparq.tools", tool, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def tail(guarded: GuardedCluster, topic: str) -> str:
    words = (f"--topic={topic}", "--channel=tail", "-n=1", *guarded.flags())
    ran = run("nsq_tail", *words)
    assert 0 == ran.returncode, ran.stderr
    return ran.stdout


def test_to_nsq_and_nsq_tail(guarded: GuardedCluster) -> None:
    """A record is published and printed; with the token itself in place of the file, too."""
    token = (guarded.folder / "token").read_text().strip()
    guarded.publish("tail", f"--producer-opt=auth_secret,{token}")
    assert "hello\n" == tail(guarded, "tail")


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ("auth_secret", "requires AUTH: set the option auth_secret"),
        ("tls_root_ca_file", "certificate"),
    ],
)
def test_without_one_of_them_the_tool_says_so(
    guarded: GuardedCluster, left_out: str, reason: str
) -> None:
    """The status is 1, and the reason names what is missing."""
    words = [flag for flag in guarded.flags("producer-opt") if left_out not in flag]
    ran = run("to_nsq", "--topic=none", *words, given="x\n")
    assert 1 == ran.returncode
    assert reason in ran.stderr


def test_nsq_to_file(guarded: GuardedCluster, tmp_path: Path) -> None:
    """It records a topic that it finds at an nsqlookupd, which wants the token, too."""
    guarded.publish("file")
    words = (f"--lookupd-http-address={guarded.lookupd.http}", "--consumer-opt=auth_without_tls")
    words += (f"--output-dir={tmp_path}", "--topic-pattern=^file$", "--sync-interval=100ms")
    process = started("nsq_to_file", *guarded.flags()[1:], *words)
    wait_for(lambda: any("hello" in one.read_text() for one in tmp_path.iterdir()), SECONDS)
    stopped(process)


def test_nsq_to_nsq(guarded: GuardedCluster) -> None:
    """The consumer and the producer have options of their own."""
    guarded.publish("from")
    flags = [*guarded.flags(), *guarded.flags("producer-opt", "destination-nsqd-tcp-address")]
    process = started("nsq_to_nsq", "--topic=from", "--destination-topic=to", *flags)
    assert "hello\n" == tail(guarded, "to")
    stopped(process)
