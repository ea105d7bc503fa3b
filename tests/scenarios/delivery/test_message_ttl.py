"""`message_ttl`: older messages are not delivered, and younger ones are not lost."""

from __future__ import annotations

import random

import pytest

from sparq.protocol import commands
from tests.broker.harness import BrokerHarness

SECOND = 1_000_000_000
TTL = 10 * SECOND


def broker_with_ttl(**options: int) -> BrokerHarness:
    return BrokerHarness(message_ttl_ns=TTL, **options)


def fill(harness: BrokerHarness, first: int, count: int, topic: str = "t") -> None:
    harness.publish(topic, *(b"%d" % number for number in range(first, first + count)))


def test_expired_messages_are_finished_undelivered() -> None:
    """Messages that are too old are counted and finished; younger ones are delivered in order.

    That holds after a crash, too.
    """
    harness = broker_with_ttl()
    harness.consumer("t", "c").close()
    fill(harness, 0, 30)
    harness.advance(8)
    fill(harness, 30, 5)
    harness.advance(4)

    consumer = harness.consumer("t", "c", rdy=100)
    assert [b"%d" % number for number in range(30, 35)] == consumer.bodies()
    assert (30, 0) == (harness.channel("t", "c").expired_count, harness.channel("t", "c").depth)
    harness.pass_time(1)
    harness.crash()
    assert 0 == harness.channel("t", "c").expired_count
    consumer = harness.consumer("t", "c", rdy=100)
    harness.pass_time(61)
    assert [] == [body for body in consumer.bodies() if int(body) < 30]


def test_a_message_of_exactly_the_ttl_is_delivered() -> None:
    """A message of exactly message_ttl is delivered; one that is 1 ns older is not."""
    harness = broker_with_ttl()
    harness.consumer("t", "c").close()
    fill(harness, 0, 1)
    harness.clock.wall_ns += TTL
    assert [b"0"] == harness.consumer("t", "c", rdy=1).bodies()
    fill(harness, 1, 1, "u")
    harness.consumer("u", "c").close()
    harness.clock.wall_ns += TTL + 1
    assert [] == harness.consumer("u", "c", rdy=1).bodies()


def test_an_expired_message_is_not_redelivered() -> None:
    """A message that was requeued or timed out is not delivered again when it is too old."""
    harness = broker_with_ttl()
    consumer = harness.consumer("t", "c", rdy=3, msg_timeout=20_000)
    fill(harness, 0, 3)
    first, second, _ = consumer.messages()
    consumer.finish([first])
    harness.advance(11)
    consumer.say(commands.req(second.id, 0))
    assert [] == consumer.messages()
    assert 1 == harness.channel("t", "c").expired_count
    harness.pass_time(10)
    assert [] == consumer.messages()
    figures = harness.channel("t", "c")
    assert (2, 0, 0) == (figures.expired_count, figures.depth, figures.in_flight_count)
    harness.crash()
    consumer = harness.consumer("t", "c", rdy=3)
    harness.pass_time(1)
    assert [] == consumer.messages()


def test_a_deferred_messages_age_counts_from_its_publish() -> None:
    """Age counts from the publish: a deferred message is delivered if it is due within the TTL."""
    harness = broker_with_ttl()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"soon", defer_ms=9_000)
    harness.publish("t", b"late", defer_ms=11_000)
    harness.pass_time(9)
    harness.pass_time(9)
    assert [b"soon"] == consumer.bodies()
    assert 1 == harness.channel("t", "c").expired_count


def test_without_consumers_expired_messages_are_deleted_by_file() -> None:
    """Without consumers, expired messages are deleted a file at a time to save disk space."""
    harness = broker_with_ttl(max_bytes_per_file=20_000)
    harness.consumer("t", "c").close()
    for _ in range(30):
        harness.publish("t", b"x" * 6_000)
    harness.advance(11)
    for _ in range(4):
        harness.pass_time(1.1)

    figures = harness.channel("t", "c")
    assert (0, 30 - figures.depth) == (figures.voided_count, figures.expired_count)
    assert figures.depth < 4
    (note,) = [note for note in harness.broker.notes if "too old" in note]
    assert note.startswith("channel t:c: ")
    assert 1 == len(harness.broker.topics["t"].stream.log.segments())


def test_each_note_counts_the_messages_since_the_last_one() -> None:
    """A channel's expired messages are reported at most once a minute, each message once."""
    harness = broker_with_ttl()
    harness.consumer("t", "c", rdy=0)
    for count in (3, 4):
        fill(harness, 0, count)
        harness.pass_time(61)
        harness.pass_time(61)

    notes = [note for note in harness.broker.notes if "too old" in note]
    assert [
        f"channel t:c: {count} messages were too old to be delivered" for count in (3, 4)
    ] == notes


def test_expiry_follows_the_changed_clock() -> None:
    """After the clock was changed, exactly the messages that are too old now are skipped."""
    harness = broker_with_ttl()
    harness.consumer("t", "c").close()
    hour = 3600 * SECOND
    for number in range(6):
        harness.clock.wall_ns += -hour if number % 2 else hour
        fill(harness, 10 * number, 10)
    harness.clock.wall_ns += hour
    consumer = harness.consumer("t", "c", rdy=35)
    bodies = consumer.bodies()
    assert [b"%d" % (20 * half + one) for half in range(3) for one in range(10)] == bodies
    assert 30 == harness.channel("t", "c").expired_count


def test_expired_messages_are_not_counted_as_sampled() -> None:
    """Expired messages are counted as expired, before any message is left out by sampling."""
    harness = broker_with_ttl()
    harness.consumer("t", "c").close()
    fill(harness, 0, 50)
    harness.advance(11)
    fill(harness, 50, 50)
    consumer = harness.consumer("t", "c", rdy=200, sample_rate=50)
    bodies = consumer.bodies()
    assert 50 == harness.channel("t", "c").expired_count
    assert 10 < len(bodies) < 40
    assert all(int(body) >= 50 for body in bodies)


class TtlModel:
    """A consumer that checks every message: it is delivered in time, and ends once."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.harness = broker_with_ttl()
        self.born: dict[bytes, int] = {}
        self.finished: set[bytes] = set()
        self.expired = 0
        self.consume()

    def consume(self) -> None:
        """Connect a new consumer."""
        self.consumer = self.harness.consumer("t", "c", rdy=self.chosen.choice((1, 7, 50)))

    def too_old(self) -> int:
        """Number of expired messages since the broker's start."""
        return self.harness.channel("t", "c").expired_count

    def publish(self) -> None:
        """Publish some messages, deferred or not."""
        count = self.chosen.randrange(1, 9)
        bodies = [b"%d" % (len(self.born) + number) for number in range(count)]
        self.born |= dict.fromkeys(bodies, self.harness.clock.wall_ns)
        self.harness.publish("t", *bodies, defer_ms=self.chosen.choice((0, 0, 0, 3_000, 14_000)))

    def crash(self) -> None:
        """Crash and restart the broker, whose counters restart at 0."""
        self.expired += self.too_old()
        self.harness.crash()
        self.consume()

    def take(self, finishes: float) -> None:
        """Check that each message is neither too old nor finished before.

        Finish or requeue some.
        """
        while messages := self.consumer.messages():
            for message in messages:
                assert self.harness.clock.wall_ns - self.born[message.body] <= TTL
                assert message.body not in self.finished
                if self.chosen.random() < finishes:
                    self.finished.add(message.body)
                    self.consumer.finish([message])
                elif self.chosen.random() < 0.5:
                    delay_ms = self.chosen.choice((500, 2_000))
                    self.consumer.say(commands.req(message.id, delay_ms))


@pytest.mark.parametrize("seed", range(8))
def test_each_message_is_finished_or_expires(seed: int) -> None:
    """Whatever happens, each message is finished or expires.

    No expired or finished one is delivered.
    """
    lives = TtlModel(seed)
    for _ in range(120):
        action = lives.chosen.randrange(6)
        if action < 2:
            lives.publish()
        elif action == 2:
            lives.harness.pass_time(lives.chosen.choice((0.5, 3, 12)))
        elif action == 3:
            lives.crash()
        lives.take(0.6)
    lives.consumer.say(commands.rdy(2_500))
    for _ in range(40):
        lives.take(1)
        lives.harness.pass_time(4)
    lives.take(1)

    channel = lives.harness.channel("t", "c")
    assert (0, 0, 0) == (channel.depth, channel.in_flight_count, channel.deferred_count)
    expired = lives.expired + lives.too_old()
    assert len(lives.born) == len(lives.finished) + expired
    assert len(lives.finished) > 20
    assert expired > 20
