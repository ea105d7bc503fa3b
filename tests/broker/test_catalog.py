"""What a data path knows of itself."""

from __future__ import annotations

import errno
import json

import pytest
from xxhash import xxh3_64_hexdigest

from sparq.broker.catalog import Catalog, CatalogError, Removal
from sparq.protocol.names import directory_name
from sparq.testing import Fault, MemoryDisk
from tests.broker.house import PATH, House


def facts(disk: MemoryDisk) -> dict[str, object]:
    """The contents of sparq.json."""
    found = json.loads(disk.data(f"{PATH}/sparq.json"))
    assert isinstance(found, dict)
    return found


def test_a_data_path_keeps_its_node_id() -> None:
    """Message ids must not change with a flag: the first node id stays (decision 33)."""
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
    """Damage or a newer format: nothing is guessed."""
    house = House()
    house.disk.data(f"{PATH}/sparq.json")[:] = text

    with pytest.raises(CatalogError):
        house.crash()


def test_each_bit_of_the_facts() -> None:
    """A flipped bit is found before it is believed, or changes nothing: a wrong node id would make
    every FIN of a stored message fail."""
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
    """The first version wrote none, and its data paths are opened."""
    house = House(node_id=5)
    house.disk.data(f"{PATH}/sparq.json")[:] = b'{"format": 1, "node_id": 77, "retired_index": "8"}'
    house.crash()

    assert house.broker.node_id == 77


def test_the_facts_are_replaced_as_a_whole() -> None:
    """Wherever the power is cut, the old ones or the new ones are there."""
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
    """Also over a restart, with a clock that was set back: no index is given twice."""
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
    """A removal that was cut short is finished."""
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
    """Until it works the name is refused, lest the old files become a new topic's; then the name
    can be used again, and nothing comes back after a restart."""
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
    """The first publish is refused; the next one finds the folder, and syncs its name."""
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
    """Its folder is there, unsynced; the next start cannot tell, and syncs what it finds."""
    for seed in range(8):
        house = House()
        house.disk.make_directory(f"{PATH}/topics/{directory_name('t')}")
        house.crash()
        house.publish("t", b"kept")
        house.disk = house.disk.crash(seed)
        house.crash()

        assert house.consumer("t", "c", rdy=10).bodies() == [b"kept"]
