"""A damaged batch loses only its own messages, is reported, and never delivers a wrong body.

P5 and P6. The tests damage byte by byte on a disk in memory, in process, and files of real nsqd
processes, stopped and running. Every body is random and unique, so the delivered bodies are
compared with the published ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.client.range_reader import RangeReader
from sparq.protocol.commands import mpub, rdy, sub
from sparq.testing import MemoryDisk
from tests.broker.harness import BrokerHarness
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, V2Client, fin_each

SEGMENT_DATA_START = 4608
# In process, byte by byte


# Real processes on a real disk


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def damaged_messages(server: NsqdServer) -> int:
    (topic,) = server.get_json("/stats?format=json&topic=t")["topics"]
    return int(topic["damaged_messages"])


def test_channels_of_a_lost_ledger_get_all_messages_again() -> None:
    """Each channel that comes back starts at the log's first message, not only the first of them.

    The second one started at the end, and its messages were lost without a report.
    """
    harness = BrokerHarness()
    for name in ("a", "b"):
        harness.consumer("t", name).close()
    harness.publish("t", *(b"%d" % number for number in range(20)))
    harness.pass_time(3)
    overwrite(harness.disk)

    after = BrokerHarness(harness.disk.killed())
    expected = [b"%d" % number for number in range(20)]
    assert expected == after.consumer("t", "a", rdy=100).bodies()
    assert expected == after.consumer("t", "b", rdy=100).bodies()
    assert after.report


def move_away(disk: MemoryDisk) -> None:
    for path in disk.paths():
        if "ledger-" in path or "checkpoint-" in path:
            disk.unlink(path)


def overwrite(disk: MemoryDisk) -> None:
    for path in disk.paths():
        if "ledger-" in path or "checkpoint-" in path:
            disk.data(path)[:1024] = bytes(1024)


@pytest.mark.parametrize("damage", [overwrite, move_away])
def test_a_channel_that_comes_back_late_gets_all_messages(
    damage: Callable[[MemoryDisk], None],
) -> None:
    """For an hour no file is deleted after a channel was lost: the second may come back later.

    The first had finished the file by then, it was deleted, and the second got nothing.
    """
    harness = BrokerHarness()
    for name in ("a", "b"):
        harness.consumer("t", name).close()
    bodies = [b"%d" % number for number in range(20)]
    harness.publish("t", *bodies)
    harness.pass_time(3)
    damage(harness.disk)

    after = BrokerHarness(harness.disk.killed())
    assert "ledger" in after.report[0]
    first = after.consumer("t", "a", rdy=100)
    received = first.messages()
    assert bodies == [message.body for message in received]
    first.finish(received)
    after.publish("t", b"new")
    first.finish(first.messages())
    after.pass_time(3)
    after.pass_time(3)
    second = after.consumer("t", "b", rdy=100)
    received = second.messages()
    assert [*bodies, b"new"] == [message.body for message in received]
    second.finish(received)

    after.pass_time(3600)
    after.pass_time(3)
    assert after.topic("t").log_messages == 1


def test_a_batch_damaged_while_nsqd_runs(tmp_path: Path) -> None:
    """Batches that are no longer in memory are verified when they are read.

    Damage is found then, is reported, and loses one of the batches that are read together.
    """
    chance = random.Random(4)
    small = [[chance.randbytes(300) for _ in range(5)] for _ in range(12)]
    with spawn_nsqd(tmp_path) as server, V2Client(server) as line:
        server.post("/topic/create?topic=t")
        server.post("/channel/create?topic=t&channel=c")
        for bodies in small:
            assert line.ask(mpub("t", bodies)) == OK
        large = [chance.randbytes(1 << 20) for _ in range(4)]
        for _ in range(18):  # more than the 64 MiB that are kept in memory
            assert line.ask(mpub("t", large)) == OK
        (path,) = (server.folder / "topics").glob("*/*.log")
        with path.open("rb") as file:
            data = file.read(SEGMENT_DATA_START + 30_000)
        at = data.index(small[7][2])
        flip(path, at + 100)

        with V2Client(server) as consumer:
            assert consumer.ask(sub("t", "c")) == OK
            consumer.send(rdy(55))
            messages = consumer.messages(55)
            consumer.send(fin_each(messages))
            consumer.ask(b"CLS\n")
        whole = [body for number, bodies in enumerate(small) if number != 7 for body in bodies]
        assert [message.body for message in messages] == whole
        assert damaged_messages(server) == 5
        assert "5 messages lost" in server.log_text
        reader = RangeReader(server.tcp)
        ends = reader.ends("t")
        data_of = next(reader.read("t", ends.log, ends.first, ends.first + 60))
        assert data_of.lost == 5
        reader.close()
