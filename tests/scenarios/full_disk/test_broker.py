"""A full disk with many topics: FINs are kept, remedies work, finished files are deleted early."""

from __future__ import annotations

import errno
import json
from collections import Counter

import pytest

from sparq.protocol import commands
from sparq.testing import Fault, MemoryDisk
from tests.broker.harness import BrokerHarness, Client

KIB, MIB = 1 << 10, 1 << 20
BODY = b"x" * 40


def block_disk(capacity_bytes: int) -> MemoryDisk:
    """A disk that allocates blocks of 4 KiB, as file systems do."""
    return MemoryDisk(capacity_bytes=capacity_bytes, block_bytes=4096)


def fill(harness: BrokerHarness, names: list[str]) -> Counter[str]:
    """Publish to all topics in turn until no message is accepted; returns the counts."""
    stored: Counter[str] = Counter()
    producer = harness.connect()
    for count in (50, 1):
        taken = True
        while taken:
            taken = False
            for name in names:
                producer.say(commands.mpub(name, [BODY] * count))
                if producer.answers() == [b"OK"]:
                    stored[name] += count
                    taken = True
    return stored


def finish_one(consumer: Client) -> bool:
    """FIN the message in flight twice: the second one is answered, with E_FIN_FAILED."""
    (message,) = consumer.messages()
    consumer.say(commands.fin(message.id) * 2)
    answer = consumer.answers()[-1]
    return answer.startswith(b"E_FIN_FAILED")


def depth_of(harness: BrokerHarness, name: str) -> int:
    """The depth of the topic's channel."""
    return harness.channel(name, "c").depth


@pytest.mark.parametrize("stop", ["kill", "stop"])
@pytest.mark.parametrize("topics", [1, 20])
def test_any_number_of_single_fins_is_kept(topics: int, stop: str) -> None:
    """P7: more single FINs than the reserve has space for are kept, with 1 topic or 20."""
    harness = BrokerHarness(block_disk(MIB + topics * 32 * KIB))
    names = [f"t{number}" for number in range(topics)]
    consumers = {name: harness.consumer(name, "c") for name in names}
    stored = fill(harness, names)
    room = harness.broker.fin_reserve()
    assert room is not None
    assert room.is_short
    for consumer in consumers.values():
        consumer.say(commands.rdy(1))
    rounds = 2 * room.finishes // topics
    rounds = min(rounds, min(stored.values()) - 1)
    for _ in range(rounds):
        assert all(finish_one(consumer) for consumer in consumers.values())
    assert rounds * topics > room.finishes
    if stop == "kill":
        harness.crash()
    else:
        harness.restart()

    assert {name: depth_of(harness, name) for name in names} == {
        name: stored[name] - rounds for name in names
    }


def test_without_checkpoints_the_reserve_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without checkpoints on a full disk, finished messages are delivered again."""
    monkeypatch.setattr("sparq.broker.full_disk.make_room", lambda *_: False)

    with pytest.raises(AssertionError):
        test_any_number_of_single_fins_is_kept(20, "kill")


def test_a_file_is_deleted_when_all_its_messages_are_finished() -> None:
    """On a full disk, the file that is appended to is deleted, too, when all of it is finished.

    Publishing works again within a second, without a restart.
    """
    harness = BrokerHarness(block_disk(2 * MIB))
    consumer = harness.consumer("t", "c", rdy=2500)
    stored = fill(harness, ["t"])["t"]
    for _ in range(stored // 2500 + 1):
        consumer.finish(consumer.messages())
    assert depth_of(harness, "t") == 0

    harness.pass_time(0.1)
    harness.pass_time(0.1)

    harness.publish("t", *[BODY] * 50)
    assert harness.topic("t").log_bytes < 20 * KIB
    assert harness.broker.health() == "OK"


def test_a_range_readers_commit_deletes_read_messages() -> None:
    """On a full disk, a range reader's commit deletes what was read.

    Elsewhere the log keeps what was read since the previous commit. Here nothing more could be
    published, so the next commit, which would free it, would never happen.
    """
    harness = BrokerHarness(block_disk(2 * MIB), max_bytes_per_file=100_000)
    reader = harness.connect()
    reader.say(commands.attach("t", "c"))
    epoch = json.loads(reader.answers()[0])["epoch"]
    fill(harness, ["t"])
    reader.say(commands.ends("t"))
    reader.say(commands.commit("t", "c", epoch, int(json.loads(reader.answers()[0])["end"])))
    assert reader.answers() == [b"OK"]

    harness.pass_time(0.1)
    harness.pass_time(0.1)

    harness.publish("t", *[BODY] * 50)
    assert harness.topic("t").log_bytes < 20 * KIB
    assert harness.broker.health() == "OK"


def test_fins_during_a_sync_do_not_delay_deletion() -> None:
    """FINs that are noted while the ledger is being synced do not delay the deletion of files."""
    harness = BrokerHarness(max_bytes_per_file=10_000)
    consumer = harness.consumer("t", "c", rdy=1)
    for _ in range(40):
        harness.publish("t", *[BODY] * 40)
    most = len(harness.disk.paths())
    for _ in range(1000):
        assert finish_one(consumer)
    harness.advance(1.0)
    harness.broker.tick(harness.clock.now())
    for _ in range(20):
        # A thread has synced; the next FIN is noted before the loop takes over the result.
        tasks = harness.broker.end_turn(harness.clock.now())
        for topic_task in tasks:
            topic_task.task.run()
        consumer.collect()
        for message in consumer.messages():
            consumer.say(commands.fin(message.id), turn=False)
        for topic_task in tasks:
            topic_task.finish(harness.clock.now())

    assert len(harness.disk.paths()) < most - 10


def use_up_all_space(harness: BrokerHarness) -> None:
    """Take the reserve and all free space away, as other programs may."""
    for path in harness.disk.paths():
        if path.endswith("/reserve"):
            harness.disk.data(path)[:] = b""
    harness.disk.capacity_bytes = 0


@pytest.mark.parametrize("remedy", ["topic/delete", "channel/delete", "channel/empty"])
def test_remedies_work_without_any_space(remedy: str) -> None:
    """Without free space and reserve, each remedy frees the files, and holds after a kill."""
    harness = BrokerHarness(block_disk(2 * MIB))
    harness.consumer("t", "c").close()
    fill(harness, ["t"])
    use_up_all_space(harness)
    now = harness.clock.now()
    if remedy == "topic/delete":
        harness.broker.delete_topic("t", now)
    elif remedy == "channel/delete":
        harness.broker.delete_channel("t", "c", now)
    else:
        harness.broker.empty_channel("t", "c", now)
    harness.turn()
    assert not [path for path in harness.disk.paths() if path.endswith(".log")]
    harness.disk.capacity_bytes = 2 * MIB
    harness.pass_time(1.1)

    assert harness.broker.not_durable_reason("t") is None
    harness.crash()

    if remedy == "topic/delete":
        assert harness.broker.topics == {}
    elif remedy == "channel/delete":
        assert harness.topic("t").channels == []
    else:
        assert depth_of(harness, "t") == 0
    harness.publish("t", BODY)


def test_a_pause_is_unsettled_until_the_ledger_is_written() -> None:
    """A pause is in force at once, but not durable until the ledger is written and synced."""
    harness = BrokerHarness()
    harness.publish("t", BODY)
    harness.consumer("t", "c").close()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"write"}), times=1 << 30))
    harness.broker.pause_channel("t", "c", True, harness.clock.now())
    harness.turn()
    assert harness.broker.not_durable_reason("t") == "input/output error"
    harness.disk.fault = None

    harness.pass_time(1.1)

    assert harness.broker.not_durable_reason("t") is None
    harness.crash()
    assert harness.channel("t", "c").paused


def test_the_health_text_has_the_reserve_and_the_remedies() -> None:
    """The health text on a full disk has the reserve's capacity and the remedies."""
    harness = BrokerHarness(block_disk(2 * MIB))
    harness.consumer("t", "c")
    fill(harness, ["t"])
    room = harness.broker.fin_reserve()
    assert room is not None

    health = harness.broker.health()

    assert health.startswith("NOK - no space left on device; consumers can continue: ")
    assert f"enough for {room.finishes:,} before the next checkpoint" in health
    assert health.endswith("free disk space, or empty or delete channels or topics")
