"""Old journals go: once the files are synced that only they had, and no sooner."""

import errno

from sparq.protocol import commands
from sparq.testing import Fault
from tests.broker.house import PATH, House

TOPICS = [f"t{number}" for number in range(6)]


def journals(house: House) -> list[str]:
    """The files of the journal."""
    return [name for name in house.disk.listdir(PATH) if name.startswith("journal-")]


def crowd(**options: int) -> House:
    """A broker with six topics, and journals of a few publishes."""
    house = House(**options)
    house.broker.journal.file_bytes = 4_000
    for topic in TOPICS:
        house.broker.create_topic(topic, house.clock.now())
        house.broker.create_channel(topic, "c", house.clock.now())
    house.turn()
    publish(house, b"first")
    return house


def publish(house: House, body: bytes) -> None:
    """To all topics, in one turn; each is answered."""
    client = house.connect()
    client.say(b"".join(commands.pub(topic, body) for topic in TOPICS))
    assert client.answers() == [b"OK"] * len(TOPICS)


def journaled(house: House) -> list[int]:
    """The oldest journal that each topic needs."""
    return [house.broker.topics[topic].stream.log.unsynced.journal for topic in TOPICS]


def bodies(house: House, topic: str) -> list[bytes]:
    """What the topic's channel has."""
    return house.consumer(topic, "c", rdy=100).bodies()


def test_a_full_journal_is_checkpointed_and_deleted() -> None:
    """By the publishes that go to the next one."""
    house = crowd()
    seen = set()
    for number in range(12):
        publish(house, b"%d" % number)
        seen.update(journals(house))
        assert len(journals(house)) <= 2
    assert len(seen) >= 3
    assert len(journals(house)) == 1


def test_a_clean_stop_leaves_no_journal() -> None:
    """And everything where it belongs."""
    house = crowd()
    publish(house, b"second")
    assert journals(house)
    house.restart()
    assert journals(house) == []
    for topic in TOPICS:
        assert bodies(house, topic) == [b"first", b"second"]


def test_after_a_power_cut_the_journal_has_it() -> None:
    """Each message once, in order."""
    house = crowd()
    publish(house, b"second")
    publish(house, b"third")
    house.disk = house.disk.crash(5)
    house.start()
    assert any("restored from the journal" in line for line in house.report)
    for topic in TOPICS:
        assert bodies(house, topic) == [b"first", b"second", b"third"]


def test_a_journal_that_failed_is_cleaned_up_as_well() -> None:
    """On a full disk its bytes are wanted."""
    house = crowd()
    publish(house, b"second")
    assert journals(house)
    house.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    publish(house, b"third")
    house.turn()
    assert journals(house) == []
    assert journaled(house) == [0] * len(TOPICS)


def test_a_topic_whose_file_cannot_be_synced_keeps_its_journal() -> None:
    """It is tried again until it is done; what was acknowledged is safe meanwhile."""
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
    """What it had is gone with it, also after a crash."""
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
