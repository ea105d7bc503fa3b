"""The clients at the other end of the connections: publishers and consumers, in simulated time.

Each makes its random choices with the run's generator. An actor without a connection gets one when
the world decides so. Commands without an answer by then are unknown, and are never sent again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from proofs import bodies
from proofs.history import Outcome
from proofs.simulate_parts.link import Frame, Link, is_message, message, published_ns
from proofs.simulate_parts.truth import ChannelTruth, Command, Kind, Settlement, TopicTruth
from sparq.options.units import MILLISECOND
from sparq.protocol.commands import mpub, pub, sub

if TYPE_CHECKING:
    import random

    from proofs.simulate_parts.world import World

WINDOW = 24
BATCH_MAX = 25
DEFERRED_MS = (1, 40, 3_000, 60_000, 900_000)
REQUEUED_MS = (0, 0, 5, 800, 30_000)
MARKER_BODY = b"a run of FINs ends here"
MOST_ATTEMPTS = 3
"""Number of attempts at a message that a failing consumer fails. With more, and without the policy
of its channel, the run would not end."""
FAILING = 5
"""A failing consumer fails one message out of this many."""


class Client:
    """Common part of publishers and consumers: a connection, or none."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.link: Link | None = None

    @property
    def chance(self) -> random.Random:
        """Return the run's generator."""
        return self.world.chance

    def broken(self, link: Link) -> None:
        """Forget the connection, which is gone."""
        assert link is self.link
        self.link = None


class Publisher(Client):
    """Publishes to one topic, with several unanswered commands at a time."""

    def __init__(self, world: World, topic: TopicTruth, number: int) -> None:
        super().__init__(world)
        self.topic = topic
        self.number = number
        self.next_number = 0
        self.unanswered: deque[Command] = deque()

    def act(self, link: Link) -> None:
        """Send something, unless too much is unanswered."""
        if len(self.unanswered) >= WINDOW:
            return
        kind = self.chance.random()
        if kind < 0.5:
            for _ in range(self.chance.randint(1, 8)):
                self.publish(link, 1)
        elif kind < 0.8:
            self.publish(link, self.chance.randint(2, BATCH_MAX), is_batch=True)
        else:
            self.publish(link, 1, defer_ms=self.chance.choice(DEFERRED_MS))

    def publish(self, link: Link, count: int, *, is_batch: bool = False, defer_ms: int = 0) -> None:
        """Send one publishing command."""
        first, self.next_number = self.next_number, self.next_number + count
        key = bodies.Author(0, self.number, first).key
        command = Command(link.number, key, count, defer_ns=defer_ms * MILLISECOND)
        written = [
            bodies.write(bodies.Author(self.world.truth.run, self.number, number), self.chance)
            for number in range(first, first + count)
        ]
        self.topic.sent(command)
        self.unanswered.append(command)
        if is_batch:
            data = mpub(self.topic.name, written)
        elif defer_ms:
            head = b"DPUB %s %d\n" % (self.topic.name.encode(), defer_ms)
            data = head + len(written[0]).to_bytes(4, "big") + written[0]
        else:
            data = pub(self.topic.name, written[0])
        link.send(data, command)

    def left(self, _link: Link, frame: Frame) -> None:
        """Note that an answer leaves the broker: its promise holds from now on."""
        command = self.unanswered.popleft()
        command.outcome = Outcome.OK if frame == (0, b"OK") else Outcome.REFUSED
        command.answered_step = self.world.step
        if command.outcome is Outcome.OK:
            self.world.drain_truth.check_acknowledged(command)

    def received(self, frame: Frame) -> None:
        """Receive an answer; it needs no action, since `left` has handled it."""

    def broken(self, link: Link) -> None:
        """Mark the unanswered commands as unknown."""
        super().broken(link)
        for command in self.unanswered:
            command.outcome = Outcome.UNKNOWN
        self.unanswered.clear()


class Consumer(Client):
    """Consumes one channel: finishes, requeues, touches, or lets messages time out.

    After each run of FINs and REQs it publishes a marker, whose answer pledges those before it.

    Attributes:
        open: FINs and REQs that are not pledged yet, by message id.
        marked: FINs and REQs before each marker that is not answered yet.
        unmarked: FINs and REQs sent after the last marker.
        keys: keys of the messages that have left the broker but have not been received yet.
        fails: whether some messages are requeued each time they are delivered.
    """

    def __init__(self, world: World, channel: ChannelTruth, *, fails: bool = False) -> None:
        super().__init__(world)
        self.channel = channel
        self.fails = fails
        self.ready_count = self.chance.choice([1, 7, 300])
        self.subscribed = False
        self.pending: list[tuple[bytes, bytes, Settlement | None]] = []
        self.unmarked: list[tuple[bytes, Settlement]] = []
        self.marked: deque[list[tuple[bytes, Settlement]]] = deque()
        self.open: dict[bytes, Settlement] = {}
        self.keys: deque[int | None] = deque()

    def begin(self, link: Link) -> None:
        """Subscribe."""
        self.link = link
        topic, channel = self.channel.name.split(":")
        link.send(sub(topic, channel) + b"RDY %d\n" % self.ready_count)

    def act(self, link: Link) -> None:
        """Send the collected commands, followed by a marker."""
        if not self.world.truth.draining and not self.pending and self.chance.random() < 0.05:
            link.send(b"RDY %d\n" % self.chance.choice([0, 1, self.ready_count]))
        for name, data, settlement in self.pending:
            link.send(data, settlement)
            if settlement is not None:
                self.unmarked.append((name, settlement))
        self.pending.clear()
        if self.unmarked and self.chance.random() < 0.7:
            topic = self.chance.choice(["markers", "markers#ephemeral"])
            link.send(pub(topic, MARKER_BODY))
            self.marked.append(self.unmarked)
            self.unmarked = []

    def left(self, link: Link, frame: Frame) -> None:
        """Note a message or an answer that leaves the broker."""
        if is_message(frame):
            now, timeout_ns = self.world.clock.now(), link.session.msg_timeout_ns
            self.channel.check_age(published_ns(frame[1]), now)
            key = self.channel.check_delivery(message(frame[1]), link.number, timeout_ns, now)
            self.keys.append(key)
        elif frame[1].startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")):
            self.open.pop(frame[1].split()[2]).fail()
        elif frame[1].startswith(b"E_TOUCH_FAILED"):
            return
        elif not self.subscribed:
            self.subscribed = True
        else:
            for name, settlement in self.marked.popleft():
                settlement.pledge()
                if self.open.get(name) is settlement:
                    del self.open[name]

    def received(self, frame: Frame) -> None:
        """Decide what to do with a message."""
        if not is_message(frame):
            return
        key, name = self.keys.popleft(), message(frame[1])[1]
        if key is None or name in self.open:
            return  # of two answers, one could not tell which was refused
        kind = self.chance.random()
        is_early = message(frame[1])[0] <= MOST_ATTEMPTS
        must_fail = self.fails and is_early and key % FAILING == 0
        if not must_fail and (self.world.truth.draining or kind < 0.85):
            self.settle(name, b"FIN %s\n" % name, Settlement(self.channel, key, Kind.FIN))
        elif must_fail or kind < 0.93:
            delay_ms = self.chance.choice(REQUEUED_MS)
            requeue = Settlement(self.channel, key, Kind.REQ, delay_ms * MILLISECOND)
            self.settle(name, b"REQ %s %d\n" % (name, delay_ms), requeue)
        elif kind < 0.97:
            self.pending.append((name, b"TOUCH %s\n" % name, None))

    def settle(self, name: bytes, data: bytes, settlement: Settlement) -> None:
        """Record a FIN or REQ that will be sent."""
        self.open[name] = settlement
        self.pending.append((name, data, settlement))

    def broken(self, link: Link) -> None:
        """Drop what was sent but not answered: it is not pledged."""
        super().broken(link)
        self.channel.connection_lost(link.number)
        self.subscribed = False
        self.pending.clear()
        self.unmarked.clear()
        self.marked.clear()
        self.open.clear()
        self.keys.clear()
