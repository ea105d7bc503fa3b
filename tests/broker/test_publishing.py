"""From a publish to the disk: batches, limits, the sync policy."""

from __future__ import annotations

from sparq.log.task import TaskKind
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness


def commits(harness: BrokerHarness) -> int:
    """End the turn and run its tasks; returns the number of commits among them."""
    tasks = harness.broker.end_turn(harness.clock.now())
    harness.run(tasks)
    return sum(topic_task.task.kind is TaskKind.COMMIT for topic_task in tasks)


def test_one_commit_is_in_flight_per_topic() -> None:
    """A topic has at most one commit in flight.

    Messages that arrive meanwhile form the next batch, whose OKs wait for it.
    """
    harness = BrokerHarness()
    client = harness.connect()
    client.say(commands.pub("t", b"1"), turn=False)
    (first,) = harness.broker.end_turn(harness.clock.now())[-1:]
    client.say(commands.pub("t", b"2") + commands.pub("t", b"3"), turn=False)
    tasks = harness.broker.end_turn(harness.clock.now())
    assert [t for t in tasks if t.task.kind is TaskKind.COMMIT] == []

    first.task.run()
    first.finish(harness.clock.now())
    client.collect()
    assert client.answers() == [b"OK"]
    harness.turn()

    assert client.answers() == [b"OK", b"OK"]


def test_batches_are_closed_by_size_and_count() -> None:
    """A batch ends at `commit_bytes` or `commit_count`.

    An MPUB is never split, and may exceed both.
    """
    harness = BrokerHarness(commit_bytes=1000, commit_count=10)
    harness.publish("t", b"first")
    client = harness.connect()
    for _ in range(5):
        client.say(commands.mpub("t", [b"x" * 100] * 4), turn=False)
    client.say(commands.mpub("t", [b"y"] * 25), turn=False)
    counts = [commits(harness) for _ in range(4)]

    assert counts == [1, 1, 1, 1]
    assert harness.topic("t").message_count == 1 + 20 + 25
    client.collect()
    assert client.answers() == [b"OK"] * 6


def test_uncommitted_bytes_are_counted() -> None:
    """Uncommitted bytes count until the publish is answered.

    nsqd pauses reading when there are too many.
    """
    harness = BrokerHarness()
    client = harness.connect()
    client.say(commands.mpub("t", [b"x" * 1000] * 3) + commands.pub("t", b"y"), turn=False)
    assert (client.session.uncommitted_bytes, harness.broker.turn.backlog_bytes) == (3001, 3001)

    harness.turn()

    assert (client.session.uncommitted_bytes, harness.broker.turn.backlog_bytes) == (0, 0)


def test_a_publish_of_a_disconnected_client_is_stored() -> None:
    """A publish of a client that has disconnected is still stored."""
    harness = BrokerHarness()
    client = harness.connect()
    client.say(commands.pub("t", b"x"), turn=False)
    client.close()

    assert harness.topic("t").message_count == 1
    assert harness.broker.turn.backlog_bytes == 0


def test_a_larger_sync_every_shows_unsynced_messages_to_consumers() -> None:
    """Consumers see written messages, range readers only synced ones.

    All are synced after the sync timeout.
    """
    harness = BrokerHarness(sync_every=1000)
    consumer = harness.consumer("t", "c", rdy=10)
    harness.consumer("t", "d")
    harness.publish("t", b"1", b"2")
    assert consumer.bodies() == [b"1", b"2"]
    assert harness.topic("t").unsynced_messages == 2
    log = harness.broker.topics["t"].stream.log
    assert log.synced_end < log.written_end

    for _ in range(25):
        harness.pass_time(0.1)

    assert harness.topic("t").unsynced_messages == 0
    assert log.synced_end == log.written_end


def test_a_sync_due_during_a_commit_is_retried_soon() -> None:
    """A sync timeout that occurs during a commit is retried soon after it."""
    harness = BrokerHarness(sync_every=1000)
    harness.consumer("t", "c")
    harness.publish("t", b"1")
    client = harness.connect()
    client.say(commands.pub("t", b"2"), turn=False)
    tasks = harness.broker.end_turn(harness.clock.now())
    harness.advance(2.0)
    harness.broker.tick(harness.clock.now())
    harness.run(tasks)
    harness.turn()
    harness.pass_time(0.02)

    assert harness.topic("t").unsynced_messages == 0


def test_closing_syncs_after_a_commit_without_a_sync() -> None:
    """`close` syncs after a commit in flight that does not sync itself."""
    for seed in range(5):
        harness = BrokerHarness(sync_every=1000, sync_timeout_ns=10**15)
        harness.publish("t", b"1")
        client = harness.connect()
        client.say(commands.pub("t", b"2"), turn=False)
        tasks = harness.broker.end_turn(harness.clock.now())
        assert not harness.broker.close(harness.clock.now())
        harness.run(tasks)
        client.collect()
        assert client.answers() == [b"OK"]

        harness.close()
        harness.disk = harness.disk.crash(seed)
        harness.crash()

        assert harness.consumer("t", "c", rdy=10).bodies() == [b"1", b"2"]


def test_publishes_waiting_for_the_next_commit_are_refused_at_a_stop() -> None:
    """A stop waits only for the commit in flight; publishes waiting for the next are refused.

    Writing all waiting publishes could take minutes.
    """
    harness = BrokerHarness()
    client = harness.connect()
    client.say(commands.pub("t", b"1"), turn=False)
    tasks = harness.broker.end_turn(harness.clock.now())
    client.say(commands.pub("t", b"2"), turn=False)

    assert not harness.broker.close(harness.clock.now())
    harness.run(tasks)
    harness.close()

    assert client.answers() == [b"OK", b"E_PUB_FAILED PUB failed exiting"]
    harness.crash()
    assert harness.consumer("t", "c", rdy=10).bodies() == [b"1"]


def test_a_burst_to_an_ephemeral_topic_is_not_dropped_while_consumers_keep_up() -> None:
    """Publishes to an ephemeral topic that exceed `mem_queue_size` in one turn are not dropped.

    One batch enters per turn, and the consumer takes it before the next.
    """
    harness = BrokerHarness(mem_queue_size=10, commit_count=10, output_bytes_max=300)
    consumer = harness.consumer("e#ephemeral", "c", rdy=100)
    producer = harness.connect()
    for number in range(8):
        producer.say(commands.mpub("e#ephemeral", [b"%d" % number] * 10), turn=False)
    harness.turn()

    assert producer.answers() == [b"OK"] * 8
    assert consumer.bodies() == [b"%d" % number for number in range(8) for _ in range(10)]
