"""Delivery: order, fairness, windows, output limits, sampling, topology."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.log.log import Log
from sparq.log.reading import BlockRead
from sparq.log.task import TaskKind
from sparq.protocol import commands
from sparq.protocol.frames import BodySlices
from sparq.protocol.layout import FRAME_OVERHEAD
from tests.broker.harness import BrokerHarness, Client, Message, Ticket


def numbers(messages: list[Message]) -> list[int]:
    """The bodies as numbers."""
    return [int(message.body) for message in messages]


def publish_numbers(harness: BrokerHarness, count: int, first: int = 0) -> None:
    """Publish messages with the bodies first, first + 1, ..."""
    harness.publish("t", *[b"%d" % n for n in range(first, first + count)])


def test_a_burst_is_shared_in_equal_parts(harness: BrokerHarness) -> None:
    """A burst is divided equally among all ready consumers.

    This holds even if one consumer's window is large enough for the whole burst.
    """
    consumers = [harness.consumer("t", "c", rdy=1000) for _ in range(4)]
    publish_numbers(harness, 400)

    shares = [len(consumer.messages()) for consumer in consumers]

    assert shares == [100, 100, 100, 100]


def test_messages_beyond_a_small_window_go_to_other_consumers(harness: BrokerHarness) -> None:
    """Messages that do not fit one consumer's window are divided among the others."""
    small = harness.consumer("t", "c", rdy=5)
    large = [harness.consumer("t", "c", rdy=1000) for _ in range(2)]
    publish_numbers(harness, 305)

    assert len(small.messages()) == 5
    assert [len(consumer.messages()) for consumer in large] == [150, 150]


def test_single_messages_go_to_the_consumers_in_turn(harness: BrokerHarness) -> None:
    """Single messages go to the consumers in turn, to the one waiting longest first."""
    consumers = [harness.consumer("t", "c", rdy=100) for _ in range(3)]
    for number in range(9):
        publish_numbers(harness, 1, number)

    assert [numbers(consumer.messages()) for consumer in consumers] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5, 8],
    ]


def test_at_most_half_of_a_run_are_redeliveries(harness: BrokerHarness) -> None:
    """While there are fresh messages, at most half of a run are redeliveries."""
    consumer = harness.consumer("t", "c", rdy=20)
    publish_numbers(harness, 100)
    messages = consumer.messages()
    consumer.say(b"".join(commands.req(message.id, 0) for message in messages))
    again = consumer.messages()

    assert len(again) == 20
    assert sum(message.attempts == 2 for message in again) <= 10
    assert sum(message.attempts == 1 for message in again) >= 10


def test_a_session_that_cannot_send_gets_nothing(harness: BrokerHarness) -> None:
    """A session whose writing is paused gets no messages; its share goes to the others.

    It gets messages again when writing resumes.
    """
    slow = harness.consumer("t", "c", rdy=100)
    quick = harness.consumer("t", "c", rdy=100)
    slow.session.paused_writing = True
    publish_numbers(harness, 10)
    assert (len(slow.messages()), len(quick.messages())) == (0, 10)

    publish_numbers(harness, 300, 10)
    assert (len(slow.messages()), len(quick.messages())) == (0, 90)
    slow.session.paused_writing = False
    harness.broker.writable(slow.session)
    harness.turn()

    assert len(slow.messages()) == 100


def test_output_of_one_session_is_bounded() -> None:
    """A turn puts out at most `output_bytes_max` and one message per session.

    The next turns deliver the rest, even with RDY 2500.
    """
    harness = BrokerHarness(output_bytes_max=10_000)
    consumer = harness.consumer("t", "c", rdy=2500)
    consumer.answers()
    many = BodySlices.of([b"x" * 1000] * 100)
    harness.broker.publish("t", many, harness.clock.now(), Ticket())
    sizes: list[int] = []
    for _ in range(30):
        harness.run(harness.broker.end_turn(harness.clock.now()))
        sizes.append(sum(len(part) for part in harness.broker.take_output(consumer.session)))

    assert max(sizes) < 10_000 + 1000 + FRAME_OVERHEAD
    assert sum(sizes) == 100 * (1000 + FRAME_OVERHEAD)


@pytest.mark.behaviour("TestPausing")
def test_a_paused_channel_delivers_nothing(harness: BrokerHarness) -> None:
    """A paused channel delivers nothing but accepts FINs; when resumed it delivers again."""
    consumer = harness.consumer("t", "c", rdy=1)
    publish_numbers(harness, 3)
    messages = consumer.messages()
    harness.broker.pause_channel("t", "c", True, harness.clock.now())
    consumer.finish(messages)
    assert consumer.messages() == []
    assert harness.channel("t", "c").paused

    harness.act("pause_channel", "t", "c", False)

    assert numbers(consumer.messages()) == [1]


@pytest.mark.behaviour("TestSampling")
def test_sampling_finishes_what_it_drops(harness: BrokerHarness) -> None:
    """With sample rate 42 about 43 % of the messages are delivered.

    The others are finished, also after a crash.
    """
    harness.publish("t", *[b"%d" % n for n in range(10_000)])
    consumer = harness.connect()
    consumer.say(commands.identify(b'{"sample_rate": 42}') + commands.sub("t", "c"))
    consumer.say(commands.rdy(2500))
    kept = 0
    while messages := consumer.messages():
        kept += len(messages)
        consumer.finish(messages)

    assert 3800 < kept < 4800
    channel = harness.channel("t", "c")
    assert (channel.depth, channel.in_flight_count) == (0, 0)
    harness.crash()
    assert harness.channel("t", "c").depth == 0


def test_sampling_applies_to_redeliveries(harness: BrokerHarness) -> None:
    """Sampling also drops redeliveries: requeueing everything empties the channel."""
    publish_numbers(harness, 100)
    consumer = harness.connect()
    consumer.say(commands.identify(b'{"sample_rate": 10}') + commands.sub("t", "c"))
    consumer.say(commands.rdy(2500))
    for _ in range(60):
        consumer.say(b"".join(commands.req(m.id, 0) for m in consumer.messages()))

    channel = harness.channel("t", "c")
    assert (channel.depth, channel.in_flight_count) == (0, 0)


def test_cold_messages_are_read_from_the_disk() -> None:
    """An uncached backlog is delivered completely and in order, including redeliveries."""
    harness = BrokerHarness(cache_bytes=1)
    for batch in range(30):
        publish_numbers(harness, 50, 50 * batch)
    harness.crash()
    consumer = harness.consumer("t", "c", rdy=100)
    seen: list[int] = []
    while messages := consumer.messages():
        first = [message for message in messages if message.attempts == 1]
        seen += numbers(first)
        again = [m for m in messages if m.attempts == 1 and int(m.body) % 10 == 3]
        consumer.say(b"".join(commands.req(message.id, 0) for message in again))
        consumer.finish([message for message in messages if message not in again])

    assert sorted(seen) == list(range(1500))
    assert harness.channel("t", "c").depth == 0


def test_a_waiting_channel_searches_the_index_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that waits for a block searches the index once, not in every turn."""
    harness = BrokerHarness(cache_bytes=1)
    for batch in range(4):
        publish_numbers(harness, 10, 10 * batch)
    harness.crash()
    consumer = harness.consumer("t", "c")
    loads: list[int] = []
    load = Log.load

    def counted(log: Log, index: int) -> BlockRead:
        loads.append(index)
        return load(log, index)

    monkeypatch.setattr(Log, "load", counted)
    consumer.say(commands.rdy(100), turn=False)
    for _ in range(20):
        harness.wake("t", "c")
        harness.end_turn()
    harness.turn()

    assert len(consumer.messages()) == 40
    assert len(loads) == len(set(loads))


def test_the_next_block_is_read_while_clients_are_busy() -> None:
    """After a block is used up, the next one is read ahead, even if no window is open."""
    harness = BrokerHarness(cache_bytes=1, commit_count=10)
    for batch in range(4):
        harness.publish("t", *[b"%d" % n * 30_000 for n in range(10 * batch, 10 * batch + 10)])
    harness.crash()
    consumer = harness.consumer("t", "c")
    consumer.say(commands.rdy(10), turn=False)
    kinds: list[list[TaskKind]] = []
    for _ in range(4):
        tasks = harness.broker.end_turn(harness.clock.now())
        harness.run(tasks)
        consumer.collect()
        ran = [topic_task.task.kind for topic_task in tasks]
        kinds.append([kind for kind in ran if kind is TaskKind.READ])

    assert len(consumer.messages()) == 10
    assert kinds[:2] == [[TaskKind.READ], [TaskKind.READ]]


def topology_aware_harness(**options: Any) -> BrokerHarness:
    return BrokerHarness(topology_aware=True, topology_region="r", topology_zone="z", **options)


def received_count(client: Client) -> int:
    return len(client.messages())


@pytest.mark.behaviour("TestSameZoneConsumerV2")
def test_consumers_in_the_zone_are_served_first() -> None:
    """Consumers in nsqd's zone are served first.

    Of 21 messages, two clients in the zone with RDY 10 get 20, and one in another zone gets 1.
    """
    harness = topology_aware_harness()
    far = harness.consumer("t", "c", 10, topology_region="r2", topology_zone="z2")
    near = [harness.consumer("t", "c", 10, topology_region="r", topology_zone="z") for _ in "ab"]
    for number in range(21):
        harness.publish("t", b"%d" % number)

    assert [10, 10] == [received_count(client) for client in near]
    assert 1 == received_count(far)
    stats = harness.channel("t", "c")
    assert 20 == stats.zone_local_msg_count
    assert 0 == stats.region_local_msg_count
    assert 1 == stats.global_msg_count


def test_consumers_in_the_region_are_served_after_the_zone() -> None:
    """A burst fills the windows of the zone, then those of the region, then the others."""
    harness = topology_aware_harness()
    home = harness.consumer("u", "c", 2, topology_region="r", topology_zone="z")
    region = harness.consumer("u", "c", 2, topology_region="r", topology_zone="z2")
    far = harness.consumer("u", "c", 2, topology_region="r2", topology_zone="z2")
    harness.publish("u", *(b"%d" % number for number in range(5)))

    assert [2, 2, 1] == [received_count(client) for client in (home, region, far)]
    stats = harness.channel("u", "c")
    counts = stats.zone_local_msg_count, stats.region_local_msg_count, stats.global_msg_count
    assert (2, 2, 1) == counts


def test_a_delivery_is_zone_local_if_neither_side_has_a_zone() -> None:
    """A delivery is zone-local if neither nsqd nor the client has a zone name."""
    harness = BrokerHarness(topology_aware=True)
    harness.consumer("t", "c", 1)
    harness.publish("t", b"x")

    assert 1 == harness.channel("t", "c").zone_local_msg_count


def test_without_topology_aware_zones_do_not_affect_shares() -> None:
    """Without `topology_aware`, zones do not affect shares, and none is counted as zone-local."""
    harness = BrokerHarness(topology_zone="z")
    near = harness.consumer("t", "c", 10, topology_zone="z")
    far = harness.consumer("t", "c", 10, topology_zone="z2")
    harness.publish("t", *(b"%d" % number for number in range(10)))

    assert [5, 5] == [received_count(near), received_count(far)]
    assert 0 == harness.channel("t", "c").zone_local_msg_count
