"""nsqd on a full btrfs, and under a quota that refuses everything but deleting files (P3, P7)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol.commands import cls, fin, mpub, pub, rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.small_disk import IMAGE, QUOTA, SmallDisk
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None, reason="needs root and mkfs.btrfs"
)

IMAGE_BYTES = 160 << 20
FINISHED = 600
REASONS = {QUOTA: b"disk quota exceeded", IMAGE: b"no space left on device"}
chance = random.Random(9)


@pytest.fixture(params=[QUOTA, IMAGE], ids=["quota", "full"])
def full(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[NsqdServer, bytes]]:
    """An nsqd on a btrfs that its topic `t` has filled; and the reason of its refusals."""
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, IMAGE_BYTES)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    flags = ("--max-bytes-per-file=1048576", "--msg-timeout=10m")
    with (
        SmallDisk(tmp_path / "nsqd", str(image), request.param) as disk,
        spawn_nsqd(tmp_path, *flags, prefix=disk.prefix) as server,
    ):
        if request.param == IMAGE:
            disk.ballast(32 << 20)
        server.post("/topic/create?topic=t")
        for channel in "cd":
            server.post(f"/channel/create?topic=t&channel={channel}")
        fill(server)
        yield server, REASONS[request.param]


def fill(server: NsqdServer) -> None:
    """Publish until even a small message is refused."""
    with V2Client(server) as line:
        for count, size in ((100, 3000), (1, 3000), (1, 10)):
            bodies = [chance.randbytes(size) for _ in range(count)]
            while line.ask(mpub("t", bodies)) == OK:
                pass


def is_answering(server: NsqdServer) -> bool:
    """Whether `/ping` is answered, with any status: the disk is full."""
    with contextlib.suppress(OSError):
        return server.request("GET", "/ping")[0] > 0
    return False


def is_publishing(server: NsqdServer, topic: str) -> bool:
    with V2Client(server) as line:
        return line.ask(pub(topic, bytes(3000))) == OK


def test_finished_messages_stay_finished_on_a_full_btrfs(full: tuple[NsqdServer, bytes]) -> None:
    """FINs before an answered command survive kill -9 although the disk refuses nearly all else.

    Emptying channels lets publishing resume, and a deleted topic stays deleted.
    """
    server, reason = full
    assert reason in server.request("GET", "/ping")[1]
    with V2Client(server) as line:
        assert line.ask(sub("t", "c")) == OK
        line.send(rdy(FINISHED))
        finished = [message.id for message in line.messages(FINISHED)]
        for number in range(0, FINISHED, 2):  # every second one: each leaves a gap in the ledger
            line.send(fin(finished[number]))
        assert line.ask(cls()) == (0, b"CLOSE_WAIT")
    server.kill9()
    server.launch()
    wait_for(lambda: is_answering(server))
    with V2Client(server) as line:
        assert line.ask(sub("t", "c")) == OK
        line.send(rdy(2500))
        again = {message.id for message in line.messages(1000)}

    assert again.isdisjoint(finished[::2])
    assert again.issuperset(finished[1::2])
    for channel in "cd":
        server.post(f"/channel/empty?topic=t&channel={channel}")
    wait_for(lambda: is_publishing(server, "t"))
    fill(server)
    server.post("/topic/delete?topic=t")
    wait_for(lambda: is_publishing(server, "u"))
    wait_for(lambda: server.request("GET", "/ping") == (200, b"OK"))
    server.restart()
    topics = server.get_json("/stats?format=json")["topics"]
    assert [topic["topic_name"] for topic in topics] == ["u"]
