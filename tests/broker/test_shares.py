"""Serving many consumers as a group gives each what it would get individually."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sparq.broker import delivery
from sparq.broker.shares import Shares, share_block
from sparq.broker.slots import PAGE_SIZE
from sparq.protocol import commands
from tests.broker.house import Client, House, Message

CONSUMERS = 9
STEPS = 60
NEVER_TOGETHER = 1 << 30
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"msg_timeout": 2_000},
    {"sample_rate": 40},
)


class Life:
    """A channel with many consumers and random, repeatable operations on it."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = Random(seed)
        self.house = House(**options)
        self.house.publish("t", b"first")
        self.house.consumer("t", "c").close()
        self.clients: list[Client] = []
        self.held: dict[Client, list[Message]] = {}
        self.told: list[Any] = []
        for _ in range(CONSUMERS):
            self.join()

    def join(self) -> None:
        """Connect another consumer, of a random kind."""
        kind = self.chance.choice(KINDS)
        client = self.house.consumer("t", "c", self.chance.choice([1, 1, 1, 3, 40]), **kind)
        client.answers()
        self.clients.append(client)
        self.held[client] = []

    def publish(self) -> None:
        """Publish few, many, or large messages that fill an output."""
        size = self.chance.choice([0, 5, 200, 70_000])
        count = self.chance.choice([1, 4, 30, 300]) if size < 1_000 else 12
        self.house.publish("t", *(b"%d." % number + bytes(size) for number in range(count)))

    def finish(self) -> None:
        """Several consumers finish all they have in the same turn."""
        for client in self.clients:
            if self.held[client] and self.chance.random() < 0.7:
                fins = b"".join(commands.fin(message.id) for message in self.held[client])
                self.held[client] = []
                client.say(fins, turn=False)
        self.house.turn()

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
            self.house.pass_time(self.chance.choice([0.5, 3.0]))

    def step(self) -> None:
        """Run a random operation and record the complete result."""
        self.chance.choice([self.publish, self.finish, self.finish, self.other])()
        for at, client in enumerate(self.clients):
            messages = client.messages()
            self.held[client] += messages
            self.told.append((at, messages))
        topic = self.house.broker.topics["t"]
        channel = topic.channels["c"]
        rows = channel.in_flight.all()
        assert channel.in_flight.count == len(rows[0])
        self.told.append([column.tolist() for column in rows])
        self.told.append(sorted(session.owner for session in self.house.broker.take_sessions()))
        self.told.append((channel.cursor, channel.cursor_ordinal, channel.due_ns))
        self.told.append([(at.owner, at.in_flight_count, at.message_count) for at in channel.ready])
        self.told.append((channel.global_count, sum(topic_waited(self.house))))


def topic_waited(house: House) -> list[int]:
    """The number of first deliveries, per latency bucket."""
    return house.broker.turn.waited.counts


def lived(seed: int, monkeypatch: pytest.MonkeyPatch, sharers_min: int) -> tuple[list[Any], int]:
    """Run a life; returns its record, and the number of messages delivered by sharing."""
    shared = 0

    def counted(*given: Any) -> Shares:
        nonlocal shared
        shares = share_block(*given)
        shared += sum(shares.counts)
        return shares

    monkeypatch.setattr(delivery, "SHARERS_MIN", sharers_min)
    monkeypatch.setattr(delivery, "share_block", counted)
    life = Life(seed, output_bytes_max=100_000)
    for _ in range(STEPS):
        life.step()
    return life.told, shared


@pytest.mark.parametrize("seed", range(12))
def test_together_as_each_by_itself(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without sharing, deliveries and the channel's state are the same.

    Compared are messages, order, deadlines, counts and the next consumer.
    """
    together, shared = lived(seed, monkeypatch, 2)
    alone, none = lived(seed, monkeypatch, NEVER_TOGETHER)

    assert together == alone
    assert shared > 0
    assert none == 0


def test_a_share_ends_with_a_page_of_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing works across a page boundary: each consumer gets one message."""
    monkeypatch.setattr(delivery, "SHARERS_MIN", 2)
    house = House()
    clients = [house.consumer("t", "c") for _ in range(8)]
    passing = house.consumer("t", "c", 2_500)
    for _ in range(2):
        house.publish("t", *[b"x"] * 2_046)
        passing.finish(passing.messages())
    passing.close()
    for client in clients:
        client.say(commands.rdy(1))
    house.publish("t", *[b"y"] * 8)

    got = [client.messages() for client in clients]
    assert [1] * 8 == [len(messages) for messages in got]
    indexes = [messages[0].index for messages in got]
    first = indexes[0]
    assert [*range(first, first + 8)] == indexes
    assert first // PAGE_SIZE < indexes[-1] // PAGE_SIZE
    assert 8 == house.channel("t", "c").in_flight_count


def test_what_is_shared_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared messages time out by their consumer's timeout and return with attempts 2."""
    house = House()
    requeues = house.consumer("t", "c", 200)
    house.publish("t", *[b"often"] * 200)
    for _ in range(3):
        messages = requeues.messages()
        requeues.say(b"".join(commands.req(message.id, 0) for message in messages))
    clients = [house.consumer("t", "c", 1, msg_timeout=2_000) for _ in range(8)]
    house.publish("t", *[b"once"] * 8)
    first = [message for client in clients for message in client.messages()]
    house.pass_time(3)
    again = [message for client in clients for message in client.messages()]

    assert [b"once"] * 8 == [message.body for message in first]
    assert 8 == house.channel("t", "c").timeout_count
    assert [2] * 8 == [message.attempts for message in again]


@pytest.mark.parametrize("options", [{"message_ttl_ns": 10**9}, {}], ids=["ttl", "all are fresh"])
def test_too_old_messages_are_shared_with_nobody(options: dict[str, Any]) -> None:
    """With `message_ttl`, messages that are too old are not delivered by sharing."""
    house = House(**options)
    clients = [house.consumer("t", "c") for _ in range(8)]
    house.publish("t", b"first")
    clients[0].say(commands.rdy(1))
    clients[0].finish(clients[0].messages())
    clients[0].say(commands.rdy(0))
    house.publish("t", *[b"old"] * 4)
    house.advance(5)
    house.publish("t", *[b"new"] * 4)
    for client in clients:
        client.say(commands.rdy(1), turn=False)
    house.turn()

    expected = [b"new"] * 4 if options else [b"old"] * 4 + [b"new"] * 4
    assert expected == [body for client in clients for body in client.bodies()]


def test_zones_are_told_apart() -> None:
    """With topology-aware consumption all consumers in the zone are served before others."""
    house = House(topology_aware=True, topology_zone="z")
    zones = ["z", "other"] * 5
    clients = [house.consumer("t", "c", topology_zone=zone) for zone in zones]
    for client in clients:
        client.say(commands.rdy(1))
    house.publish("t", *[b"x"] * 6)

    assert [1] * 5 == [len(client.messages()) for client in clients[::2]]
    assert 1 == sum(len(client.messages()) for client in clients[1::2])
    stats = house.channel("t", "c")
    assert (5, 1) == (stats.zone_local_msg_count, stats.region_local_msg_count)
