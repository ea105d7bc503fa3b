"""nsq_to_file: FIN only after a sync, topics from nsqlookupds, invalid flags.

tests/scenarios/archiving tests the program with each of its flags.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sparq.client import Consumer
from sparq.tools import commands
from sparq.tools.nsq_to_file import Archive
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

GIVEN = ("--nsqd-tcp-address=127.0.0.1:1", "--topic=t")


@asynccontextmanager
async def site(answer: web.Response | None) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """Run a web site with one answer on a free port; its address and its requests."""
    asked: list[web.Request] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request)
        made = web.Response(body=b"{}") if answer is None else answer
        return web.Response(status=made.status, headers=made.headers, body=made.body)

    application = web.Application()
    application.router.add_get("/{tail:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "{}:{}".format(*runner.addresses[0]), asked
    finally:
        await runner.cleanup()


def listing(*topics: object, status: int = 200) -> web.Response:
    """Return an answer that lists topics."""
    return web.json_response({"topics": list(topics)}, status=status)


def pattern_archive(
    tmp_path: Path, *lookupds: str, pattern: str = ".", opts: tuple[str, ...] = ()
) -> Archive:
    """Return an archive of the topics that these nsqlookupds list."""
    words = [f"--lookupd-http-address={each}" for each in lookupds]
    words += [f"--consumer-opt={each}" for each in opts]
    return archive(*words, f"--topic-pattern={pattern}", f"--output-dir={tmp_path}")


async def test_answers_are_merged_matched_and_sorted(tmp_path: Path) -> None:
    """Topics of both answer formats are merged, matched and sorted."""
    old = web.json_response({"status_code": 200, "data": {"topics": ["b", "a"]}})
    async with site(listing("c", "b", "x")) as (first, _), site(old) as (second, _):
        found = pattern_archive(tmp_path, first, second, pattern="^[abc]$")

        assert ["a", "b", "c"] == await found.known_topics()


async def test_a_failing_nsqlookupd_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each error is logged once until that nsqlookupd answers again."""
    async with site(listing("a")) as (good, _), site(listing(status=500)) as (bad, _):
        found = pattern_archive(tmp_path, good, bad, "127.0.0.1:1")
        assert [["a"], ["a"]] == [await found.known_topics(), await found.known_topics()]

    assert 1 == caplog.text.count(f"nsqlookupd http://{bad}/topics: status 500")
    assert 1 == caplog.text.count("nsqlookupd http://127.0.0.1:1/topics: connection refused")


async def test_the_secret_is_sent(tmp_path: Path) -> None:
    """The secret is sent in the header that consumers use."""
    async with site(listing("a")) as (address, asked):
        found = pattern_archive(tmp_path, address, opts=("auth_secret,s3cr3t", "auth_without_tls"))
        await found.known_topics()

    assert "Bearer s3cr3t" == asked[0].headers["Authorization"]


async def test_invalid_topic_names_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of invalid names is logged in one line, without the names."""
    listed = ["a", "..", "a/b", "", "x" * 65, None, 7, ["b"], "e\n#ephemeral", "b#ephemeral"]
    async with site(listing(*listed)) as (address, _):
        assert ["..", "a", "b#ephemeral"] == await pattern_archive(tmp_path, address).known_topics()

    assert ["skipped 7 topics with invalid names"] == [r.message for r in caplog.records]


def test_a_missing_permission_is_reported_as_such(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check precedes any connection; `os.access` is replaced because tests may run as root."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert 1 == commands.nsq_to_file([*GIVEN, f"--output-dir={tmp_path}"])
    assert (
        f'nsq_to_file: --output-dir "{tmp_path}": permission denied:'
        " files cannot be created there\n" == capsys.readouterr().err
    )


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd for this module; each test uses its own topics."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


async def test_a_message_is_written_after_any_number_of_attempts(
    nsqd: NsqdServer, tmp_path: Path
) -> None:
    """A message with nine deliveries is written; NSQ's finishes it unwritten after the fifth."""
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


async def test_messages_are_synced_before_they_time_out(nsqd: NsqdServer, tmp_path: Path) -> None:
    """With a sync interval above the message timeout no message is written twice."""
    told = [SLOW, "--consumer-opt=msg_timeout,1s"]
    async with recording(*flags(nsqd, "impatient", tmp_path), *told):
        for count in (1, 2):
            publish(nsqd, "impatient", [b"%d" % count])
            await until_finished(nsqd, "impatient", count)

    assert [b"1", b"2"] == lines(tmp_path)
    assert 0 == nsqd.channel("impatient", "nsq_to_file")["timeout_count"]


async def test_the_end_finishes_messages_in_flight(nsqd: NsqdServer, tmp_path: Path) -> None:
    """The end and SIGHUP sync and finish all messages; after SIGHUP the file is continued."""
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


async def test_it_can_be_stopped_before_it_connects(nsqd: NsqdServer, tmp_path: Path) -> None:
    """While it still moves files of an earlier run, nothing is connected."""
    async with recording(*flags(nsqd, "unbegun", tmp_path), f"--work-dir={tmp_path}/w"):
        pass

    assert {} == nsqd.channel("unbegun", "nsq_to_file")


async def test_no_message_is_finished_before_it_is_synced(
    nsqd: NsqdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a slow sync all messages stay in flight, and heartbeats continue."""
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


async def test_a_failed_sync_ends_nsq_to_file(
    nsqd: NsqdServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """nsq_to_file exits with status 1 and logs the file's name, though another topic works.

    Its unsynced messages are delivered again.
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
