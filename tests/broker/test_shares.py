"""Serving many consumers as a group gives each what it would get individually."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sparq.broker import delivery
from sparq.broker.in_flight import PAGE_SIZE
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness, Client, Message

CONSUMERS = 9
STEPS = 60
NEVER_SHARED = 1 << 30
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"msg_timeout": 2_000},
    {"sample_rate": 40},
)


class RandomChannel:
    """A channel with many consumers and random, repeatable operations on it."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = Random(seed)
        self.harness = BrokerHarness(**options)
        self.harness.publish("t", b"first")
        self.harness.consumer("t", "c").close()
        self.clients: list[Client] = []
        self.held: dict[Client, list[Message]] = {}
        self.record: list[Any] = []
        for _ in range(CONSUMERS):
            self.join()

    def join(self) -> None:
        """Connect another consumer, of a random kind."""
        kind = self.chance.choice(KINDS)
        client = self.harness.consumer("t", "c", self.chance.choice([1, 1, 1, 3, 40]), **kind)
        client.answers()
        self.clients.append(client)
        self.held[client] = []

    def publish(self) -> None:
        """Publish few, many, or large messages that fill an output."""
        size = self.chance.choice([0, 5, 200, 70_000])
        count = self.chance.choice([1, 4, 30, 300]) if size < 1_000 else 12
        self.harness.publish("t", *(b"%d." % number + bytes(size) for number in range(count)))

    def finish(self) -> None:
        """Several consumers finish all they have in the same turn."""
        for client in self.clients:
            if self.held[client] and self.chance.random() < 0.7:
                fins = b"".join(commands.fin(message.id) for message in self.held[client])
                self.held[client] = []
                client.say(fins, turn=False)
        self.harness.turn()

    def other(self) -> None:
        """A rarer operation: requeue, RDY, reconnect or waiting."""
        client = self.chance.choice(self.clients)
        what = self.chance.randrange(4)
        if what == 0 and self.held[client]:
            client.say(commands.req(self.held[client].pop().id, 0))
        elif what == 1:
            client.say(commands.rdy(self.chance.choice([0, 1, 2, 50])))
        elif what == 2:
            self.clients.remove(client)
            client.close()
            self.join()
        else:
            self.harness.pass_time(self.chance.choice([0.5, 3.0]))

    def step(self) -> None:
        """Run a random operation and record the complete result."""
        self.chance.choice([self.publish, self.finish, self.finish, self.other])()
        for at, client in enumerate(self.clients):
            messages = client.messages()
            self.held[client] += messages
            self.record.append((at, messages))
        topic = self.harness.broker.topics["t"]
        channel = topic.channels["c"]
        rows = channel.in_flight.rows()
        assert channel.in_flight.count == len(rows[0])
        self.record.append([column.tolist() for column in rows])
        self.record.append(sorted(session.owner for session in self.harness.broker.take_sessions()))
        self.record.append((channel.cursor, channel.cursor_ordinal, channel.due_ns))
        self.record.append(
            [(at.owner, at.in_flight_count, at.message_count) for at in channel.ready_sessions]
        )
        self.record.append(
            (channel.counts.global_msg_count, sum(self.harness.broker.turn.waited.counts))
        )


def run_random_operations(
    seed: int, monkeypatch: pytest.MonkeyPatch, sharers_min: int
) -> tuple[list[Any], int]:
    """Run a life; returns its record, and the number of messages delivered by sharing."""
    shared, give_shares = 0, delivery._give_shares

    def counted(*given: Any) -> tuple[int, int]:
        nonlocal shared
        found = give_shares(*given)
        shared += found[1]
        return found

    monkeypatch.setattr(delivery, "SHARERS_MIN", sharers_min)
    monkeypatch.setattr(delivery, "_give_shares", counted)
    life = RandomChannel(seed, output_bytes_max=100_000)
    for _ in range(STEPS):
        life.step()
    return life.record, shared


@pytest.mark.parametrize("seed", range(12))
def test_sharing_gives_the_same_deliveries_as_without(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without sharing, deliveries and the channel's state are the same.

    Compared are messages, order, deadlines, counts and the next consumer.
    """
    together, shared = run_random_operations(seed, monkeypatch, 2)
    alone, none = run_random_operations(seed, monkeypatch, NEVER_SHARED)

    assert together == alone
    assert shared > 0
    assert none == 0


def test_a_share_ends_with_a_page_of_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing works across a page boundary: each consumer gets one message."""
    monkeypatch.setattr(delivery, "SHARERS_MIN", 2)
    harness = BrokerHarness()
    clients = [harness.consumer("t", "c") for _ in range(8)]
    passing = harness.consumer("t", "c", 2_500)
    for _ in range(2):
        harness.publish("t", *[b"x"] * 2_046)
        passing.finish(passing.messages())
    passing.close()
    for client in clients:
        client.say(commands.rdy(1))
    harness.publish("t", *[b"y"] * 8)

    got = [client.messages() for client in clients]
    assert [1] * 8 == [len(messages) for messages in got]
    indexes = [messages[0].index for messages in got]
    first = indexes[0]
    assert [*range(first, first + 8)] == indexes
    assert first // PAGE_SIZE < indexes[-1] // PAGE_SIZE
    assert 8 == harness.channel("t", "c").in_flight_count


def test_expired_messages_are_not_shared() -> None:
    """With `message_ttl`, messages that are too old are not delivered by sharing."""
    harness = BrokerHarness(message_ttl_ns=10**9)
    clients = [harness.consumer("t", "c") for _ in range(8)]
    harness.publish("t", b"first")
    clients[0].say(commands.rdy(1))
    clients[0].finish(clients[0].messages())
    clients[0].say(commands.rdy(0))
    harness.publish("t", *[b"old"] * 4)
    harness.advance(5)
    harness.publish("t", *[b"new"] * 4)
    for client in clients:
        client.say(commands.rdy(1), turn=False)
    harness.turn()

    assert [b"new"] * 4 == [body for client in clients for body in client.bodies()]
