"""Topics: the mark P, their channels, ephemeral ones, segments that nobody needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparq.broker.channel import SeekTarget
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.house import House


@pytest.fixture
def house() -> House:
    """A broker with an empty data path."""
    return House()


def changes(house: House) -> list[tuple[str, str, str | None]]:
    """What was created and deleted since last asked."""
    found = list(house.broker.changes)
    house.broker.changes.clear()
    return found


def test_the_first_channel_gets_what_had_gathered(house: House) -> None:
    """And each later channel what comes after it (decision 8)."""
    house.publish("t", b"1", b"2")
    assert (house.topic("t").depth, house.topic("t").message_count) == (2, 2)

    first = house.consumer("t", "a", rdy=10)
    second = house.consumer("t", "b", rdy=10)
    house.publish("t", b"3")

    assert first.bodies() == [b"1", b"2", b"3"]
    assert second.bodies() == [b"3"]
    assert house.topic("t").depth == 0


@pytest.mark.behaviour("TestPause")
def test_a_paused_topic_keeps_what_comes(house: House) -> None:
    """Channels go on with what they have; a channel made meanwhile starts at the mark."""
    consumer = house.consumer("t", "a", rdy=10)
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"1")
    assert (consumer.bodies(), house.topic("t").depth) == ([], 1)
    late = house.consumer("t", "b", rdy=10)

    house.broker.pause_topic("t", False, house.clock.now())
    house.turn()

    assert (consumer.bodies(), late.bodies()) == ([b"1"], [b"1"])


def test_a_new_topic_waits_for_the_lookups_channels() -> None:
    """The first message reaches channels that exist elsewhere; ephemeral ones are not made."""
    house = House(has_lookupd=True)
    consumer = house.consumer("t", "mine", rdy=10)
    house.publish("t", b"1")
    assert consumer.bodies() == []
    assert changes(house) == [("created", "t", None), ("created", "t", "mine")]

    names = ["mine", "other", "x#ephemeral"]
    house.broker.channels_known("t", names, house.clock.now())
    house.turn()

    assert consumer.bodies() == [b"1"]
    assert house.channel("t", "other").depth == 1
    assert changes(house) == [("created", "t", "other")]
    house.broker.channels_known("t", ["later"], house.clock.now())
    assert set(house.broker.topics["t"].channels) == {"mine", "other"}


def test_a_lookup_that_does_not_answer_holds_nobody_for_long() -> None:
    """After five seconds the topic flows without it; a topic of before does not wait at all."""
    house = House(has_lookupd=True)
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"1")
    house.pass_time(4.9)
    assert consumer.bodies() == []
    house.pass_time(0.1)
    assert consumer.bodies() == [b"1"]

    house.restart()
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"2")
    assert b"2" in consumer.bodies()


@pytest.mark.behaviour("TestChannelEmpty", "TestChannelEmptyConsumer")
def test_emptying_a_channel(house: House) -> None:
    """Everything goes: waiting, in flight, delayed, deferred; windows open, late FINs fail."""
    consumer = house.consumer("t", "c", rdy=3)
    house.publish("t", b"deferred", defer_ms=1000)
    house.publish("t", *[b"%d" % n for n in range(10)])
    messages = consumer.messages()
    consumer.say(commands.req(messages[0].id, 1000))
    consumer.answers()
    house.broker.empty_channel("t", "c", house.clock.now())
    house.turn()
    channel = house.channel("t", "c")
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert consumer.session.in_flight_count == 0

    consumer.messages()
    consumer.finish(messages[1:2])
    assert consumer.answers() == [b"E_FIN_FAILED FIN %b failed ID not in flight" % messages[1].id]
    house.pass_time(5.0)
    house.publish("t", b"new")
    assert consumer.bodies() == [b"new"]
    house.crash()
    assert house.channel("t", "c").depth == 1


def test_emptying_a_topic_leaves_its_channels(house: House) -> None:
    """Only what no channel sees goes, also deferred publishes among it."""
    consumer = house.consumer("t", "c")
    house.publish("t", b"1")
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"2", b"3")
    house.publish("t", b"4", defer_ms=10)
    house.broker.empty_topic("t", house.clock.now())
    house.broker.pause_topic("t", False, house.clock.now())
    house.pass_time(1.0)
    assert (house.topic("t").depth, house.channel("t", "c").depth) == (0, 1)

    consumer.say(commands.rdy(10))
    house.publish("t", b"5")

    assert consumer.bodies() == [b"1", b"5"]


def test_deleting_a_channel_ends_its_connections(house: House) -> None:
    """Its clients are disconnected; the others go on."""
    mine, other = house.consumer("t", "c", rdy=1), house.consumer("t", "d", rdy=1)
    house.publish("t", b"x")
    changes(house)
    house.broker.delete_channel("t", "c", house.clock.now())
    house.turn()
    assert (mine.session.closing, other.session.closing) == (True, False)
    assert changes(house) == [("deleted", "t", "c")]

    mine.close()
    house.pass_time(100.0)

    assert set(house.broker.topics["t"].channels) == {"d"}


def test_unknown_names(house: House) -> None:
    """What is not there is told with NSQ's codes."""
    now = house.clock.now()
    house.publish("t", b"x")
    acts: list[tuple[Callable[[], None], str]] = [
        (lambda: house.broker.delete_topic("nope", now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.empty_topic("nope", now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.pause_topic("nope", True, now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.create_channel("nope", "c", now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.delete_channel("t", "nope", now), "CHANNEL_NOT_FOUND"),
        (lambda: house.broker.empty_channel("t", "nope", now), "CHANNEL_NOT_FOUND"),
        (lambda: house.broker.pause_channel("t", "nope", True, now), "CHANNEL_NOT_FOUND"),
        (lambda: house.broker.seek_channel("t", "nope", "latest", now), "CHANNEL_NOT_FOUND"),
    ]
    for act, code in acts:
        with pytest.raises(RemoteError) as caught:
            act()
        assert caught.value.code == code


def test_creating_is_idempotent(house: House) -> None:
    """A topic or a channel that is there stays as it is."""
    now = house.clock.now()
    house.broker.create_topic("t", now)
    house.publish("t", b"x")
    house.broker.create_topic("t", now)
    house.broker.create_channel("t", "c", now)
    house.broker.create_channel("t", "c", now)
    house.turn()

    assert (house.channel("t", "c").depth, house.topic("t").message_count) == (1, 1)


def test_administration_twice_changes_nothing(house: House) -> None:
    """Pausing what is paused, emptying what is empty."""
    now = house.clock.now()
    house.consumer("t", "c")
    for _ in range(2):
        house.broker.pause_topic("t", True, now)
        house.broker.pause_channel("t", "c", True, now)
        house.broker.empty_topic("t", now)
        house.turn()

    assert (house.topic("t").paused, house.channel("t", "c").paused) == (True, True)


# Replay


def test_seek_to_each_kind_of_place(house: House) -> None:
    """Earliest, latest, an index, a time: from there on everything is delivered again."""
    consumer = house.consumer("t", "c", rdy=100)
    times = []
    for n in range(4):
        times.append(house.clock.wall_ns)
        house.publish("t", b"%d" % n)
        house.advance(60.0)
    messages = consumer.messages()
    consumer.finish(messages)

    def replayed(target: SeekTarget) -> list[bytes]:
        house.broker.seek_channel("t", "c", target, house.clock.now())
        house.turn()
        found = consumer.messages()
        assert {message.attempts for message in found} <= {1}
        return [message.body for message in found]

    assert replayed("earliest") == [b"0", b"1", b"2", b"3"]
    assert replayed("latest") == []
    assert replayed(messages[2].index) == [b"2", b"3"]
    assert replayed(("time", times[1])) == [b"1", b"2", b"3"]
    assert replayed(("time", times[3] + 1)) == []
    assert replayed(0) == [b"0", b"1", b"2", b"3"]
    assert replayed(1 << 53) == []


def test_a_replay_brings_deferred_publishes_too(house: House) -> None:
    """Those that were due already come at once, those that are not wait for their time."""
    consumer = house.consumer("t", "c", rdy=100)
    house.publish("t", b"due", defer_ms=1000)
    house.publish("t", b"later", defer_ms=60_000)
    house.publish("t", b"plain")
    house.pass_time(2.0)
    consumer.finish(consumer.messages())
    house.broker.seek_channel("t", "c", "earliest", house.clock.now())
    house.turn()
    assert sorted(consumer.bodies()) == [b"due", b"plain"]

    house.pass_time(60.0)

    assert b"later" in consumer.bodies()


def test_seek_to_a_time_on_the_disk() -> None:
    """The place is looked up on the disk, and the channel moves when it is known."""
    house = House(cache_bytes=1)
    house.consumer("t", "c")
    for n in range(20):
        house.publish("t", b"%d" % n * 100)
        house.advance(1.0)
    house.crash()
    target: SeekTarget = ("time", house.clock.wall_ns - 5_000_000_000)
    house.broker.seek_channel("t", "c", target, house.clock.now())
    house.turn()

    assert house.channel("t", "c").depth == 5


def test_a_held_channel_cannot_be_moved(house: House) -> None:
    """The range reader's bookmark is its own."""
    house.publish("t", b"x")
    house.connect().say(commands.attach("t", "c"))

    with pytest.raises(RemoteError):
        house.broker.seek_channel("t", "c", "earliest", house.clock.now())


# Ephemeral ones


def test_an_ephemeral_channel_goes_with_its_last_consumer(house: House) -> None:
    """Nothing of it is kept; the topic stays."""
    one, two = (house.consumer("t", "c#ephemeral", rdy=1) for _ in range(2))
    house.publish("t", b"x")
    one.close()
    assert "c#ephemeral" in house.broker.topics["t"].channels
    two.close()
    assert house.broker.topics["t"].channels == {}
    house.crash()
    assert house.broker.topics["t"].channels == {}


@pytest.mark.parametrize("topic", ["t", "t#ephemeral"])
@pytest.mark.parametrize("what", ["channel", "topic"])
def test_a_consumer_of_a_deleted_ephemeral_channel_takes_nothing_with_it(
    house: House, topic: str, what: str
) -> None:
    """Its connection ends after the channel, and a new channel of the name keeps its messages."""
    name = "c#ephemeral"
    old = house.consumer(topic, name)
    now = house.clock.now()
    if what == "channel":
        house.broker.delete_channel(topic, name, now)
    else:
        house.broker.delete_topic(topic, now)
    house.turn()
    house.consumer(topic, name)
    house.publish(topic, b"x")
    old.close()

    assert house.channel(topic, name).depth == 1


def test_an_ephemeral_channel_is_gone_after_a_crash(house: House) -> None:
    """A durable channel beside it stays."""
    house.consumer("t", "c#ephemeral")
    house.consumer("t", "d")
    house.crash()

    assert set(house.broker.topics["t"].channels) == {"d"}


def test_an_ephemeral_channel_is_bounded() -> None:
    """Decision 16: it holds mem-queue-size unread messages, the newest beyond are dropped."""
    house = House(mem_queue_size=10)
    consumer = house.consumer("t", "c#ephemeral")
    for n in range(0, 40, 4):
        house.publish("t", *[b"%d" % (n + at) for at in range(4)])
    assert house.channel("t", "c#ephemeral").depth == 10

    consumer.say(commands.rdy(4))
    messages = consumer.messages()
    house.publish("t", b"40", b"41", b"42", b"43", b"44", b"45")
    consumer.say(commands.rdy(100))
    messages += consumer.messages()

    assert [int(m.body) for m in messages] == [*range(10), 40, 41, 42, 43]
    assert house.channel("t", "c#ephemeral").depth == 0


def test_a_queue_size_of_zero_is_a_rendezvous() -> None:
    """What nobody is ready for is dropped, what somebody is ready for arrives."""
    house = House(mem_queue_size=0)
    consumer = house.consumer("t", "c#ephemeral")
    house.publish("t", b"1")
    consumer.say(commands.rdy(1))
    house.publish("t", b"2", b"3")

    assert consumer.bodies() == [b"2"]


def test_an_ephemeral_topic(house: House) -> None:
    """It works like any other, in memory: no file, and gone with its last channel."""
    files = house.disk.paths()
    consumer = house.consumer("t#ephemeral", "c", rdy=10)
    producer = house.connect()
    producer.say(commands.mpub("t#ephemeral", [b"1", b"2"]))
    messages = consumer.messages()
    assert ([m.body for m in messages], producer.answers()) == ([b"1", b"2"], [b"OK"])
    consumer.say(commands.req(messages[0].id, 0))
    assert [m.attempts for m in consumer.messages()] == [2]
    assert house.disk.paths() == files

    consumer.close()

    assert house.broker.topics == {}
    assert changes(house)[-2:] == [
        ("deleted", "t#ephemeral", "c"),
        ("deleted", "t#ephemeral", None),
    ]


def test_an_ephemeral_topic_without_a_channel_is_bounded() -> None:
    """It keeps the first mem-queue-size messages; the publisher gets its OK all the same."""
    house = House(mem_queue_size=5)
    house.publish("t#ephemeral", *[b"%d" % n for n in range(4)])
    house.publish("t#ephemeral", *[b"%d" % n for n in range(4, 8)])
    assert house.topic("t#ephemeral").depth == 5

    house.publish("t#ephemeral", b"8")

    assert house.consumer("t#ephemeral", "c", rdy=10).bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_an_ephemeral_topic_is_bounded_in_bytes() -> None:
    """Beyond its bytes new messages are dropped; finished ones make room."""
    house = House(ephemeral_bytes_max=4 << 20)
    consumer = house.consumer("t#ephemeral", "c")
    for _ in range(12):
        house.publish("t#ephemeral", b"x" * (1 << 20))
    assert 3 <= house.channel("t#ephemeral", "c").depth <= 5

    consumer.say(commands.rdy(100))
    while messages := consumer.messages():
        consumer.finish(messages)
    house.publish("t#ephemeral", b"y" * 100)

    assert consumer.bodies() == [b"y" * 100]


# Trimming


def test_finished_segments_go_and_a_message_pins_only_its_own() -> None:
    """A segment with an unfinished message stays, those before and behind it go."""
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=100)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    messages = consumer.messages()
    log = house.broker.topics["t"].stream.log
    before = len(log.segments())
    consumer.finish([m for m in messages if m is not messages[20]])
    house.pass_time(3.0)

    segments = log.segments()
    assert before > 5
    assert len(segments) == 2
    assert segments[0].first_index <= messages[20].index < segments[0].end_index
    files = [path for path in house.disk.paths() if path.endswith(".log")]
    assert len(files) == 2


def test_no_segment_goes_before_its_finishes_are_synced() -> None:
    """Decision 11: a power cut after trimming does not bring the cursor back to nowhere."""
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=100)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    consumer.finish(consumer.messages())
    house.advance(1.5)
    house.broker.tick(house.clock.now())
    topic = house.broker.topics["t"]
    assert topic.writer is not None
    assert len(topic.stream.log.segments()) > 5
    assert not topic.writer.is_synced()

    house.turn()

    assert topic.writer.is_synced()
    assert len(topic.stream.log.segments()) == 1


def test_a_deferred_publish_pins_its_segment() -> None:
    """It is delivered when it is due, however much went by."""
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=100)
    house.publish("t", b"deferred", defer_ms=60_000)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    consumer.finish(consumer.messages())
    house.pass_time(5.0)
    house.pass_time(56.0)

    assert consumer.bodies() == [b"deferred"]


def test_segments_before_the_mark_go_without_channels() -> None:
    """What the deleted channels had seen is not kept for anybody; what gathered since is."""
    house = House(max_bytes_per_file=2000)
    house.consumer("t", "c", rdy=100)
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    house.broker.delete_channel("t", "c", house.clock.now())
    for n in range(40):
        house.publish("t", b"%d" % n * 150)
    house.pass_time(5.0)

    assert house.consumer("t", "d", rdy=100).bodies() == [b"%d" % n * 150 for n in range(40)]
    assert house.topic("t").log_messages < 50
