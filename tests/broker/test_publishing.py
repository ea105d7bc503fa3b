"""From a publish to the disk: batches, limits, the sync policy."""

from __future__ import annotations

from sparq.log.task import TaskKind
from sparq.protocol import commands
from tests.broker.house import House


def commits(house: House) -> int:
    """End the turn and run its tasks; returns the number of commits among them."""
    tasks = house.broker.end_turn(house.clock.now())
    for task in tasks:
        task.work.run()
        house.broker.finish(task, house.clock.now())
    return sum(task.work.kind is TaskKind.COMMIT for task in tasks)


def test_one_commit_is_in_flight_per_topic() -> None:
    """Decision 20: a topic has at most one commit in flight.

    Messages that arrive meanwhile form the next batch, whose OKs wait for it.
    """
    house = House()
    client = house.connect()
    client.say(commands.pub("t", b"1"), turn=False)
    (first,) = house.broker.end_turn(house.clock.now())[-1:]
    client.say(commands.pub("t", b"2") + commands.pub("t", b"3"), turn=False)
    tasks = house.broker.end_turn(house.clock.now())
    assert [t for t in tasks if t.work.kind is TaskKind.COMMIT] == []

    first.work.run()
    house.broker.finish(first, house.clock.now())
    client.collect()
    assert client.answers() == [b"OK"]
    house.turn()

    assert client.answers() == [b"OK", b"OK"]


def test_batches_are_closed_by_size_and_count() -> None:
    """A batch ends at `commit_bytes` or `commit_count`.

    An MPUB is never split, and may exceed both.
    """
    house = House(commit_bytes=1000, commit_count=10)
    house.publish("t", b"first")
    client = house.connect()
    for _ in range(5):
        client.say(commands.mpub("t", [b"x" * 100] * 4), turn=False)
    client.say(commands.mpub("t", [b"y"] * 25), turn=False)
    counts = [commits(house) for _ in range(4)]

    assert counts == [1, 1, 1, 1]
    assert house.topic("t").message_count == 1 + 20 + 25
    client.collect()
    assert client.answers() == [b"OK"] * 6


def test_uncommitted_bytes_are_counted() -> None:
    """Decision 20: uncommitted bytes count until the publish is answered.

    nsqd pauses reading when there are too many.
    """
    house = House()
    client = house.connect()
    client.say(commands.mpub("t", [b"x" * 1000] * 3) + commands.pub("t", b"y"), turn=False)
    assert (client.session.uncommitted_bytes, house.broker.backlog_bytes) == (3001, 3001)

    house.turn()

    assert (client.session.uncommitted_bytes, house.broker.backlog_bytes) == (0, 0)


def test_a_client_that_left_does_not_hold_its_publish() -> None:
    """A publish of a client that has disconnected is still stored."""
    house = House()
    client = house.connect()
    client.say(commands.pub("t", b"x"), turn=False)
    client.close()

    assert house.topic("t").message_count == 1
    assert house.broker.backlog_bytes == 0


def test_a_larger_sync_every_shows_unsynced_messages_to_consumers() -> None:
    """Decision 10: consumers see written messages, range readers only synced ones.

    All are synced after the sync timeout.
    """
    house = House(sync_every=1000)
    consumer = house.consumer("t", "c", rdy=10)
    house.consumer("t", "d")
    house.publish("t", b"1", b"2")
    assert consumer.bodies() == [b"1", b"2"]
    assert house.topic("t").unsynced_messages == 2
    log = house.broker.topics["t"].stream.log
    assert log.synced_end < log.written_end

    for _ in range(25):
        house.pass_time(0.1)

    assert house.topic("t").unsynced_messages == 0
    assert log.synced_end == log.written_end


def test_a_sync_that_meets_a_commit_is_tried_again_soon() -> None:
    """A sync timeout that occurs during a commit is retried soon after it."""
    house = House(sync_every=1000)
    house.consumer("t", "c")
    house.publish("t", b"1")
    client = house.connect()
    client.say(commands.pub("t", b"2"), turn=False)
    tasks = house.broker.end_turn(house.clock.now())
    house.advance(2.0)
    house.broker.tick(house.clock.now())
    for task in tasks:
        task.work.run()
        house.broker.finish(task, house.clock.now())
    house.turn()
    house.pass_time(0.02)

    assert house.topic("t").unsynced_messages == 0


def test_closing_syncs_everything() -> None:
    """After `close` and its tasks a power cut loses nothing, whatever the sync policy."""
    for seed in range(5):
        house = House(sync_every=1000, sync_timeout_ns=10**15)
        consumer = house.consumer("t", "c", rdy=10)
        house.publish("t", b"1", b"2", b"3")
        consumer.finish(consumer.messages()[:1])
        house.close()
        house.disk = house.disk.crash(seed)
        house.crash()

        assert house.consumer("t", "c", rdy=10).bodies() == [b"2", b"3"]


def test_closing_syncs_behind_a_commit_that_does_not() -> None:
    """`close` syncs after a commit in flight that does not sync itself."""
    for seed in range(5):
        house = House(sync_every=1000, sync_timeout_ns=10**15)
        house.publish("t", b"1")
        client = house.connect()
        client.say(commands.pub("t", b"2"), turn=False)
        tasks = house.broker.end_turn(house.clock.now())
        assert not house.broker.close()
        for task in tasks:
            task.work.run()
            house.broker.finish(task, house.clock.now())
        client.collect()
        assert client.answers() == [b"OK"]

        house.close()
        house.disk = house.disk.crash(seed)
        house.crash()

        assert house.consumer("t", "c", rdy=10).bodies() == [b"1", b"2"]


def test_what_waits_for_a_commit_when_nsqd_stops_is_refused() -> None:
    """A stop waits only for the commit in flight; publishes waiting for the next are refused.

    Writing all waiting publishes could take minutes.
    """
    house = House()
    client = house.connect()
    client.say(commands.pub("t", b"1"), turn=False)
    tasks = house.broker.end_turn(house.clock.now())
    client.say(commands.pub("t", b"2"), turn=False)

    assert not house.broker.close()
    for task in tasks:
        task.work.run()
        house.broker.finish(task, house.clock.now())
    house.close()

    assert client.answers() == [b"OK", b"E_PUB_FAILED PUB failed exiting"]
    house.crash()
    assert house.consumer("t", "c", rdy=10).bodies() == [b"1"]


def test_what_an_ephemeral_topic_gets_at_once_is_dropped_only_beyond_what_consumers_take() -> None:
    """Publishes to an ephemeral topic that exceed `mem_queue_size` in one turn are not dropped.

    One batch enters per turn, and the consumer takes it before the next.
    """
    house = House(mem_queue_size=10, commit_count=10, output_bytes_max=300)
    consumer = house.consumer("e#ephemeral", "c", rdy=100)
    producer = house.connect()
    for number in range(8):
        producer.say(commands.mpub("e#ephemeral", [b"%d" % number] * 10), turn=False)
    house.turn()

    assert producer.answers() == [b"OK"] * 8
    assert consumer.bodies() == [b"%d" % number for number in range(8) for _ in range(10)]
