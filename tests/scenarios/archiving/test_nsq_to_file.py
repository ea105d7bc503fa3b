"""nsq_to_file with a real nsqd: each flag has its effect, and a FIN follows the sync to disk."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from sparq.tools import nsq_to_file
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import until
from tests.tools.killing import exit_status_of, start
from tests.tools.recording import (
    SLOW,
    files,
    flags,
    lines,
    publish,
    recording,
    until_finished,
)

HOST = socket.gethostname().partition(".")[0]


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqlookupd for the module."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookupd")) as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Server) -> Iterator[NsqdServer]:
    """One nsqd for the module; each test uses its own topics."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd"), lookupds=(lookupd,)) as server:
        yield server


async def test_each_topic_has_its_file(nsqd: NsqdServer, tmp_path: Path) -> None:
    """By default, a file is named after topic, host and hour; the format flags override that."""
    hour = datetime.now().strftime("%Y-%m-%d_%H")
    publish(nsqd, "first", [b"a", b"b"])
    publish(nsqd, "second", [b"c"])
    async with recording(*flags(nsqd, "first", tmp_path / "x"), "--topic=second"):
        await until_finished(nsqd, "first", 2)
        await until_finished(nsqd, "second", 1)
    told = ["--filename-format=<TOPIC>/<DATETIME>/<PID>.txt", "--datetime-format=%Y/%%"]
    publish(nsqd, "third", [b"d"])
    async with recording(*flags(nsqd, "third", tmp_path / "y"), "--channel=other", *told):
        await until_finished(nsqd, "third", 1, channel="other")

    if hour == datetime.now().strftime("%Y-%m-%d_%H"):
        expected = {f"first.{HOST}.{hour}.log": b"a\nb\n", f"second.{HOST}.{hour}.log": b"c\n"}
        assert expected == files(tmp_path / "x")
        assert {f"third/{hour[:4]}/%/{os.getpid()}.txt": b"d\n"} == files(tmp_path / "y")


async def test_finished_files_are_moved(nsqd: NsqdServer, tmp_path: Path) -> None:
    """SIGHUP and the program's end move files from the work directory to the output."""
    work, done = tmp_path / "work", tmp_path / "done"
    told = [f"--work-dir={work}", "--filename-format=f<REV>"]
    async with recording(*flags(nsqd, "moved", done), *told) as archive:
        for count in (1, 2):
            publish(nsqd, "moved", [b"%d" % count])
            await until_finished(nsqd, "moved", count)
            assert f"f-00000{count - 1}" in os.listdir(work)
            archive.reopen()
            await until(lambda count=count: len(os.listdir(done)) == count)
        publish(nsqd, "moved", [b"3"])
        await until_finished(nsqd, "moved", 3)

    assert [] == os.listdir(work)
    assert {f"f-00000{n}": b"%d\n" % (n + 1) for n in range(3)} == files(done)


async def test_max_in_flight_held_messages_trigger_a_sync(nsqd: NsqdServer, tmp_path: Path) -> None:
    """`max_in_flight` held messages trigger a sync, which finishes them.

    Until then no message is finished and none is delivered. `--consumer-opt=max_in_flight`
    overrides `--max-in-flight`.
    """
    told = [SLOW, "--max-in-flight=10", "--consumer-opt=max_in_flight,4"]
    told += ["--consumer-opt=client_id,archivist", "--consumer-opt=msg_timeout,15m"]
    async with recording(*flags(nsqd, "held", tmp_path), *told):
        publish(nsqd, "held", [b"0"])  # opening the file syncs it
        await until_finished(nsqd, "held", 1)
        publish(nsqd, "held", [b"1", b"2", b"3"])
        await until(lambda: len(lines(tmp_path)) == 4)
        channel = nsqd.channel("held", "nsq_to_file")
        assert (3, 1) == (channel["in_flight_count"], channel["finish_count"])
        [client] = channel["clients"]
        assert ("archivist", 4) == (client["client_id"], client["ready_count"])
        publish(nsqd, "held", [b"4"])
        await until_finished(nsqd, "held", 5)


async def test_sync_interval_triggers_a_sync(nsqd: NsqdServer, tmp_path: Path) -> None:
    """`--sync-interval` syncs and finishes held messages, however few they are."""
    async with recording(*flags(nsqd, "ticking", tmp_path), "--sync-interval=50ms"):
        for count in (1, 2, 3):
            publish(nsqd, "ticking", [b"x"])
            await until_finished(nsqd, "ticking", count)


async def test_topics_are_discovered(
    nsqd: NsqdServer, lookupd: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics are discovered immediately and again every `--topic-refresh`.

    A topic whose file name is invalid is skipped and logged once.
    """
    told = [f"--lookupd-http-address={lookupd.http}", "--topic-pattern=^found|^[.]{2}$"]
    told += ["--topic-refresh=100ms", "--filename-format=<TOPIC>/x", f"--output-dir={tmp_path}/in"]
    for topic in ("found1", "..", "unfound"):
        publish(nsqd, topic, [topic.encode()])
    async with recording(*told):
        await until_finished(nsqd, "found1", 1)
        publish(nsqd, "found2", [b"found2"])
        await until_finished(nsqd, "found2", 1)

    assert {"found1/x": b"found1\n", "found2/x": b"found2\n"} == files(tmp_path / "in")
    assert ["in"] == os.listdir(tmp_path)
    assert 1 == caplog.text.count('topic ".." is not recorded')
    assert {} == nsqd.channel("unfound", "nsq_to_file")


def test_signals_and_log_lines(nsqd: NsqdServer, tmp_path: Path) -> None:
    """SIGHUP reopens the file; SIGTERM and SIGINT end the process with status 0.

    Log lines start with `--log-prefix`, and `--log-level` filters them.
    """
    log, out = tmp_path / "log", tmp_path / "out"
    told = [*flags(nsqd, "told", out), "--filename-format=f"]
    publish(nsqd, "told", [b"a"])
    process = start(nsq_to_file, *told, "--log-prefix=<one> ", "--log-level=INFO", log=log)
    asyncio.run(until_finished(nsqd, "told", 1))
    (out / "f").rename(out / "left")
    os.kill(process.pid, signal.SIGHUP)
    asyncio.run(until(lambda: file_exists_after_publish(nsqd, out / "f")))
    process.terminate()
    assert 0 == exit_status_of(process)
    publish(nsqd, "told", [b"z"])
    process = start(nsq_to_file, *told, "--log-prefix=<two> ", "--log-level=warn", log=log)
    asyncio.run(until(lambda: b"z\n" in (out / "f").read_bytes()))
    os.kill(process.pid, signal.SIGINT)
    assert 0 == exit_status_of(process)

    assert (out / "left").read_bytes().startswith(b"a\n")
    opened = re.findall(r"^<one> \d.* INFO: \[told/nsq_to_file\] opening", log.read_text(), re.M)
    assert 2 == len(opened)
    assert [] == re.findall(r"^<two> .* INFO: ", log.read_text(), re.M)
    assert nsqd.channel("told", "nsq_to_file")["depth"] == 0


def file_exists_after_publish(nsqd: NsqdServer, path: Path) -> bool:
    """Publish a message; returns whether the file exists."""
    publish(nsqd, "told", [b"again"])
    return path.exists()
