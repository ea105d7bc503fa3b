"""The registry: producers of topics and channels, inactivity and tombstones."""

import pytest

from sparq.nsqlookupd.registry import RegisteredNsqd, Registry
from sparq.protocol.instant import Instant

SECOND = 1_000_000_000


def at(seconds: float) -> Instant:
    return Instant(int(1e18 + seconds * SECOND), int(seconds * SECOND))


def producer(name: str, now: Instant | None = None, port: int = 4151) -> RegisteredNsqd:
    return RegisteredNsqd(
        id=f"{name}:1",
        remote_address=f"{name}:1",
        hostname=name,
        broadcast_address=name,
        tcp_port=4150,
        http_port=port,
        version="1.3.0",
        topology_zone="",
        topology_region="",
        last_update=now or at(0),
    )


def registry(*producers: RegisteredNsqd) -> Registry:
    made = Registry(300 * SECOND, 45 * SECOND)
    for one in producers:
        made.add(one)
    return made


def names(found: list[RegisteredNsqd]) -> list[str]:
    return [one.hostname for one in found]


def keys(known: Registry) -> list[tuple[str, str, str, list[str]]]:
    return [
        (category, key, subkey, [entry.producer.hostname for entry in entries])
        for category, key, subkey, entries in known.registrations()
    ]


@pytest.mark.behaviour("nsqlookupd.TestRegistrationDB")
def test_registering_a_channel_registers_its_topic() -> None:
    """A producer is found by topic; names are sorted, producers in order of registration."""
    a, b = producer("a"), producer("b")
    known = registry(a, b)
    known.register(b, "t2", "")
    known.register(b, "t1", "z")
    known.register(a, "t1", "y")
    known.register(a, "t1", "y")

    assert known.topics() == ["t1", "t2"]
    assert known.channels("t1") == ["y", "z"]
    assert known.channels("t2") == known.channels("unknown") == []
    assert names(known.producers("t1", at(1))) == ["b", "a"]
    assert known.producers("unknown", at(1)) == []
    assert keys(known) == [
        ("client", "", "", ["a", "b"]),
        ("topic", "t1", "", ["b", "a"]),
        ("topic", "t2", "", ["b"]),
        ("channel", "t1", "y", ["a"]),
        ("channel", "t1", "z", ["b"]),
    ]


def test_topics_and_channels_stay_known_without_producers() -> None:
    """Topics and channels stay known without producers; ephemeral ones do not."""
    a, b = producer("a"), producer("b")
    known = registry(a, b)
    for one in (a, b):
        known.register(one, "t", "c")
        known.register(one, "t", "e#ephemeral")
        known.register(one, "x#ephemeral", "c")

    known.remove(a)
    assert known.topics() == ["t", "x#ephemeral"]
    assert known.channels("t") == ["c", "e#ephemeral"]
    assert names(known.producers("t", at(1))) == ["b"]

    known.remove(b)
    known.remove(b)
    assert known.topics() == ["t"]
    assert known.channels("t") == ["c"]
    assert known.nodes(at(1)) == []
    assert (a.topics, a.channels) == (set(), set())


@pytest.mark.behaviour("nsqlookupd.TestChannelUnregister")
def test_unregistering_a_channel_leaves_the_topic() -> None:
    """An unregistered channel stays known without producers; the topic keeps its producer."""
    a = producer("a")
    known = registry(a)
    known.register(a, "t", "c")
    known.register(a, "t", "e#ephemeral")
    known.unregister_channel(a, "t", "c")
    known.unregister_channel(a, "t", "e#ephemeral")
    known.unregister_channel(a, "t", "never")

    assert known.channels("t") == ["c"]
    assert names(known.producers("t", at(1))) == ["a"]
    assert ("channel", "t", "c", []) in keys(known)


@pytest.mark.behaviour("nsqlookupd.TestRegistrationDB")
def test_unregistering_a_topic_removes_its_producer_from_the_channels() -> None:
    """Unregistering a topic removes the producer from its channels; other producers stay."""
    a, b = producer("a"), producer("b")
    known = registry(a, b)
    known.register(a, "t", "c")
    known.register(b, "t", "c")
    known.register(a, "x#ephemeral", "")
    known.unregister_topic(a, "t")
    known.unregister_topic(a, "x#ephemeral")
    known.unregister_topic(a, "never")

    assert keys(known)[1:] == [("topic", "t", "", ["b"]), ("channel", "t", "c", ["b"])]


@pytest.mark.behaviour("nsqlookupd.TestRegistrationDB")
def test_topics_and_channels_are_created_and_deleted_without_producers() -> None:
    """Topics and channels are created and deleted without producers; deleting unregisters all."""
    a = producer("a")
    known = registry(a)
    known.create_topic("t1")
    known.create_channel("t2", "c")
    known.register(a, "t3", "c")
    known.register(a, "t3", "d")

    assert known.topics() == ["t1", "t2", "t3"]
    assert known.delete_channel("t2", "c")
    assert not known.delete_channel("t2", "c")
    assert not known.delete_channel("never", "c")
    assert known.delete_channel("t3", "d")
    known.delete_topic("t3")
    known.delete_topic("t3")
    assert known.topics() == ["t1", "t2"]
    assert known.channels("t3") == []
    assert (a.topics, a.channels) == (set(), set())
    known.register(a, "t3", "c")
    known.remove(a)
    assert known.topics() == ["t1", "t2", "t3"]


@pytest.mark.behaviour("nsqlookupd.TestRegistrationDB", "nsqlookupd.TestInactiveNodes")
def test_a_producer_without_updates_becomes_inactive() -> None:
    """A producer is not listed after 300 s without an update, until the next update."""
    a = producer("a", at(10))
    known = registry(a)
    known.register(a, "t", "")

    assert names(known.producers("t", at(310))) == ["a"]
    assert known.producers("t", at(310.1)) == []
    assert known.nodes(at(310.1)) == []
    a.last_update = at(400)
    assert names(known.producers("t", at(410))) == ["a"]


@pytest.mark.behaviour("nsqlookupd.TestTombstoneRecover", "nsqlookupd.TestTombstonedNodes")
def test_a_tombstone_hides_one_producer_from_one_topic_for_a_while() -> None:
    """A tombstone hides one producer from one topic for 45 s; /nodes lists it, marked."""
    a, b = producer("a"), producer("a", port=9)
    b.id = "b:1"
    known = registry(a, b)
    for topic in ("t", "u"):
        known.register(a, topic, "")
        known.register(b, topic, "")

    known.tombstone("t", "a:4151", at(1))
    known.tombstone("t", "nobody:1", at(1))
    known.tombstone("never", "a:4151", at(1))
    assert known.producers("t", at(45.9)) == [b]
    assert known.producers("u", at(45.9)) == [a, b]
    assert known.nodes(at(45.9)) == [
        (a, [("t", True), ("u", False)]),
        (b, [("t", False), ("u", False)]),
    ]
    assert known.producers("t", at(46)) == [a, b]


@pytest.mark.behaviour("nsqlookupd.TestTombstoneUnregister")
def test_register_keeps_a_tombstone_and_unregister_removes_it() -> None:
    """REGISTER does not remove a tombstone; UNREGISTER and a new REGISTER do."""
    a = producer("a")
    known = registry(a)
    known.register(a, "t", "")
    known.tombstone("t", "a:4151", at(1))
    known.register(a, "t", "c")
    assert known.producers("t", at(2)) == []

    known.unregister_topic(a, "t")
    assert known.producers("t", at(50)) == []
    known.register(a, "t", "")
    assert known.producers("t", at(2)) == [a]


def test_names_are_counted() -> None:
    """``name_count`` counts the known topics and channels, ``missing`` the new ones of a pair."""
    registry = Registry(1 << 60, 1 << 60)
    assert (2, 1) == (registry.missing("t", "c"), registry.missing("t", ""))
    registry.create_channel("t", "c")
    registry.create_channel("t", "c")
    registry.create_channel("t", "d")
    registry.create_topic("u")
    assert 4 == registry.name_count
    assert [0, 1, 1] == [registry.missing(*n) for n in (("t", "c"), ("t", "e"), ("u", "c"))]
    assert registry.delete_channel("t", "c")
    assert not registry.delete_channel("t", "c")
    assert 3 == registry.name_count
    registry.delete_topic("t")
    assert 1 == registry.name_count
