"""From a publish to the disk: batches, limits, the sync policy, and rates."""

from __future__ import annotations

import random

import pytest

from sparq.broker.policies import Policy
from sparq.broker.publishing import CLIENTS_KEPT, HELD_NS, Rates
from sparq.log.task import TaskKind
from sparq.protocol import commands
from sparq.protocol.frames import BodySlices
from tests.broker.harness import BrokerHarness, Client, Ticket


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


RATE = 10
SECOND = 1_000_000_000
REFUSAL = f"PUB failed the limit of {RATE} messages per second for topic t is reached"


def publish(harness: BrokerHarness, count: int = 1, topic: str = "t") -> Ticket:
    """Publish as HTTP does; returns the ticket."""
    ticket = Ticket()
    bodies = BodySlices.of([b"x"] * count)
    harness.broker.publish(topic, bodies, harness.clock.now(), ticket)
    harness.turn()
    return ticket


def send_publishes(client: Client, first: int, count: int) -> None:
    """Send numbered PUBs, one at a time."""
    for number in range(first, first + count):
        client.say(commands.pub("t", b"%d" % number))


def test_publishes_beyond_a_burst_are_held_and_then_refused() -> None:
    """A burst of one second's messages succeeds immediately.

    The next ones are held for up to one second, and all others are refused.
    """
    harness = BrokerHarness(max_publish_rate=RATE)
    tickets = [publish(harness) for _ in range(30)]

    def answered() -> list[int]:
        return [len(ticket.answers) for ticket in tickets]

    assert [1] * 11 + [0] * 10 + [1] * 9 == answered()
    assert [REFUSAL] * 9 == [ticket.answers[0].text for ticket in tickets[21:]]
    for done in range(12, 22):
        harness.pass_time(1 / RATE)
        assert [1] * done + [0] * (21 - done) + [1] * 9 == answered()
    assert [None] * 21 == [ticket.answers[0] for ticket in tickets[:21]]
    figures = harness.topic("t")
    assert (21, 9, 10) == (figures.message_count, figures.refused_count, figures.held_count)
    harness.pass_time(10)
    assert [None] == publish(harness).answers


def test_a_large_batch_makes_the_next_wait() -> None:
    """A batch above the rate is stored as a whole; later publishes wait correspondingly."""
    harness = BrokerHarness(max_publish_rate=RATE)
    assert [None] == publish(harness, 50).answers
    assert REFUSAL == publish(harness).answers[0].text  # type: ignore[union-attr]  # it is refused
    harness.pass_time(3.5)
    held = publish(harness)
    assert [] == held.answers
    harness.pass_time(0.6)
    assert [None] == held.answers


def test_a_client_rate_slows_only_that_client() -> None:
    """`max_client_publish_rate` slows only the client that exceeds it.

    Each client's messages stay in order.
    """
    harness = BrokerHarness(max_client_publish_rate=RATE)
    consumer = harness.consumer("t", "c", rdy=2_500)
    hasty, calm = harness.connect(), harness.connect()
    send_publishes(hasty, 0, 30)
    send_publishes(calm, 100, 5)
    assert [b"OK"] * 5 == calm.answers()
    assert [b"OK"] * 11 == hasty.answers()
    for _ in range(12):
        harness.pass_time(0.1)
    answers = hasty.answers()
    text = (
        f"E_PUB_FAILED PUB failed the limit of {RATE} messages per second for one client is reached"
    )
    assert [b"OK"] * 10 + [text.encode()] * 9 == answers
    assert not hasty.session.closing
    bodies = [int(body) for body in consumer.bodies()]
    assert list(range(21)) == [number for number in bodies if number < 100]
    assert 26 == len(bodies)


def test_held_publishes_are_refused_when_their_topic_is_deleted() -> None:
    """Held publishes are refused when their topic is deleted or nsqd stops."""
    for ends in (
        BrokerHarness.close,
        lambda harness: harness.broker.delete_topic("t", harness.clock.now()),
    ):
        harness = BrokerHarness(max_publish_rate=RATE)
        tickets = [publish(harness) for _ in range(15)]
        ends(harness)
        harness.turn()
        assert [1] * 15 == [len(ticket.answers) for ticket in tickets]
        assert 4 == sum(ticket.answers[0] is not None for ticket in tickets)


def test_a_changed_rate_releases_held_publishes() -> None:
    """A change of a topic's rate releases its held publishes: later ones would overtake them."""
    harness = BrokerHarness(max_client_publish_rate=RATE)
    consumer = harness.consumer("t", "c", rdy=2_500)
    client = harness.connect()
    send_publishes(client, 0, 15)
    harness.broker.configure_policies([Policy("t", "", {"max_client_publish_rate": 0})])
    send_publishes(client, 15, 50)
    assert [b"OK"] * 65 == client.answers()
    assert list(range(65)) == [int(body) for body in consumer.bodies()]


@pytest.mark.parametrize(
    "changed",
    [Policy("other", "", {"max_publish_rate": 1}), Policy("t", "", {"max_topic_messages": 99})],
)
def test_other_changes_leave_held_publishes_to_their_rate(changed: Policy) -> None:
    """A policy for another topic, or for something else, releases nothing past the rate."""
    harness = BrokerHarness(max_publish_rate=RATE)
    tickets = [publish(harness) for _ in range(15)]
    answered = sum(bool(ticket.answers) for ticket in tickets)
    harness.broker.configure_policies([changed])
    harness.turn()
    assert answered == sum(bool(ticket.answers) for ticket in tickets) < 15


@pytest.mark.parametrize("seed", range(10))
def test_the_rate_is_never_exceeded(seed: int) -> None:
    """Over any period, no more than the rate plus one burst is accepted.

    No publish is held for more than `HELD_NS`.
    """
    chosen = random.Random(seed)
    rates = Rates()
    now = 0
    taken: list[int] = []
    last: dict[int, int] = {}
    for _ in range(3_000):
        now += chosen.choice((0, 0, SECOND // 40, SECOND // 5))
        client = chosen.randrange(1, 4)
        ready = rates.ready_ns(client, 1, now, RATE, RATE // 2)
        if ready is None:
            continue
        assert now <= ready <= now + HELD_NS
        assert last.get(client, 0) <= ready
        last[client] = ready
        taken.append(ready)
    taken.sort()
    for at, began in enumerate(taken):
        within = sum(began <= ns < began + 2 * SECOND for ns in taken[at : at + 100])
        assert within <= 3 * RATE + 1
    assert len(taken) > 0.8 * RATE * now / SECOND


def test_the_number_of_remembered_clients_is_bounded() -> None:
    """At most `CLIENTS_KEPT` idle clients are remembered."""
    rates = Rates()
    for client in range(5 * CLIENTS_KEPT):
        rates.ready_ns(client, 1, client * SECOND, 0, RATE)
    assert len(rates._clients) <= CLIENTS_KEPT + 1
