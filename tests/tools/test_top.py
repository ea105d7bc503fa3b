"""`sparq top` with a real nsqd: the effect of each flag, lines, tables, and the screen."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from sparq import connect
from sparq.tools.terminal import Pipe
from sparq.tools.top import Options
from sparq.tools.top import serve as watch
from tests.support.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.tool_options import parse
from tests.support.waiting import wait_for
from tests.tools.conftest import GuardedNsqd

COMMAND = (sys.executable, "-m", "sparq.cli", "top")
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqlookupd for all tests."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookup")) as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Server) -> Iterator[NsqdServer]:
    """One nsqd: `clicks` has two channels and three messages, `orders` is empty."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd"), lookupds=(lookupd,)) as server:
        for topic in ("clicks", "orders"):
            server.post(f"/topic/create?topic={topic}")
        for channel in ("archive", "metrics"):
            server.post(f"/channel/create?topic=clicks&channel={channel}")
        server.post("/mpub?topic=clicks", b"1\n2\n3")
        server.post("/channel/pause?topic=clicks&channel=metrics")
        server.post("/channel/empty?topic=clicks&channel=metrics")
        yield server


async def watched(path: Path, *words: str, status: int = 0) -> list[list[str]]:
    """Return the printed lines of a run with these flags and this status, split into words."""
    with (path / "lines").open("wb") as file:
        options = parse(Options, "sparq top", words)
        assert status == await watch(options, asyncio.Event(), Pipe(file.fileno()))
    return [line.split() for line in (path / "lines").read_text().splitlines()]


async def test_once_prints_one_table(nsqd: NsqdServer, tmp_path: Path) -> None:
    """`--once` prints headings and a row per channel, without control sequences, for scripts."""
    lines = await watched(tmp_path, "--once", "--interval=50ms", f"--nsqd-http-address={nsqd.http}")

    assert ["TOPIC", "CHANNEL", "IN/S", "OUT/S", "DEPTH"] == lines[0][:5]
    assert [
        ["clicks", "archive", "0", "0", "3", "0", "0"],
        ["clicks", "metrics", "0", "0", "0", "0", "0"],
        ["orders", "-", "0", "-", "0", "0", "0"],
    ] == [line[:7] for line in lines[1:]]
    assert "s" == lines[1][7][-1]
    assert [
        ["0", "0", "0", "no", "no", "consumers"],
        ["0s", "0", "0", "0", "yes", "paused"],
        ["-", "-", "-", "0", "no", "no", "channel"],
    ] == [lines[1][8:], lines[2][7:], lines[3][7:]]


async def test_json_has_the_same_rows(nsqd: NsqdServer, tmp_path: Path) -> None:
    """`--json` prints a document per refresh with the same rows; unknown values are null."""
    file = tmp_path / "lines"
    words = ["--json", "--count=2", "--interval=20ms", f"--nsqd-http-address={nsqd.http}"]
    await watched(tmp_path, *words, "--topic=clicks", "--sort=channel")

    documents = [json.loads(line) for line in file.read_text().splitlines()]
    assert 2 == len(documents)
    (archive, metrics) = documents[1]["rows"]
    assert ("clicks", "archive", 3, "no consumers", 0.0) == (
        *(archive["topic"], archive["channel"], archive["depth"], archive["state"]),
        archive["out_rate"],
    )
    assert archive["lag_seconds"] > 0
    assert ("paused", True, False, 0.0) == (
        *(metrics["state"], metrics["paused"], metrics["topic_paused"], metrics["lag_seconds"]),
    )
    assert (1, {}, {}) == tuple(documents[1][name] for name in ("nsqds", "gone", "errors"))
    assert datetime.fromisoformat(documents[1]["time"]).tzinfo is not None


async def test_count_blocks_are_printed_at_the_interval(
    nsqd: NsqdServer, lookupd: Server, tmp_path: Path
) -> None:
    """`--count` blocks are printed `--interval` apart, with the time and rates in each line."""
    began = time.monotonic()
    words = [f"--lookupd-http-address={lookupd.http}", "--count=2", "--interval=300ms"]
    watching = asyncio.create_task(watched(tmp_path, *words))
    while not watching.done():
        await asyncio.to_thread(nsqd.post, "/mpub?topic=orders", b"1\n2\n3\n4")
    lines = await watching
    nsqd.post("/topic/empty?topic=orders")

    assert 0.6 <= time.monotonic() - began
    assert ["TIME", "TOPIC"] == lines[0][:2]
    assert 2 * 4 == len(lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", line[0]) for line in lines[1:4])
    rates = [float(line[3].replace(",", "")) for line in lines if line[1] == "orders"]
    assert 2 == len(rates)
    assert sum(rates) > 0


async def test_topic_and_channel_select_one(nsqd: NsqdServer, tmp_path: Path) -> None:
    """`--topic` and `--channel` leave out all others."""
    common = ["--once", "--interval=20ms", f"--nsqd-http-address={nsqd.http}"]

    topic = await watched(tmp_path, *common, "--topic=clicks")
    channel = await watched(tmp_path, *common, "--channel=metrics")

    assert ["archive", "metrics"] == [line[1] for line in topic[1:]]
    assert ["metrics"] == [line[1] for line in channel[1:]]


def test_an_unreachable_nsqd_is_status_1() -> None:
    """`sparq top --once` without an nsqd: one line on stderr, status 1."""
    port = free_port()
    words = ("--once", f"--nsqd-http-address=127.0.0.1:{port}")
    ran = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)

    assert (1, "") == (ran.returncode, ran.stdout)
    assert f"sparq top: 127.0.0.1:{port}: connection refused\n" == ran.stderr


async def test_once_with_a_hung_nsqd_ends_in_three_seconds(
    nsqd: NsqdServer, tmp_path: Path
) -> None:
    """The others are shown, the hung one is named, and the status is 1: a script must not wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as hung:
        address = "{}:{}".format(*hung.getsockname())
        words = ["--once", "--json", "--topic=clicks"]
        words += [f"--nsqd-http-address={at}" for at in (address, nsqd.http)]
        began = time.monotonic()
        await watched(tmp_path, *words, status=1)
        assert time.monotonic() - began < 3.0

    document = json.loads((tmp_path / "lines").read_text())
    assert {address: "no answer in time"} == document["errors"]
    assert ["archive", "metrics"] == [row["channel"] for row in document["rows"]]


class Terminal:
    """`sparq top` on a pseudo-terminal, in its own process group, so that it can be stopped."""

    def __init__(self, *words: str, term: str = "xterm-256color") -> None:
        self.main, self.side = os.openpty()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 130, 0, 0))
        self.before = termios.tcgetattr(self.side)
        self.text = ""
        # pytest-xdist sets a width for its processes, which would override the terminal's. Users
        # have a buffered standard output; an unbuffered one would hide missing flushes.
        told = {"COLUMNS", "LINES", "PYTHONUNBUFFERED"}
        kept = {name: os.environ[name] for name in os.environ.keys() - told}
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=self.side,
            stdout=self.side,
            stderr=self.side,
            env={**kept, "TERM": term, "NO_COLOR": "1"},
            process_group=0,
        )

    @property
    def plain(self) -> str:
        """The text that was read last, without cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def press(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    def until(self, shown: str, *, plain: bool = True) -> None:
        """Read until a text is shown; if not `plain`, until the raw output has it."""
        deadline = time.monotonic() + SECONDS_MAX
        self.text = ""
        while shown not in (self.plain if plain else self.text):
            assert time.monotonic() < deadline, (shown, self.text)
            if select.select([self.main], [], [], 0.1)[0]:
                self.text += os.read(self.main, 65_536).decode(errors="replace")

    def end(self) -> int:
        """Read until the program has ended; return its exit status."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.main], [], [], 0.05)[0]:
                self.text += os.read(self.main, 65_536).decode(errors="replace")
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.main)
        os.close(self.side)


def test_keys_sort_freeze_and_quit(nsqd: NsqdServer) -> None:
    """A key sorts the rows, another freezes them; `q` restores the terminal."""
    with contextlib.closing(
        Terminal("--interval=100ms", f"--nsqd-http-address={nsqd.http}")
    ) as terminal:
        terminal.until("TOPIC ^")
        terminal.until("archive")
        terminal.press("d")
        terminal.until("DEPTH v")
        terminal.press("d")
        terminal.until("DEPTH ^")
        terminal.press(" ")
        terminal.until("frozen")
        nsqd.post("/topic/create?topic=later")
        time.sleep(0.3)  # two refreshes would have shown it
        terminal.press("d")
        terminal.until("DEPTH v")
        assert "later" not in terminal.text
        terminal.press(" ")
        terminal.until("later")
        nsqd.post("/topic/delete?topic=later")
        terminal.press("q")

        assert 0 == terminal.end()
        assert "\x1b[?1049l" in terminal.text
        assert terminal.before == termios.tcgetattr(terminal.side)


def test_a_filter_and_an_opened_channel(nsqd: NsqdServer, lookupd: Server) -> None:
    """`/` filters rows, Enter opens a channel with its nsqds and clients, Esc closes it."""
    nsqd.post("/topic/create?topic=opened")
    nsqd.post("/channel/create?topic=opened&channel=other")
    words = ("--interval=100ms", f"--lookupd-http-address={lookupd.http}", "--topic=opened")
    try:
        with (
            connect(nsqd.tcp, client_id="the-reader") as session,
            session.consumer("opened", "reading"),
            contextlib.closing(Terminal(*words)) as terminal,
        ):
            terminal.until("reading")
            terminal.press("/q")
            terminal.until("filter: q_")
            terminal.press("\x7fREAD")
            terminal.until("filter: READ_")
            terminal.press("\r")
            terminal.until("1 of 2 rows")
            terminal.press("\r")
            terminal.until("the-reader")
            assert "opened / reading" in terminal.plain
            assert nsqd.http in terminal.plain
            terminal.press("\x1b")
            terminal.until("1 of 2 rows")
            terminal.press("\x1b")
            terminal.until("underlined letter")
            assert "other" in terminal.plain
            terminal.press("q")
            assert 0 == terminal.end()
    finally:
        nsqd.post("/topic/delete?topic=opened")


def test_the_screen_continues_after_a_terminal_was_stopped(nsqd: NsqdServer) -> None:
    """After Ctrl-S, or on a slow line, the screen continues when the terminal is read again."""
    words = ("--interval=10ms", f"--nsqd-http-address={nsqd.http}")
    with contextlib.closing(Terminal(*words)) as terminal:
        terminal.until("sparq top")
        wait_for(lambda: not select.select([], [terminal.side], [], 0)[1], SECONDS_MAX)
        for _ in range(20):
            terminal.until("sparq top")
        terminal.press("q")
        assert 0 == terminal.end()


def test_stopping_restores_the_terminal(nsqd: NsqdServer) -> None:
    """The terminal is restored, also by SIGINT; after SIGCONT screen and keys work again."""
    with contextlib.closing(Terminal(f"--nsqd-http-address={nsqd.http}")) as terminal:
        terminal.until("archive")
        terminal.process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)

        assert terminal.before == termios.tcgetattr(terminal.side)
        terminal.until("\x1b[?1049l", plain=False)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until("archive")
        terminal.press("d")
        terminal.until("DEPTH v")
        terminal.process.send_signal(signal.SIGINT)

        assert 0 == terminal.end()
        assert terminal.before == termios.tcgetattr(terminal.side)


def test_a_dumb_terminal_gets_lines(nsqd: NsqdServer) -> None:
    """A dumb terminal gets lines, as a pipe does."""
    words = ("--interval=50ms", "--count=1", f"--nsqd-http-address={nsqd.http}")
    with contextlib.closing(Terminal(*words, term="dumb")) as terminal:
        terminal.until("archive")

        assert 0 == terminal.end()
        assert "\x1b" not in terminal.text


def test_a_guarded_nsqd(guarded: GuardedNsqd) -> None:
    """The token and the CA file reach an nsqd that requires a token over HTTPS; else it says so."""

    def top(*words: str) -> tuple[int, str]:
        ended = subprocess.run(
            [*COMMAND, "--once", "--interval=20ms", guarded.address, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    status, shown = top(guarded.token, guarded.authority)
    refused = top(guarded.authority)
    distrusted = top(guarded.token)

    assert (0, True) == (status, "no consumers" in shown), shown
    assert (1, True) == (refused[0], "401" in refused[1]), refused
    assert (1, True) == (distrusted[0], "TLS: " in distrusted[1]), distrusted
