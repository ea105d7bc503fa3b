"""How far behind a channel is: the age of the oldest message that waits, and the time to clear."""

from __future__ import annotations

from sparq.protocol import commands
from tests.broker.house import Client, House


def age(house: House) -> float | None:
    return house.channel("t", "c").oldest_waiting_seconds


def forget(house: House) -> None:
    """Nothing is in memory any more."""
    log = house.broker.topics["t"].stream.log
    log._cache._entries.clear()
    log._recent = None


def take(client: Client) -> None:
    """Have one message delivered, and finish it."""
    client.say(commands.rdy(1))
    messages = client.messages()
    client.say(commands.rdy(0))
    client.finish(messages)


def test_the_age_is_that_of_the_oldest_message_that_waits() -> None:
    """Not of one in flight, finished, deferred, or ahead; a requeued one counts again."""
    house = House()
    client = house.consumer("t", "c")
    assert age(house) is None
    house.publish("t", b"early", defer_ms=600_000)
    house.pass_time(10)
    house.publish("t", b"a")
    house.pass_time(5)
    house.publish("t", b"b")
    house.pass_time(1)
    assert age(house) == 6

    client.say(commands.rdy(1))
    (a,) = client.messages()
    client.say(commands.rdy(0))
    assert age(house) == 1
    client.say(commands.req(a.id, 0))
    assert age(house) == 6
    house.broker.act_on_messages(
        "finish",
        "t",
        "c",
        house.broker.topics["t"].channels["c"].requeued.indexes(),
        house.clock.now(),
    )
    house.turn()
    assert age(house) == 1
    house.broker.empty_channel("t", "c", house.clock.now())
    house.turn()
    assert age(house) is None


def test_without_memory_it_is_never_overstated() -> None:
    """No disk is read: the youngest message of the same extent stands for it, unless it has been
    known before, or begins its file."""
    house = House()
    client = house.consumer("t", "c")
    for _ in range(3):
        house.publish("t", b"x")
        house.pass_time(10)
    forget(house)
    assert age(house) == 30
    take(client)
    forget(house)
    assert age(house) == 10
    take(client)  # the extent is read for the consumer, and so is the next message
    assert age(house) == 10
    house.pass_time(5)
    forget(house)
    assert age(house) == 15


def test_a_known_time_is_remembered() -> None:
    """What was in memory once is exact for as long as it is the oldest."""
    house = House()
    client = house.consumer("t", "c", rdy=1)
    house.publish("t", b"a")
    client.finish(client.messages())
    client.say(commands.rdy(0))
    house.publish("t", b"b")
    house.pass_time(10)
    house.publish("t", b"c")
    assert age(house) == 10
    forget(house)
    assert age(house) == 10


def test_a_lost_message_has_no_age() -> None:
    """What the log does not have does not wait."""
    house = House()
    house.consumer("t", "c")
    house.publish("t", b"a")
    channel = house.broker.topics["t"].channels["c"]
    channel.requeued.push(5, 1)
    assert age(house) is None


def test_many_holes_are_not_looked_past() -> None:
    """The search for the oldest one ends somewhere: no look at figures may take long."""
    house = House()
    house.consumer("t", "c")
    for _ in range(80):
        house.publish("t", b"deferred", defer_ms=600_000)
        house.publish("t", b"x")
    channel = house.broker.topics["t"].channels["c"]
    indexes = house.broker.topics["t"].stream.log.looking.stored_from(0, 1 << 54, 200)
    channel.skips.insert(indexes[1:-1:2])
    assert house.channel("t", "c").depth == 1
    assert age(house) is None


def test_the_time_to_clear_follows_the_depth() -> None:
    """Unknown at first and while it does not fall; 0 when nothing waits."""
    house = House()
    client = house.consumer("t", "c")

    def clear() -> float | None:
        return house.channel("t", "c").clear_seconds

    def consume(count: int) -> None:
        for _ in range(count):
            take(client)

    assert clear() == 0
    house.publish("t", *[b"x"] * 100)
    assert clear() is None
    house.pass_time(2)
    assert clear() is None
    house.pass_time(14)
    consume(10)
    assert clear() is None  # compared with nothing waiting
    house.pass_time(16)
    consume(10)
    assert clear() == 80 * 16 / 10
    house.pass_time(70)
    assert clear() is None  # too long ago
    house.pass_time(0.5)
    consume(1)
    assert clear() is None  # too short ago
    house.pass_time(9.5)
    consume(9)
    assert clear() == 70 * 10 / 10
