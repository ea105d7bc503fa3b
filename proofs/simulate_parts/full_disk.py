"""A full simulated disk: many topics, consumers that finish messages one by one, kills anywhere.

The disk allocates space in blocks, as file systems do. Each FIN is followed by an answered command:
its message must not be delivered again, in whatever order they were finished. When all messages are
finished, every topic accepts messages again within a second, without a restart.
"""

from __future__ import annotations

import random

from tests.broker.harness import BrokerHarness, Client

from proofs.simulate_parts.truth import Tally
from sparq.protocol import commands
from sparq.testing import Fault, MemoryDisk, PowerCut

KIB = 1 << 10
BLOCK_BYTES = 4 * KIB
TOPIC_BYTES = 48 * KIB
"""Disk space for each topic: its files, and space to record its FINs."""
LIVES = 3
FINISHES_MAX = 1_500
"""Maximum number of FINs in one life."""
OPERATIONS_MAX = 3_000
"""A kill comes within this number of disk operations, or not at all in that life."""
REQUEUES = 0.02
PUBLISHES = 0.05
READY_MAX = 500
DRAINS_MAX = 200
TRIES = 10
"""Attempts to publish once there is space again, spread over one second."""


class FullDisk:
    """One run."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(f"{seed} full disk")
        self.tally = Tally()
        self.names = [f"t{number}" for number in range(chance.choice([1, 3, 20, 40]))]
        self.channel = "c" * chance.choice([1, 10, 64])
        capacity_bytes = chance.choice([128, 512]) * KIB + len(self.names) * TOPIC_BYTES
        self.disk = MemoryDisk(capacity_bytes=capacity_bytes, block_bytes=BLOCK_BYTES)
        if is_late := chance.random() < 0.3:
            # Something else uses nearly all of the disk when nsqd starts, and frees it later.
            self.disk.make_directory("/other")
            room_bytes = chance.choice([150, 300]) * KIB + len(self.names) * 4 * BLOCK_BYTES
            self.disk.create("/other/file").reserve(max(0, capacity_bytes - room_bytes))
        self.harness = BrokerHarness(self.disk)
        self.body_bytes = chance.choice([20, 100, 1000])
        self.stored: dict[str, set[bytes]] = {name: set() for name in self.names}
        self.finished: dict[str, set[bytes]] = {name: set() for name in self.names}
        self.asked: set[bytes] = set()
        """Messages with a FIN; a FIN that a kill left unanswered may be kept or lost."""
        self.returned: set[bytes] = set()
        self._number = 0
        for name in self.names:
            self.harness.consumer(name, self.channel).close()
        if is_late:
            self.disk.unlink("/other/file")

    def run(self) -> Tally:
        """Fill the disk, work on it, and check the result."""
        for count in (20, 1):
            taken = True
            while taken:
                taken = any([self.publish(name, count) for name in self.names])
        for _ in range(LIVES):
            try:
                self.live()
            except PowerCut:
                self.tally.crashes += 1
            self.disk.killed()
            self.harness.crash()
        self.drain()
        self.tally.returned = len(self.returned)
        self.tally.acknowledged = sum(map(len, self.stored.values()))
        return self.tally

    def publish(self, name: str, count: int) -> bool:
        """Send one MPUB of unique bodies; return whether it was acknowledged."""
        bodies = []
        for _ in range(count):
            self._number += 1
            bodies.append((b"%d " % self._number).ljust(self.body_bytes, b"."))
        client = self.harness.connect()
        client.say(commands.mpub(name, bodies))
        is_taken = client.answers() == [b"OK"]
        client.close()
        self.tally.attempted += count
        if is_taken:
            self.stored[name].update(bodies)
        return is_taken

    def live(self) -> None:
        """Finish messages one by one, until none is left, the limit is reached, or a kill comes."""
        consumers = self.consumers(1)
        self.disk.fail(Fault(self.chance.randint(1, OPERATIONS_MAX), None, part=0.5))
        for _ in range(FINISHES_MAX):
            name = self.chance.choice(self.names)
            consumer = consumers[name]
            for message in consumer.messages():
                self.came(name, message.body)
                if self.chance.random() < REQUEUES:
                    consumer.say(commands.req(message.id, 0))
                    continue
                self.asked.add(message.body)
                consumer.say(commands.fin(message.id) * 2)
                if consumer.answers()[-1:] and self.disk.fault is not None:
                    self.finished[name].add(message.body)
            if self.chance.random() < PUBLISHES:
                self.publish(self.chance.choice(self.names), 20)
                self.harness.pass_time(0.1)

    def consumers(self, ready: int) -> dict[str, Client]:
        """Return a consumer on each topic."""
        consumers = {}
        for name in self.names:
            consumers[name] = self.harness.consumer(name, self.channel, rdy=ready)
            consumers[name].answers()
        return consumers

    def came(self, name: str, body: bytes) -> None:
        """Check and record a delivery."""
        self.tally.delivered += 1
        if body in self.finished[name]:
            self.returned.add(body)

    def drain(self) -> None:
        """Check that all remaining messages are delivered and every topic then accepts messages."""
        left = {name: self.stored[name] - self.asked for name in self.names}
        for name, consumer in self.consumers(READY_MAX).items():
            for _ in range(DRAINS_MAX):
                messages = consumer.messages()
                if not messages:
                    break
                for message in messages:
                    self.came(name, message.body)
                    left[name].discard(message.body)
                consumer.finish(messages)
        self.tally.lost = sum(map(len, left.values()))
        refused = self.names
        for _ in range(TRIES):
            self.harness.pass_time(0.1)
            refused = [name for name in refused if not self.publish(name, 1)]
        self.tally.stuck = len(refused)
