"""`message_ttl`: older messages are not delivered, and younger ones are not lost."""

from __future__ import annotations

import random

import pytest

from sparq.broker.policies import Policy
from sparq.protocol import commands
from tests.broker.house import House, Ticket

SECOND = 1_000_000_000
TTL = 10 * SECOND


def house_with_ttl(**options: int) -> House:
    return House(message_ttl_ns=TTL, **options)


def fill(house: House, first: int, count: int, topic: str = "t") -> None:
    house.publish(topic, *(b"%d" % number for number in range(first, first + count)))


def test_what_is_too_old_is_passed_over() -> None:
    """Messages that are too old are counted and finished; younger ones are delivered in order.

    That holds after a crash, too.
    """
    house = house_with_ttl()
    house.consumer("t", "c").close()
    fill(house, 0, 30)
    house.advance(8)
    fill(house, 30, 5)
    house.advance(4)

    consumer = house.consumer("t", "c", rdy=100)
    assert [b"%d" % number for number in range(30, 35)] == consumer.bodies()
    assert (30, 0) == (house.channel("t", "c").expired_count, house.channel("t", "c").depth)
    house.pass_time(1)
    house.crash()
    assert 0 == house.channel("t", "c").expired_count
    consumer = house.consumer("t", "c", rdy=100)
    house.pass_time(61)
    assert [] == [body for body in consumer.bodies() if int(body) < 30]


def test_exactly_as_old_is_not_too_old() -> None:
    """A message of exactly message_ttl is delivered; one that is 1 ns older is not."""
    house = house_with_ttl()
    house.consumer("t", "c").close()
    fill(house, 0, 1)
    house.clock.wall_ns += TTL
    assert [b"0"] == house.consumer("t", "c", rdy=1).bodies()
    fill(house, 1, 1, "u")
    house.consumer("u", "c").close()
    house.clock.wall_ns += TTL + 1
    assert [] == house.consumer("u", "c", rdy=1).bodies()


def test_once_more() -> None:
    """A message that was requeued or timed out is not delivered again when it is too old."""
    house = house_with_ttl()
    consumer = house.consumer("t", "c", rdy=3, msg_timeout=20_000)
    fill(house, 0, 3)
    first, second, _ = consumer.messages()
    consumer.finish([first])
    house.advance(11)
    consumer.say(commands.req(second.id, 0))
    assert [] == consumer.messages()
    assert 1 == house.channel("t", "c").expired_count
    house.pass_time(10)
    assert [] == consumer.messages()
    figures = house.channel("t", "c")
    assert (2, 0, 0) == (figures.expired_count, figures.depth, figures.in_flight_count)
    house.crash()
    consumer = house.consumer("t", "c", rdy=3)
    house.pass_time(1)
    assert [] == consumer.messages()


def test_a_young_one_comes_once_more() -> None:
    """A requeued message that is not too old is delivered again, with attempts 2."""
    house = house_with_ttl()
    consumer = house.consumer("t", "c", rdy=1)
    fill(house, 0, 1)
    (message,) = consumer.messages()
    house.advance(9)
    consumer.say(commands.req(message.id, 0))
    assert [(message.id, 2)] == [(found.id, found.attempts) for found in consumer.messages()]


def test_deferred_messages() -> None:
    """Age counts from the publish: a deferred message is delivered if it is due within the TTL."""
    house = house_with_ttl()
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"soon", defer_ms=9_000)
    house.publish("t", b"late", defer_ms=11_000)
    house.pass_time(9)
    house.pass_time(9)
    assert [b"soon"] == consumer.bodies()
    assert 1 == house.channel("t", "c").expired_count


def test_of_one_channel_at_run_time() -> None:
    """A policy can set `message_ttl` for one channel while nsqd runs; others get all messages."""
    house = House()
    for channel in ("hasty", "patient"):
        house.consumer("t", channel).close()
    ticket = Ticket()
    house.broker.choose_policies([Policy("t", "hasty", {"message_ttl_ns": TTL})], ticket)
    fill(house, 0, 4)
    house.advance(11)
    fill(house, 4, 1)

    assert [b"4"] == house.consumer("t", "hasty", rdy=9).bodies()
    assert 5 == len(house.consumer("t", "patient", rdy=9).bodies())
    assert (4, 0) == tuple(house.channel("t", name).expired_count for name in ("hasty", "patient"))


def test_a_backlog_of_many_blocks_that_are_not_in_memory() -> None:
    """A backlog of 20,000 expired messages is skipped, and the first younger one is found."""
    house = house_with_ttl(cache_bytes=1 << 16)
    house.consumer("t", "c").close()
    for first in range(0, 20_000, 500):
        fill(house, first, 500)
    house.advance(11)
    fill(house, 20_000, 3)
    house.restart()

    consumer = house.consumer("t", "c", rdy=10)
    for _ in range(10):
        house.pass_time(0.1)
    assert [b"20000", b"20001", b"20002"] == consumer.bodies()
    assert 20_000 == house.channel("t", "c").expired_count


def test_what_nobody_asks_for_goes_in_whole_files() -> None:
    """Without consumers, expired messages are deleted a file at a time to save disk space."""
    house = house_with_ttl(max_bytes_per_file=20_000)
    house.consumer("t", "c").close()
    for _ in range(30):
        house.publish("t", b"x" * 6_000)
    house.advance(11)
    for _ in range(4):
        house.pass_time(1.1)

    figures = house.channel("t", "c")
    assert (0, 30 - figures.depth) == (figures.voided_count, figures.expired_count)
    assert figures.depth < 4
    (note,) = [note for note in house.broker.notes if "too old" in note]
    assert note.startswith("channel t:c: ")
    assert 1 == len(house.broker.topics["t"].stream.log.segments())


def test_a_clock_that_was_set_back_and_forward() -> None:
    """After the clock was changed, exactly the messages that are too old now are skipped."""
    house = house_with_ttl()
    house.consumer("t", "c").close()
    hour = 3600 * SECOND
    for number in range(6):
        house.clock.wall_ns += -hour if number % 2 else hour
        fill(house, 10 * number, 10)
    house.clock.wall_ns += hour
    consumer = house.consumer("t", "c", rdy=35)
    bodies = consumer.bodies()
    assert [b"%d" % (20 * half + one) for half in range(3) for one in range(10)] == bodies
    assert 30 == house.channel("t", "c").expired_count


def test_a_sampling_client() -> None:
    """Expired messages are counted as expired, before any message is left out by sampling."""
    house = house_with_ttl()
    house.consumer("t", "c").close()
    fill(house, 0, 50)
    house.advance(11)
    fill(house, 50, 50)
    consumer = house.consumer("t", "c", rdy=200, sample_rate=50)
    bodies = consumer.bodies()
    assert 50 == house.channel("t", "c").expired_count
    assert 10 < len(bodies) < 40
    assert all(int(body) >= 50 for body in bodies)


class Lives:
    """A consumer that checks every message: it is delivered in time, and ends once."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.house = house_with_ttl()
        self.born: dict[bytes, int] = {}
        self.finished: set[bytes] = set()
        self.expired = 0
        self.consume()

    def consume(self) -> None:
        """Connect a new consumer."""
        self.consumer = self.house.consumer("t", "c", rdy=self.chosen.choice((1, 7, 50)))

    def too_old(self) -> int:
        """Number of expired messages since the broker's start."""
        return self.house.channel("t", "c").expired_count

    def publish(self) -> None:
        """Publish some messages, deferred or not."""
        count = self.chosen.randrange(1, 9)
        bodies = [b"%d" % (len(self.born) + number) for number in range(count)]
        self.born |= dict.fromkeys(bodies, self.house.clock.wall_ns)
        self.house.publish("t", *bodies, defer_ms=self.chosen.choice((0, 0, 0, 3_000, 14_000)))

    def crash(self) -> None:
        """Crash and restart the broker, whose counters restart at 0."""
        self.expired += self.too_old()
        self.house.crash()
        self.consume()

    def take(self, finishes: float) -> None:
        """Check that each message is neither too old nor finished before.

        Finish or requeue some.
        """
        while messages := self.consumer.messages():
            for message in messages:
                assert self.house.clock.wall_ns - self.born[message.body] <= TTL
                assert message.body not in self.finished
                if self.chosen.random() < finishes:
                    self.finished.add(message.body)
                    self.consumer.finish([message])
                elif self.chosen.random() < 0.5:
                    delay_ms = self.chosen.choice((500, 2_000))
                    self.consumer.say(commands.req(message.id, delay_ms))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens(seed: int) -> None:
    """Whatever happens, each message is finished or expires.

    No expired or finished one is delivered.
    """
    lives = Lives(seed)
    for _ in range(120):
        action = lives.chosen.randrange(6)
        if action < 2:
            lives.publish()
        elif action == 2:
            lives.house.pass_time(lives.chosen.choice((0.5, 3, 12)))
        elif action == 3:
            lives.crash()
        lives.take(0.6)
    lives.consumer.say(commands.rdy(2_500))
    for _ in range(40):
        lives.take(1)
        lives.house.pass_time(4)
    lives.take(1)

    channel = lives.house.channel("t", "c")
    assert (0, 0, 0) == (channel.depth, channel.in_flight_count, channel.deferred_count)
    expired = lives.expired + lives.too_old()
    assert len(lives.born) == len(lives.finished) + expired
    assert len(lives.finished) > 20
    assert expired > 20
