"""A damaged batch loses only its own messages, is reported, and never delivers a wrong body.

P5 and P6. The tests damage byte by byte on a disk in memory, in process, and files of real nsqd
processes, stopped and running. Every body is random and unique, so the delivered bodies are
compared with the published ones.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from sparq.client.range_reader import RangeReader
from sparq.log.segment import FILLING
from sparq.protocol import batch
from sparq.protocol.commands import mpub, rdy, sub
from sparq.testing import MemoryDisk
from tests.broker.harness import BrokerHarness
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, V2Client, fin_each

SEGMENT_DATA_START = 4608
HEADER_COPIES = (*range(128), *range(4096, 4224))


@dataclass(frozen=True)
class Stored:
    """One batch: its place and its messages' bodies."""

    path: str
    offset: int
    size: int
    bodies: frozenset[bytes]


def stored_in(path: str, data: bytes) -> list[Stored]:
    """The batches of an undamaged segment."""
    found, at = [], SEGMENT_DATA_START
    while at < len(data) and data[at:] != FILLING[: len(data) - at]:
        header = batch.parse_header(data, at)
        assert header is not None
        held = batch.decode(data, at, header)
        edges = [0, *held.ends.tolist()]
        frames = [bytes(held.frames[a:b]) for a, b in pairwise(edges)]
        found.append(Stored(path, at, header.total_size, frozenset(f[34:] for f in frames)))
        at += header.total_size
    return found


def fresh_bodies(chance: random.Random, count: int) -> list[bytes]:
    return [chance.randbytes(chance.choice((12, 40, 90))) for _ in range(count)]


# In process, byte by byte


class DamagedCopies:
    """A data path in memory with nine batches in several files, and damaged copies of it."""

    def __init__(self) -> None:
        chance = random.Random(5)
        harness = BrokerHarness(max_bytes_per_file=SEGMENT_DATA_START + 1000)
        harness.consumer("t", "c").close()
        sizes = iter((4, 1, 3, 4, 2, 3, 2, 4, 3))
        for size in sizes:
            harness.publish("t", *fresh_bodies(chance, size))
        harness.restart()
        self.disk: MemoryDisk = harness.disk
        paths = [path for path in self.disk.paths() if path.endswith(".log")]
        self.batches = [one for path in paths for one in stored_in(path, self.data(path))]
        self.last = self.batches[-1]
        self.all = frozenset[bytes]().union(*(one.bodies for one in self.batches))
        assert len(self.batches) == 9
        assert len(paths) >= 2

    def data(self, path: str) -> bytes:
        return bytes(self.disk.data(path))

    def batch_at(self, path: str, offset: int) -> Stored | None:
        """The batch that contains this byte."""
        for one in self.batches:
            if one.path == path and one.offset <= offset < one.offset + one.size:
                return one
        return None

    def flipped(self, path: str, offset: int, bit: int) -> MemoryDisk:
        disk = copy.deepcopy(self.disk)
        disk.data(path)[offset] ^= 1 << bit
        return disk


@pytest.fixture(scope="module")
def damaged_copies() -> DamagedCopies:
    return DamagedCopies()


def check(damaged_copies: DamagedCopies, disk: MemoryDisk, hurt: Stored | None) -> str:
    """Start a broker, compare what it delivers; returns what it reported."""
    harness = BrokerHarness(disk)
    bodies = Counter(harness.consumer("t", "c", rdy=100).bodies())
    expected = damaged_copies.all - (hurt.bodies if hurt is not None else frozenset())
    report = "\n".join([*harness.report, *harness.broker.notes])
    assert bodies == Counter(expected)
    assert harness.channel("t", "c").depth == 0
    # Damage at the end of the log cannot be distinguished from an unfinished write.
    counted = len(hurt.bodies) if hurt not in (None, damaged_copies.last) else 0
    assert harness.topic("t").damaged_messages == counted
    assert bool(report) == (hurt is not None), report
    return report


def test_a_flipped_bit_loses_only_its_batch(damaged_copies: DamagedCopies) -> None:
    """A flipped bit in any byte of a batch, from header to padding, loses only that batch."""
    middle = damaged_copies.batches[4]
    for offset in range(middle.offset, middle.offset + middle.size):
        disk = damaged_copies.flipped(middle.path, offset, offset % 8)
        assert "messages lost" in check(damaged_copies, disk, middle)


def test_a_flipped_bit_in_a_file_header_loses_nothing(damaged_copies: DamagedCopies) -> None:
    """A file has two copies of its header: a flipped bit in one of them loses nothing."""
    path = damaged_copies.batches[4].path
    for offset in HEADER_COPIES:
        check(damaged_copies, damaged_copies.flipped(path, offset, offset % 8), None)


def test_a_truncated_file_loses_the_messages_after_the_cut(damaged_copies: DamagedCopies) -> None:
    """If the last file is cut, the messages after the cut are missing; a cut batch is reported."""
    last_file = [one for one in damaged_copies.batches if one.path == damaged_copies.last.path]
    begins = {one.offset for one in last_file}
    end = damaged_copies.last.offset + damaged_copies.last.size
    for size in range(SEGMENT_DATA_START, end, 7):
        disk = copy.deepcopy(damaged_copies.disk)
        del disk.data(damaged_copies.last.path)[size:]
        harness = BrokerHarness(disk)
        gone = [one for one in last_file if one.offset + one.size > size]
        expected = damaged_copies.all.difference(*(one.bodies for one in gone))
        assert Counter(harness.consumer("t", "c", rdy=100).bodies()) == Counter(expected)
        assert ("unfinished write" in "\n".join(harness.report)) == (size not in begins)


def test_zeroed_or_foreign_blocks_lose_only_their_batches(damaged_copies: DamagedCopies) -> None:
    """512 bytes of zeros, or of another file, lose only the batches that they overlap."""
    first = damaged_copies.batches[0].path
    other = damaged_copies.data(damaged_copies.last.path)
    size = len(damaged_copies.data(first))
    for at in range(SEGMENT_DATA_START, size - 512, 64):
        for filling in (bytes(512), other[at : at + 512].ljust(512, b"\0")):
            disk = copy.deepcopy(damaged_copies.disk)
            disk.data(first)[at : at + 512] = filling
            hurt = [
                one
                for one in damaged_copies.batches
                if one.path == first and one.offset < at + 512 and at < one.offset + one.size
            ]
            harness = BrokerHarness(disk)
            expected = damaged_copies.all.difference(*(one.bodies for one in hurt))
            assert Counter(harness.consumer("t", "c", rdy=100).bodies()) == Counter(expected)
            counted = sum(len(one.bodies) for one in hurt)
            assert harness.topic("t").damaged_messages == counted


def test_a_flipped_bit_in_the_ledger_loses_nothing(damaged_copies: DamagedCopies) -> None:
    """A flipped bit in the ledger loses no messages.

    At worst finished messages are delivered again, which is reported. If the channel's own entry is
    lost, the channel gets all messages when it is created again.
    """
    harness = BrokerHarness(copy.deepcopy(damaged_copies.disk))
    consumer = harness.consumer("t", "c", rdy=100)
    messages = consumer.messages()
    consumer.finish(messages[::2])
    harness.pass_time(3)
    left = Counter(message.body for message in messages[1::2])
    ledgers = [path for path in harness.disk.paths() if "ledger-" in path]
    for path in ledgers:
        for offset in range(0, len(harness.disk.data(path)), 5):
            disk = copy.deepcopy(harness.disk)
            disk.data(path)[offset] ^= 1 << offset % 8
            after = BrokerHarness(disk)
            bodies = Counter(after.consumer("t", "c", rdy=100).bodies())
            assert left - bodies == Counter()
            assert bodies - Counter(damaged_copies.all) == Counter()
            assert bodies == left or after.report


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
