"""FIN follows the disk: what a recorder finishes, when it syncs, and what an error costs."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Consumer
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.waiting import until
from tests.tools.recording import (
    SLOW,
    archive,
    finished,
    flags,
    lines,
    publish,
    recording,
    until_finished,
)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd for the module; each test has topics of its own."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


async def test_no_message_is_given_up(nsqd: NsqdServer, tmp_path: Path) -> None:
    """However often it was delivered before; NSQ's finishes it unseen behind the fifth time."""
    publish(nsqd, "often", [b"a"])
    told: dict[str, Any] = {"nsqd_tcp_addresses": nsqd.tcp, "max_attempts": 0}
    async with Consumer("often", "nsq_to_file", **told) as consumer:
        async for message in consumer:
            await message.requeue(0, backoff=False)
            if message.attempts == 9:
                break
    async with recording(*flags(nsqd, "often", tmp_path)):
        await until_finished(nsqd, "often", 1)

    assert [b"a"] == lines(tmp_path)


async def test_a_sync_comes_before_nsqd_is_impatient(nsqd: NsqdServer, tmp_path: Path) -> None:
    """Nothing is written twice for an interval that is longer than the message timeout."""
    told = [SLOW, "--consumer-opt=msg_timeout,1s"]
    async with recording(*flags(nsqd, "impatient", tmp_path), *told):
        for count in (1, 2):
            publish(nsqd, "impatient", [b"%d" % count])
            await until_finished(nsqd, "impatient", count)

    assert [b"1", b"2"] == lines(tmp_path)
    assert 0 == nsqd.channel("impatient", "nsq_to_file")["timeout_count"]


async def test_the_end_finishes_what_is_held(nsqd: NsqdServer, tmp_path: Path) -> None:
    """And so does SIGHUP, behind which the file is continued."""
    async with recording(*flags(nsqd, "ended", tmp_path), SLOW) as archive:
        publish(nsqd, "ended", [b"0"])
        await until_finished(nsqd, "ended", 1)
        publish(nsqd, "ended", [b"1", b"2"])
        await until(lambda: len(lines(tmp_path)) == 3)
        archive.reopen()
        await until_finished(nsqd, "ended", 3)
        publish(nsqd, "ended", [b"3"])
        await until_finished(nsqd, "ended", 4)
        publish(nsqd, "ended", [b"4"])
        await until(lambda: len(lines(tmp_path)) == 5)
        assert 4 == finished(nsqd, "ended")

    assert 5 == finished(nsqd, "ended")
    assert [[b"0", b"1", b"2", b"3", b"4"]] == [lines(tmp_path)]


async def test_it_may_be_stopped_before_it_has_begun(nsqd: NsqdServer, tmp_path: Path) -> None:
    """While it still finishes what is left over, nothing is connected."""
    async with recording(*flags(nsqd, "unbegun", tmp_path), f"--work-dir={tmp_path}/w"):
        pass

    assert {} == nsqd.channel("unbegun", "nsq_to_file")


async def test_nothing_is_finished_before_the_disk_has_it(
    nsqd: NsqdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the sync takes its time all is in flight, and heartbeats go on."""
    begun, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        begun.set()
        assert go_on.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    publish(nsqd, "slow", [b"a", b"b"])
    told = ["--consumer-opt=heartbeat_interval,1s"]
    async with recording(*flags(nsqd, "slow", tmp_path), *told):
        await until(begun.is_set)
        channel = nsqd.channel("slow", "nsq_to_file")
        assert (0, 2) == (channel["finish_count"], channel["in_flight_count"])
        go_on.set()
        await until_finished(nsqd, "slow", 2)


async def test_a_failed_sync_ends_it(
    nsqd: NsqdServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With status 1 and the file's name, whatever the other topics do.

    What it held is delivered again at once.
    """
    real, broken = os.fdatasync, [True]

    def fail(fd: int) -> None:
        if broken[0] and "broken" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "cannot be synced")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fail)
    told = [*flags(nsqd, "broken", tmp_path), "--topic=whole", SLOW, "--filename-format=<TOPIC>"]
    stop, running = asyncio.Event(), archive(*told)
    publish(nsqd, "whole", [b"a"])
    recorded = asyncio.create_task(running.run(stop))
    await until_finished(nsqd, "whole", 1)
    publish(nsqd, "whole", [b"b"])
    await until(lambda: len(lines(tmp_path)) == 2)
    publish(nsqd, "broken", [b"c"])

    assert 1 == await recorded
    assert f"cannot write {tmp_path}/broken: [Errno {errno.EIO}] cannot be synced" in caplog.text
    assert [2, 0] == [finished(nsqd, topic) for topic in ("whole", "broken")]
    broken[0] = False
    async with recording(*told):
        await until_finished(nsqd, "broken", 1)
