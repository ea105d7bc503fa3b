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
from tests.broker.house import PATH, House


def facts(disk: MemoryDisk) -> dict[str, object]:
    """The contents of sparq.json."""
    found = json.loads(disk.data(f"{PATH}/sparq.json"))
    assert isinstance(found, dict)
    return found


def test_a_data_path_keeps_its_node_id() -> None:
    """A data path keeps its first node id; a different `node_id` option has no effect.

    Message ids contain it, and must not change (decision 33).
    """
    house = House(node_id=5)
    house.publish("t", b"x")
    (first,) = house.consumer("t", "c", rdy=1).messages()
    house.crash(node_id=9)
    (again,) = house.consumer("t", "c", rdy=1).messages()

    assert (first.id, again.attempts) == (again.id, 2)
    assert int(first.id, 16) >> 54 == house.broker.node_id == 5
    assert facts(house.disk) == {
        "format": 1,
        "node_id": 5,
        "retired_index": "0",
        "checksum": xxh3_64_hexdigest(b"1 5 0"),
    }


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"format": 1}', b'{"format": 2, "node_id": 1, "retired_index": "0"}']
)
def test_a_strange_data_path_is_refused(text: bytes) -> None:
    """A damaged sparq.json, or one of a newer format, is refused."""
    house = House()
    house.disk.data(f"{PATH}/sparq.json")[:] = text

    with pytest.raises(CatalogError):
        house.crash()


def test_each_bit_of_the_facts() -> None:
    """A flipped bit in sparq.json is detected or has no effect.

    With a wrong node id every FIN of a stored message would fail.
    """
    house = House(node_id=513)
    text = house.disk.data(f"{PATH}/sparq.json")
    whole = bytes(text)
    for bit in range(8 * len(whole)):
        text[:] = whole
        text[bit // 8] ^= 1 << bit % 8
        try:
            house.crash()
        except CatalogError:
            continue
        assert house.broker.node_id == 513


def test_facts_without_a_checksum_are_believed() -> None:
    """A sparq.json without a checksum, as the first version wrote it, is accepted."""
    house = House(node_id=5)
    house.disk.data(f"{PATH}/sparq.json")[:] = b'{"format": 1, "node_id": 77, "retired_index": "8"}'
    house.crash()

    assert house.broker.node_id == 77


def test_the_facts_are_replaced_as_a_whole() -> None:
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


def test_indexes_of_deleted_topics_are_retired() -> None:
    """A new topic does not reuse indexes of a deleted topic of the same name.

    This holds after a restart, even if the clock was set back.
    """
    house = House()
    house.publish("t", b"x")
    (old,) = house.consumer("t", "c", rdy=1).messages()
    house.broker.delete_topic("t", house.clock.now())
    house.turn()
    house.clock.wall_ns -= 10**15
    house.crash()
    house.publish("t", b"y")
    (new,) = house.consumer("t", "c", rdy=1).messages()

    assert new.index > old.index


def test_what_lies_in_the_trash_goes_at_the_next_start() -> None:
    """An interrupted removal of a topic is completed at the next start."""
    house = House()
    house.publish("t", b"x")
    house.broker.delete_topic("t", house.clock.now())
    house.disk.fail(Fault(1, errno.EIO, frozenset({"unlink"}), times=99))
    house.turn()
    assert [path for path in house.disk.paths() if "/trash/" in path]

    house.disk.fault = None
    house.crash()

    assert not [path for path in house.disk.paths() if "/trash/" in path]
    assert house.broker.topics == {}


def test_a_removal_that_fails_is_tried_again() -> None:
    """A failed removal of a topic's files is retried, and the name is refused until it succeeds.

    Otherwise the old files would become the new topic's. Then the name can be used again, and no
    old message returns after a restart.
    """
    house = House()
    house.publish("t", b"x")
    house.broker.delete_topic("t", house.clock.now())
    house.disk.fail(Fault(1, errno.EIO, frozenset({"rename"}), times=99))
    house.turn()
    house.disk.fault = None
    client = house.connect()
    client.say(b"PUB t\n\0\0\0\1x")

    (answer,) = client.answers()
    assert answer.startswith(b"E_PUB_FAILED PUB failed its files could not be removed yet: ")
    assert house.broker.unsettled("t") == "its files could not be removed yet: input/output error"

    house.pass_time(1.1)

    assert house.broker.unsettled("t") is None
    house.publish("t", b"y")
    house.crash()
    assert house.topic("t").log_messages == 1


def test_a_topic_whose_folder_could_not_be_synced_at_first_outlives_a_power_cut() -> None:
    """A publish after a failed `syncdir` syncs the topic directory's name again.

    The failed publish is refused; the later one survives a power cut.
    """
    for seed in range(8):
        house = House()
        house.disk.fail(Fault(1, operations=frozenset({"syncdir"})))
        with pytest.raises(AssertionError):
            house.publish("t", b"refused")
        house.disk.fault = None
        house.publish("t", b"kept")
        house.disk = house.disk.crash(seed)
        house.crash()

        assert house.consumer("t", "c", rdy=10).bodies() == [b"kept"]


def test_a_topic_that_a_killed_nsqd_began_to_make_outlives_a_power_cut() -> None:
    """A start syncs a topic directory that it finds, since a killed nsqd may not have synced it.

    A message published afterwards survives a power cut.
    """
    for seed in range(8):
        house = House()
        house.disk.make_directory(f"{PATH}/topics/{directory_name('t')}")
        house.crash()
        house.publish("t", b"kept")
        house.disk = house.disk.crash(seed)
        house.crash()

        assert house.consumer("t", "c", rdy=10).bodies() == [b"kept"]


TOPICS = [f"t{number}" for number in range(6)]


def journals(house: House) -> list[str]:
    """The journal's files."""
    return [name for name in house.disk.listdir(PATH) if name.startswith("journal-")]


def crowd(**options: int) -> House:
    """A broker with six topics and journal files of 4,000 bytes."""
    house = House(**options)
    house.broker.journal.file_bytes = 4_000
    for topic in TOPICS:
        house.broker.create_topic(topic, house.clock.now())
        house.broker.create_channel(topic, "c", house.clock.now())
    house.turn()
    publish(house, b"first")
    return house


def publish(house: House, body: bytes) -> None:
    """Publish to all topics in one turn, and check that each gets OK."""
    client = house.connect()
    client.say(b"".join(commands.pub(topic, body) for topic in TOPICS))
    assert client.answers() == [b"OK"] * len(TOPICS)


def journaled(house: House) -> list[int]:
    """The oldest journal that each topic needs."""
    return [house.broker.topics[topic].stream.log.unsynced.journal for topic in TOPICS]


def bodies(house: House, topic: str) -> list[bytes]:
    """The bodies in the topic's channel."""
    return house.consumer(topic, "c", rdy=100).bodies()


def test_a_full_journal_is_checkpointed_and_deleted() -> None:
    """At most two journals exist: a full one is checkpointed and deleted by later publishes."""
    house = crowd()
    seen = set()
    for number in range(12):
        publish(house, b"%d" % number)
        seen.update(journals(house))
        assert len(journals(house)) <= 2
    assert len(seen) >= 3
    assert len(journals(house)) == 1


def test_a_clean_stop_leaves_no_journal() -> None:
    """After a clean stop no journal is left, and every message is in its topic's log."""
    house = crowd()
    publish(house, b"second")
    assert journals(house)
    house.restart()
    assert journals(house) == []
    for topic in TOPICS:
        assert bodies(house, topic) == [b"first", b"second"]


def test_after_a_power_cut_the_journal_has_it() -> None:
    """After a power cut the journal restores each message once, in order."""
    house = crowd()
    publish(house, b"second")
    publish(house, b"third")
    house.disk = house.disk.crash(5)
    house.start()
    assert any("restored from the journal" in line for line in house.report)
    for topic in TOPICS:
        assert bodies(house, topic) == [b"first", b"second", b"third"]


def test_a_journal_that_failed_is_cleaned_up_as_well() -> None:
    """A journal whose sync failed is deleted too: a full disk needs its bytes."""
    house = crowd()
    publish(house, b"second")
    assert journals(house)
    house.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    publish(house, b"third")
    house.turn()
    assert journals(house) == []
    assert journaled(house) == [0] * len(TOPICS)


def test_a_topic_whose_file_cannot_be_synced_keeps_its_journal() -> None:
    """A journal is kept while a topic's segment cannot be synced; the sync is retried.

    Acknowledged messages survive a power cut.
    """
    house = crowd()
    publish(house, b"second")
    house.disk.fail(Fault(1, errno.EIO, frozenset({"sync", "create"}), times=1000))
    client = house.connect()
    client.say(b"".join(commands.pub(topic, b"lost") for topic in TOPICS))
    assert all(answer.startswith(b"E_PUB_FAILED") for answer in client.answers())
    house.pass_time(1)
    assert journals(house)

    house.disk.fault = None
    house.pass_time(1)
    assert journals(house) == []
    publish(house, b"third")
    house.disk = house.disk.crash(1)
    house.start()
    for topic in TOPICS:
        assert bodies(house, topic) == [b"first", b"second", b"third"]


def test_a_deleted_topic_holds_no_journal_up() -> None:
    """A deleted topic's messages do not return from the journal, even after a crash."""
    house = crowd()
    publish(house, b"second")
    house.broker.delete_topic(TOPICS[0], house.clock.now())
    house.turn()
    house.broker.create_topic(TOPICS[0], house.clock.now())
    house.turn()
    house.disk = house.disk.killed()
    house.start()
    assert bodies(house, TOPICS[0]) == []
    assert bodies(house, TOPICS[1]) == [b"first", b"second"]
