"""Topics that are deleted: what is left of them, what waits for them, and what comes after."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from tests.broker.house import House


@pytest.fixture
def house() -> House:
    """A broker with an empty data path."""
    return House()


@pytest.mark.behaviour("TestDeletes")
def test_deleting_a_topic(house: House) -> None:
    """Its files go, its clients are disconnected, and one of the same name begins empty, with
    indexes that were never used."""
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"old")
    (old,) = consumer.messages()
    old_log = house.topic("t").log
    house.broker.delete_topic("t", house.clock.now())
    assert consumer.session.closing
    assert house.broker.topics == {}
    house.turn()
    assert not [path for path in house.disk.paths() if "/t-t/" in path or "/trash/" in path]

    consumer.close()
    house.clock.wall_ns -= 10_000_000_000
    house.publish("t", b"new")
    (new,) = house.consumer("t", "c", rdy=10).messages()

    assert (new.body, new.attempts) == (b"new", 1)
    assert new.index > old.index
    assert house.topic("t").log != old_log
    house.crash()
    assert house.topic("t").message_count == 0


def test_timers_of_a_deleted_topic_find_nothing(house: House) -> None:
    """Its ledger was to be synced a moment after the delete: the other topics' turns go on."""
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"x")
    consumer.finish(consumer.messages())
    house.pass_time(1.0)
    house.broker.delete_topic("t", house.clock.now())
    house.turn()

    house.pass_time(1.5)
    house.publish("other", b"y")

    assert 1 == house.topic("other").message_count


def test_a_deleted_topic_is_not_synced() -> None:
    """What was unsynced went with it: nothing is tried at its files, and the health stays good."""
    house = House(sync_every=1000)
    house.consumer("t", "c")
    house.publish("t", b"x")
    house.broker.delete_topic("t", house.clock.now())
    house.turn()

    for _ in range(5):
        house.pass_time(1.0)

    assert "OK" == house.broker.health()
    assert not [note for note in house.broker.notes if "syncing" in note]


def test_a_topic_on_its_way_out_refuses_publishes(house: House) -> None:
    """Until its files are gone a topic cannot be made anew; what waited is told."""
    client = house.connect()
    client.say(commands.pub("t", b"x"))
    client.say(commands.pub("t", b"waits"), turn=False)
    house.broker.delete_topic("t", house.clock.now())
    late = house.connect()
    late.say(commands.mpub("t", [b"late"]), turn=False)
    house.turn()

    assert client.answers() == [b"OK", b"E_PUB_FAILED PUB failed exiting"]
    assert late.answers() == [b"E_MPUB_FAILED MPUB failed exiting"]
    assert late.session.closing
    house.publish("t", b"again")
    assert house.topic("t").message_count == 1


def test_deleting_waits_for_a_commit_in_flight(house: House) -> None:
    """The commit finds its files, and its publisher is answered."""
    client = house.connect()
    client.say(commands.pub("t", b"x"), turn=False)
    tasks = house.broker.end_turn(house.clock.now())
    house.broker.delete_topic("t", house.clock.now())
    house.turn()
    assert [path for path in house.disk.paths() if "/t-t/" in path]
    for task in tasks:
        task.work.run()
        house.broker.finish(task, house.clock.now())
    house.turn()

    assert client.answers() == [b"OK"]
    assert not [path for path in house.disk.paths() if "/t-t/" in path]


def test_a_deleted_topic_leaves_nothing_in_the_cache(house: House) -> None:
    """Its blocks would push out those of topics that live."""
    for number in range(20):
        house.publish(f"t{number}", b"x" * 1000)
    cache = house.broker._topics._cache
    assert cache.size_bytes > 20_000

    for number in range(20):
        house.broker.delete_topic(f"t{number}", house.clock.now())
    house.turn()

    assert cache.size_bytes == 0
