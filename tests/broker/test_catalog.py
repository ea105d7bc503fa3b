"""The files of a data path outside its topics, and the deletion of old journals."""

from __future__ import annotations

import errno
import json

import pytest
from xxhash import xxh3_64_hexdigest

from sparq.broker.catalog import Catalog, CatalogError, Removal
from sparq.protocol import commands
from sparq.protocol.names import directory_name
from sparq.testing import Fault, MemoryDisk
from tests.broker.harness import PATH, BrokerHarness, refusal


def metadata_in(disk: MemoryDisk) -> dict[str, object]:
    """The contents of sparq.json."""
    found = json.loads(disk.data(f"{PATH}/sparq.json"))
    assert isinstance(found, dict)
    return found


def test_a_data_path_keeps_its_node_id() -> None:
    """A data path keeps its first node id; a different `node_id` option has no effect.

    Message ids contain it, and must not change.
    """
    harness = BrokerHarness(node_id=5)
    harness.publish("t", b"x")
    (first,) = harness.consumer("t", "c", rdy=1).messages()
    harness.crash(node_id=9)
    (again,) = harness.consumer("t", "c", rdy=1).messages()

    assert (first.id, again.attempts) == (again.id, 2)
    assert int(first.id, 16) >> 54 == harness.broker.node_id == 5
    assert metadata_in(harness.disk) == {
        "format": 1,
        "node_id": 5,
        "retired_index": "0",
        "checksum": xxh3_64_hexdigest(b"1 5 0"),
    }


@pytest.mark.parametrize("text", [b"", b'{"format": 2, "node_id": 1, "retired_index": "0"}'])
def test_damaged_or_newer_metadata_is_refused(text: bytes) -> None:
    """A damaged sparq.json, or one of a newer format, is refused."""
    harness = BrokerHarness()
    harness.disk.data(f"{PATH}/sparq.json")[:] = text

    with pytest.raises(CatalogError):
        harness.crash()


def test_metadata_is_replaced_as_a_whole() -> None:
    """After a power cut at any point, sparq.json has the old contents or the new ones."""
    for at in range(1, 12):
        disk = MemoryDisk()
        catalog = Catalog(disk, PATH, 3)
        catalog.load()
        catalog.retired_index = 77
        disk.fail(Fault(at, errno.EIO, times=1))
        Removal(catalog, f"{PATH}/topics/t-x").run()
        after = Catalog(disk.crash(at), PATH, 0)
        after.load()

        assert (after.node_id, after.retired_index in (0, 77)) == (3, True)


def test_an_interrupted_removal_is_completed_at_the_next_start() -> None:
    """An interrupted removal of a topic is completed at the next start."""
    harness = BrokerHarness()
    harness.publish("t", b"x")
    harness.broker.delete_topic("t", harness.clock.now())
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"unlink"}), times=99))
    harness.turn()
    assert [path for path in harness.disk.paths() if "/trash/" in path]

    harness.disk.fault = None
    harness.crash()

    assert not [path for path in harness.disk.paths() if "/trash/" in path]
    assert harness.broker.topics == {}


def test_a_failed_removal_is_retried() -> None:
    """A failed removal of a topic's files is retried, and the name is refused until it succeeds.

    Otherwise the old files would become the new topic's. Then the name can be used again, and no
    old message returns after a restart.
    """
    harness = BrokerHarness()
    harness.publish("t", b"x")
    harness.broker.delete_topic("t", harness.clock.now())
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"rename"}), times=99))
    harness.turn()
    harness.disk.fault = None
    client = harness.connect()
    client.say(b"PUB t\n\0\0\0\1x")

    (answer,) = client.answers()
    assert answer.startswith(b"E_PUB_FAILED PUB failed its files could not be removed yet: ")
    assert (
        harness.broker.not_durable_reason("t")
        == "its files could not be removed yet: input/output error"
    )

    harness.pass_time(1.1)

    assert harness.broker.not_durable_reason("t") is None
    harness.publish("t", b"y")
    harness.crash()
    assert harness.topic("t").log_messages == 1


def test_a_retried_removal_keeps_the_higher_indexes_of_a_later_one_retired() -> None:
    """Topic b is deleted while the files of a wait to be deleted again.

    sparq.json then holds the highest index of both, also after a restart with the clock set back.
    """
    harness = BrokerHarness()
    harness.publish("a", b"x")
    harness.clock.wall_ns += 10**12
    harness.publish("b", b"x")
    (old,) = harness.consumer("b", "c", rdy=1).messages()
    harness.broker.delete_topic("a", harness.clock.now())
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"unlink"}), times=1))
    harness.turn()
    harness.disk.fault = None
    harness.act("delete_topic", "b")
    harness.pass_time(2)
    assert not [path for path in harness.disk.paths() if "/trash/" in path]

    harness.clock.wall_ns -= 10**15
    harness.crash()
    harness.publish("b", b"y")
    (new,) = harness.consumer("b", "c", rdy=1).messages()
    assert new.index > old.index


@pytest.mark.parametrize("begun_by", ["a failed publish", "a killed nsqd"])
def test_a_topic_that_was_begun_before_survives_a_power_cut(begun_by: str) -> None:
    """The name of a topic's directory is synced before its first OK, also if it was there already.

    An earlier publish may have failed to sync it, or a killed nsqd may not have come to it.
    """
    for seed in range(8):
        harness = BrokerHarness()
        if begun_by == "a killed nsqd":
            harness.disk.make_directory(f"{PATH}/topics/{directory_name('t')}")
            harness.crash()
        else:
            harness.disk.fail(Fault(1, operations=frozenset({"syncdir"})))
            assert "PUB failed input/output error" == refusal(harness, b"refused")
            harness.disk.fault = None
        harness.publish("t", b"kept")
        harness.disk = harness.disk.crash(seed)
        harness.crash()

        assert harness.consumer("t", "c", rdy=10).bodies() == [b"kept"]


TOPICS = [f"t{number}" for number in range(6)]


def journals(harness: BrokerHarness) -> list[str]:
    """The journal's files."""
    return [name for name in harness.disk.listdir(PATH) if name.startswith("journal-")]


def harness_with_topics(**options: int) -> BrokerHarness:
    """A broker with six topics and journal files of 4,000 bytes."""
    harness = BrokerHarness(**options)
    harness.broker.journal.file_bytes = 4_000
    for topic in TOPICS:
        harness.broker.create_topic(topic, harness.clock.now())
        harness.broker.create_channel(topic, "c", harness.clock.now())
    harness.turn()
    publish(harness, b"first")
    return harness


def publish(harness: BrokerHarness, body: bytes) -> None:
    """Publish to all topics in one turn, and check that each gets OK."""
    client = harness.connect()
    client.say(b"".join(commands.pub(topic, body) for topic in TOPICS))
    assert client.answers() == [b"OK"] * len(TOPICS)


def oldest_journals(harness: BrokerHarness) -> list[int]:
    """The oldest journal that each topic needs."""
    return [harness.broker.topics[topic].stream.log.unsynced.journal for topic in TOPICS]


def bodies(harness: BrokerHarness, topic: str) -> list[bytes]:
    """The bodies in the topic's channel."""
    return harness.consumer(topic, "c", rdy=100).bodies()


def test_a_full_journal_is_checkpointed_and_deleted() -> None:
    """At most two journals exist: a full one is checkpointed and deleted by later publishes."""
    harness = harness_with_topics()
    seen = set()
    for number in range(12):
        publish(harness, b"%d" % number)
        seen.update(journals(harness))
        assert len(journals(harness)) <= 2
    assert len(seen) >= 3
    assert len(journals(harness)) == 1


def test_a_clean_stop_leaves_no_journal() -> None:
    """After a clean stop no journal is left, and every message is in its topic's log."""
    harness = harness_with_topics()
    publish(harness, b"second")
    assert journals(harness)
    harness.restart()
    assert journals(harness) == []
    for topic in TOPICS:
        assert bodies(harness, topic) == [b"first", b"second"]


def test_a_journal_whose_sync_failed_is_deleted() -> None:
    """A journal whose sync failed is deleted too: a full disk needs its bytes."""
    harness = harness_with_topics()
    publish(harness, b"second")
    assert journals(harness)
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    publish(harness, b"third")
    harness.turn()
    assert journals(harness) == []
    assert oldest_journals(harness) == [0] * len(TOPICS)


def test_a_journal_is_kept_while_a_segment_cannot_be_synced() -> None:
    """A journal is kept while a topic's segment cannot be synced; the sync is retried.

    Acknowledged messages survive a power cut.
    """
    harness = harness_with_topics()
    publish(harness, b"second")
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync", "create"}), times=1000))
    client = harness.connect()
    client.say(b"".join(commands.pub(topic, b"lost") for topic in TOPICS))
    assert all(answer.startswith(b"E_PUB_FAILED") for answer in client.answers())
    harness.pass_time(1)
    assert journals(harness)

    harness.disk.fault = None
    harness.pass_time(1)
    assert journals(harness) == []
    publish(harness, b"third")
    harness.disk = harness.disk.crash(1)
    harness.start()
    for topic in TOPICS:
        assert bodies(harness, topic) == [b"first", b"second", b"third"]


def test_messages_of_a_deleted_topic_do_not_return_from_the_journal() -> None:
    """A deleted topic's messages do not return from the journal, even after a crash."""
    harness = harness_with_topics()
    publish(harness, b"second")
    harness.act("delete_topic", TOPICS[0])
    harness.act("create_topic", TOPICS[0])
    harness.disk = harness.disk.killed()
    harness.start()
    assert bodies(harness, TOPICS[0]) == []
    assert bodies(harness, TOPICS[1]) == [b"first", b"second"]
