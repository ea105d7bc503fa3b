"""A simple model of channels, and a state machine that compares the broker's channels with it.

The model is a dictionary per channel: index -> (place, attempts, due). The broker chooses which
client gets which message; the model follows that choice and checks that it was allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparq.options.units import SECOND
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness, Client, Message

TIMEOUT_NS = 60 * SECOND


CHANNELS = ("a", "b")


FRESH, IN_FLIGHT, REQUEUED, DELAYED, PENDING, DONE = (
    "fresh",
    "in_flight",
    "requeued",
    "delayed",
    "pending",
    "done",
)


@dataclass
class Place:
    """State of one message in one channel; `deferred_ns`: due time of a deferred publish."""

    where: str
    attempts: int = 0
    due_ns: int = 0
    owner: Client | None = None
    deferred_ns: int = 0


class ModelChannel:
    """The expected state of a channel."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.paused = False

    def count(self, *where: str) -> int:
        """The number of messages in these states."""
        return sum(place.where in where for place in self.places.values())

    def delivered(self, client: Client, message: Message, now_ns: int) -> None:
        """Check that this delivery was allowed, and record it."""
        assert not self.paused, message
        place = self.places[message.index]
        assert place.where in (FRESH, REQUEUED), (message, place)
        if place.where == FRESH:
            older = [i for i, p in self.places.items() if p.where == FRESH and i < message.index]
            assert not older, "a first delivery out of order"
        assert message.attempts == place.attempts + 1
        place.where, place.attempts = IN_FLIGHT, message.attempts
        place.due_ns, place.owner = now_ns + TIMEOUT_NS, client

    def pass_time(self, now_ns: int) -> None:
        """Make messages whose timeout or delay is over ready again."""
        for place in self.places.values():
            if place.where in (IN_FLIGHT, DELAYED, PENDING) and place.due_ns <= now_ns:
                place.where = REQUEUED


class Channels(RuleBasedStateMachine):
    """One topic with two channels, each with two clients."""

    @initialize(size=st.sampled_from([600, 3000, 1 << 20]))
    def begin(self, size: int) -> None:
        """Start a broker; with small files, segments are sealed and deleted often."""
        self.harness = BrokerHarness(max_bytes_per_file=size)
        self.model = {name: ModelChannel() for name in CHANNELS}
        self.topic_paused = False
        self.hidden: dict[int, Place] = {}
        # A deferred message that was dropped before it was due may or may not wait for its due
        # time when it is replayed.
        self.replay_from = 0
        self.connect_all()

    def connect_all(self) -> None:
        """Subscribe two clients to each channel, with RDY 0."""
        self.clients = {name: [self.connect(name), self.connect(name)] for name in CHANNELS}
        self.settle()

    def connect(self, name: str) -> Client:
        """Subscribe a client, with RDY 0."""
        client = self.harness.consumer("t", name)
        assert client.answers() == [b"OK"]
        return client

    @property
    def now_ns(self) -> int:
        """The model uses the wall clock because it continues across a restart."""
        return self.harness.clock.wall_ns

    def settle(self) -> None:
        """Record all new deliveries in the model, and check that each was allowed."""
        for name, clients in self.clients.items():
            got = sorted(
                ((message, client) for client in clients for message in client.messages()),
                key=lambda pair: pair[0].index,
            )
            for message, client in got:
                self.model[name].delivered(client, message, self.now_ns)

    # Publishing

    @rule(count=st.integers(1, 20), size=st.integers(1, 60), defer_s=st.sampled_from([0, 0, 5, 90]))
    def publish(self, count: int, size: int, defer_s: int) -> None:
        """Published messages enter the log, and the channels unless the topic is paused."""
        log = self.harness.broker.topics["t"].stream.log
        first = log.end_index
        self.harness.publish("t", *[b"x" * size] * count, defer_ms=1000 * defer_s)
        due_ns = self.now_ns + defer_s * SECOND
        for index in range(first, first + count):
            deferred_ns = due_ns if defer_s else 0
            self.hidden[index] = Place(PENDING if defer_s else FRESH, 0, due_ns, None, deferred_ns)
        self.show()
        self.settle()

    def show(self) -> None:
        """Add the published messages to the channels unless the topic is paused."""
        if not self.topic_paused:
            for index, place in self.hidden.items():
                for channel in self.model.values():
                    channel.places[index] = replace(place)
            self.hidden = {}

    # Consuming

    @rule(name=st.sampled_from(CHANNELS), which=st.integers(0, 1), count=st.integers(0, 12))
    def ready(self, name: str, which: int, count: int) -> None:
        """Set a client's RDY."""
        self.clients[name][which].say(commands.rdy(count))
        self.settle()

    def some_in_flight(self, name: str, data: st.DataObject) -> list[tuple[Client, int]]:
        """Some messages in flight on a channel, in random order."""
        places = self.model[name].places
        all_in_flight = [
            (place.owner, index)
            for index, place in sorted(places.items())
            if place.where == IN_FLIGHT and place.owner in self.clients[name]
        ]
        if not all_in_flight:
            return []
        chosen = data.draw(st.lists(st.sampled_from(all_in_flight), unique=True, max_size=40))
        return [(owner, index) for owner, index in chosen if owner is not None]

    def id_of(self, index: int) -> bytes:
        """The message id for an index."""
        return b"%016x" % (self.harness.broker.node_id << 54 | index)

    @rule(name=st.sampled_from(CHANNELS), data=st.data())
    def finish(self, name: str, data: st.DataObject) -> None:
        """FIN some messages in random order; each client sends its own as one run."""
        chosen = self.some_in_flight(name, data)
        for client in self.clients[name]:
            run = [index for owner, index in chosen if owner is client]
            for index in run:
                self.model[name].places[index].where = DONE
            if run:
                client.say(b"".join(commands.fin(self.id_of(index)) for index in run))
                assert client.answers() == []
        self.settle()

    @rule(name=st.sampled_from(CHANNELS), data=st.data(), delay_s=st.sampled_from([0, 0, 7, 100]))
    def requeue(self, name: str, data: st.DataObject, delay_s: int) -> None:
        """REQ a message, without or with a delay."""
        for client, index in self.some_in_flight(name, data)[:5]:
            place = self.model[name].places[index]
            place.where = DELAYED if delay_s else REQUEUED
            place.due_ns = self.now_ns + delay_s * SECOND
            client.say(commands.req(self.id_of(index), 1000 * delay_s))
            assert client.answers() == []
            self.settle()

    @rule(name=st.sampled_from(CHANNELS), data=st.data())
    def touch(self, name: str, data: st.DataObject) -> None:
        """TOUCH restarts the full timeout."""
        for client, index in self.some_in_flight(name, data)[:5]:
            self.model[name].places[index].due_ns = self.now_ns + TIMEOUT_NS
            client.say(commands.touch(self.id_of(index)))
            assert client.answers() == []

    @rule(seconds=st.sampled_from([0.05, 3.0, 8.0, 61.0, 120.0]))
    def pass_time(self, seconds: float) -> None:
        """Let timeouts, delays and deferred publishes become due; segments may be trimmed."""
        self.harness.pass_time(seconds)
        for channel in self.model.values():
            channel.pass_time(self.now_ns)
        for place in self.hidden.values():
            if place.where == PENDING and place.due_ns <= self.now_ns:
                place.where = REQUEUED
        self.settle()

    # Administration

    @rule(name=st.sampled_from(CHANNELS))
    def pause_or_resume_channel(self, name: str) -> None:
        """A paused channel delivers nothing."""
        channel = self.model[name]
        channel.paused = not channel.paused
        self.harness.broker.pause_channel("t", name, channel.paused, self.harness.clock.now())
        self.harness.turn()
        self.settle()

    @rule()
    def pause_or_resume_topic(self) -> None:
        """The channels of a paused topic get no new messages."""
        self.topic_paused = not self.topic_paused
        self.harness.broker.pause_topic("t", self.topic_paused, self.harness.clock.now())
        self.harness.turn()
        self.show()
        self.settle()

    @rule()
    def empty_topic(self) -> None:
        """Emptying a topic drops only messages that no channel sees yet; a replay returns them."""
        for index, place in self.hidden.items():
            if place.deferred_ns:
                self.replay_from = index + 1
            for channel in self.model.values():
                channel.places[index] = Place(DONE)
        self.hidden = {}
        self.harness.broker.empty_topic("t", self.harness.clock.now())
        self.harness.turn()
        self.settle()

    @rule(name=st.sampled_from(CHANNELS))
    def empty_channel(self, name: str) -> None:
        """Emptying a channel drops all its messages."""
        for place in self.model[name].places.values():
            place.where = DONE
        self.harness.broker.empty_channel("t", name, self.harness.clock.now())
        self.harness.turn()
        self.settle()

    @rule(name=st.sampled_from(CHANNELS), data=st.data())
    def seek(self, name: str, data: st.DataObject) -> None:
        """After a seek, messages before the target are finished and all others are not."""
        log = self.harness.broker.topics["t"].stream.log
        places = self.model[name].places
        index = max(self.replay_from, data.draw(st.sampled_from([*sorted(places)[-30:], 0])))
        target: Any = index or "earliest"
        index = max(index, log.first_index)
        self.harness.broker.seek("t", name, target, self.harness.clock.now())
        for at, place in places.items():
            place.attempts, place.owner = 0, None
            stored = at >= index and log.next_stored(at) == at
            place.where = FRESH if stored else DONE
            if stored and place.deferred_ns:
                # Deferred messages are delivered when they are due; their order is not guaranteed.
                place.where, place.due_ns = PENDING, place.deferred_ns
        self.model[name].pass_time(self.now_ns)
        self.harness.turn()
        self.settle()

    # Connections and crashes

    @rule(name=st.sampled_from(CHANNELS), which=st.integers(0, 1))
    def reconnect(self, name: str, which: int) -> None:
        """Messages of a lost connection wait for their timeouts."""
        self.clients[name][which].close()
        self.clients[name][which] = self.connect(name)
        self.settle()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """After a kill or a clean stop nothing finished returns; in-flight messages are ready."""
        if clean:
            self.harness.restart()
        else:
            self.harness.crash()
        for channel in self.model.values():
            for place in channel.places.values():
                if place.where == IN_FLIGHT:
                    place.where, place.owner = REQUEUED, None
        self.connect_all()

    # Invariants

    @invariant()
    def stats_agree_with_the_model(self) -> None:
        """Depth, in-flight and deferred counts equal the model's."""
        if not hasattr(self, "harness"):
            return
        for name, channel in self.model.items():
            found = self.harness.channel("t", name)
            assert found.in_flight_count == channel.count(IN_FLIGHT)
            assert found.deferred_count == channel.count(DELAYED, PENDING)
            assert found.depth == channel.count(FRESH, REQUEUED), name
        assert self.harness.topic("t").depth == len(self.hidden)

    @invariant()
    def no_window_is_open_while_messages_wait(self) -> None:
        """While an unpaused channel has messages to deliver, no client's window is open."""
        if not hasattr(self, "harness"):
            return
        for name, channel in self.model.items():
            if not channel.paused and channel.count(FRESH, REQUEUED):
                for client in self.clients[name]:
                    assert client.session.window() <= 0

    @precondition(lambda self: hasattr(self, "harness"))
    @invariant()
    def unfinished_messages_are_stored(self) -> None:
        """A message that is not finished is still in the log."""
        log = self.harness.broker.topics["t"].stream.log
        for channel in self.model.values():
            for index, place in channel.places.items():
                assert place.where == DONE or log.next_stored(index) == index


Channels.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
