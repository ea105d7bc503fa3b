"""One simulated run: a broker on a memory disk, its threads, its clients, and the faults.

The broker is driven as nsqd drives it (`nsqd/turns.py`): a turn after each
group of events; disk tasks on one thread for commits, two for reads and one for housekeeping; the
event loop takes over results in any order between threads. Here a thread is a queue, and whether it
makes progress is random.

A life of the broker ends as a clean stop, a kill (written data stay) or a power cut (of unsynced
data, any sectors may stay), between any two steps or in the middle of any disk operation.

The clients at the other end of the links are publishers and consumers, in simulated time. Each
makes its random choices with the run's generator. An actor without a connection gets one when the
world decides so. Commands without an answer by then are unknown, and are never sent again.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Protocol

from tests.support.v2_client import FRAME_MESSAGE

from proofs import bodies
from proofs.checker import Outcome
from proofs.simulate_parts import weather as weathers
from proofs.simulate_parts.truth import (
    ChannelTruth,
    Command,
    Kind,
    Settlement,
    Tally,
    TopicTruth,
    Truth,
)
from proofs.simulate_parts.weather import Weather
from sparq.broker.broker import Broker
from sparq.broker.draining import Drain, Draining
from sparq.broker.health import Trouble
from sparq.broker.policies import Policy
from sparq.broker.session import V2Session
from sparq.broker.turn import TopicTask
from sparq.log.disk import DiskError
from sparq.log.task import TaskKind
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol.commands import mpub, pub, sub
from sparq.protocol.dead_letters import dead_letter_topic
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant
from sparq.protocol.parser import CommandParser
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut

# Links: a connection between an actor and the broker, including the network in between. Bytes wait,
# arrive in pieces split anywhere, or are lost when the connection breaks. The broker's output is
# read twice: by the truth at the moment it leaves, and by the actor once the same bytes have
# arrived.

HEAD = struct.Struct(">ii")
MESSAGE = struct.Struct(">qH16s")
Frame = tuple[int, bytes]


class Arriving(Protocol):
    """Something that is notified when the broker has received it."""

    def arrived(self, now: Instant, step: int) -> None:
        """Note that the broker has received its last byte."""


class Actor(Protocol):
    """The client at the other end."""

    def left(self, link: Link, frame: Frame) -> None:
        """Note that a frame leaves the broker."""

    def received(self, frame: Frame) -> None:
        """Handle a received frame."""

    def broken(self, link: Link) -> None:
        """Note that the connection is gone."""


class Link:
    """One connection.

    Attributes:
        number: number of the connection, within the run.
        still_until_ns: until then no byte moves.
        ended: whether the broker has sent all its output and closed the connection.
    """

    def __init__(self, world: World, actor: Actor, number: int) -> None:
        self.world = world
        self.actor = actor
        self.number = number
        self.still_until_ns = 0
        self.ended = False
        self.session: V2Session = world.broker.connect(f"10.0.0.1:{number}", world.clock.now())
        self._parser = CommandParser(world.broker.limits)
        self._up = bytearray()
        self._sent = self._arrived = 0
        self._marks: deque[tuple[int, Arriving]] = deque()
        self._down: deque[tuple[int, Frame]] = deque()
        self._left = self._read = 0

    # Towards the broker

    def send(self, data: bytes, what: Arriving | None = None) -> None:
        """Start sending bytes; `what` is notified when the last of them has arrived."""
        self._up += data
        self._sent += len(data)
        if what is not None:
            self._marks.append((self._sent, what))

    def pending_bytes(self) -> int:
        """Return the number of bytes on their way to the broker."""
        return len(self._up)

    def arrive(self, size: int) -> None:
        """Let the next bytes arrive, and have the commands that they complete executed."""
        data = bytes(self._up[:size])
        if not data or self.ended:
            return
        del self._up[:size]
        self._arrived += len(data)
        world, session, parser = self.world, self.session, self._parser
        now = world.clock.now()
        while self._marks and self._marks[0][0] <= self._arrived:
            self._marks.popleft()[1].arrived(now, world.step)
        parser.feed(data)
        try:
            while not session.closing and (command := parser.next()) is not None:
                world.broker.execute(session, command, now)
                world.truth.tally.operations += 1
                parser.state = session.state
        except RemoteError as error:
            world.broker.fail(session, error)

    # Towards the actor

    def flush(self) -> None:
        """Take the broker's output."""
        if self.ended:
            return
        output = b"".join(map(bytes, self.world.broker.take_output(self.session)))
        at = 0
        while at < len(output):
            size, kind = HEAD.unpack_from(output, at)
            frame = kind, output[at + HEAD.size : at + 4 + size]
            at += 4 + size
            self._down.append((self._left + at, frame))
            self.actor.left(self, frame)
        self._left += len(output)
        if self.session.closing and self.session.is_drained():
            self.ended = True
        self._balance()

    def read(self, size: int) -> None:
        """Let the actor receive the next bytes."""
        self._read = min(self._left, self._read + size)
        while self._down and self._down[0][0] <= self._read:
            self.actor.received(self._down.popleft()[1])
        self._balance()

    def unread_bytes(self) -> int:
        """Return the number of bytes on their way to the actor."""
        return self._left - self._read

    def _balance(self) -> None:
        """Stop messages at too many unread bytes until half are read, as the transport does."""
        most = self.world.weather.unread_bytes_max
        unread = self.unread_bytes()
        if not self.session.paused_writing and unread > most:
            self.session.paused_writing = True
        elif self.session.paused_writing and unread <= most // 2:
            self.session.paused_writing = False
            self.world.broker.writable(self.session)

    def is_still(self) -> bool:
        """Return whether no byte moves now."""
        return self.world.clock.mono_ns < self.still_until_ns

    def stall(self, seconds: float) -> None:
        """Let no byte move for a while."""
        self.still_until_ns = self.world.clock.mono_ns + int(seconds * SECOND)


def message(data: bytes) -> tuple[int, bytes, bytes]:
    """Return (attempts, id, body) of a message frame's data."""
    _, attempts, name = MESSAGE.unpack_from(data)
    return attempts, name, data[MESSAGE.size :]


def published_ns(data: bytes) -> int:
    """Return the publish time (wall ns) of a message frame's data."""
    stamp: int = MESSAGE.unpack_from(data)[0]
    return stamp


def is_message(frame: Frame) -> bool:
    """Return whether a frame is a message, not an answer."""
    return frame[0] == FRAME_MESSAGE

    # Actors


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


# Channels with policies


def policies(topic: str, weather: Weather) -> tuple[Policy, ...]:
    """Return the policies of the channels that `consumers_with_policies` creates."""
    return (
        Policy(topic, "aged", {"message_ttl_ns": weather.ttl_ns}),
        Policy(topic, "late", {"max_channel_lag_bytes": weather.lag_bytes}),
        Policy(topic, "failing", {"max_attempts": MOST_ATTEMPTS}),
    )


def consumers_with_policies(world: World, topic: TopicTruth) -> list[Consumer]:
    """Return a consumer per channel, one of which fails some messages, and one of the dead letters.

    If an OK does not require a sync, a power cut may lose a dead letter that was acknowledged.
    """
    aged, late, failing = (
        topic.channel(name, ordered=True) for name in ("aged", "late", "failing")
    )
    aged.ttl_ns, aged.may_miss = world.weather.ttl_ns, True  # hours have passed by the end
    late.skips_unread = True
    reader = dead_letters(topic, "reader")
    failing.most_attempts, failing.letters = MOST_ATTEMPTS, reader
    failing.may_miss = world.weather.options.sync_every != 1
    return [
        Consumer(world, aged),
        Consumer(world, late),
        Consumer(world, failing, fails=True),
        Consumer(world, reader),
    ]


def dead_letters(topic: TopicTruth, name: str) -> ChannelTruth:
    """Return a channel of a topic's dead-letter topic: the same messages, with other ids."""
    dead = DeadLetters(topic.truth, dead_letter_topic(topic.name))
    dead.command_of = topic.command_of
    topic.truth.topics[dead.name] = dead
    dead.channels[name] = Letters(dead, f"{dead.name}:{name}", ordered=False)
    return dead.channels[name]


class Letters(ChannelTruth):
    """A channel of a dead-letter topic: a crash may leave two dead letters of one message."""

    def _check_settled(self, key: int, now: Instant) -> None:
        """Check nothing: if one of two letters is finished, the other may still be delivered."""

    def _check_out(
        self, key: int, attempts: int, connection: int, timeout_ns: int, now: Instant
    ) -> None:
        """Check nothing: if one of two letters is with a consumer, the other may be delivered."""


class DeadLetters(TopicTruth):
    """A dead-letter topic."""

    def recognise(self, body: bytes, index: int) -> int | None:
        """Recognise a body as for any topic, except that one message may have several indexes."""
        author = bodies.read(body)
        if author is not None:
            self.index_of.pop(author.key, None)
        return super().recognise(body, index)


# A drain: while there is one, no publish is accepted, whatever ends a life in between. A change of
# it holds once it is answered. An unanswered or failed change may have reached the disk or not:
# which of the two holds is known again when the next life begins.

BEGINS, ENDS = 0.01, 0.2
"""Chance that a drain begins, or ends, in a round."""


class Change:
    """A requested start or end of a drain."""

    def __init__(self, truth: DrainTruth, *, on: bool) -> None:
        self._truth, self._on = truth, on

    def answered(self, error: RemoteError | None) -> None:
        """Note that the change holds, or has failed."""
        self._truth.answered(None if error is not None else self._on)


class DrainTruth:
    """What is known about the drain.

    Attributes:
        holds: whether nsqd drains; None: a change is in progress.
    """

    def __init__(self, world: World) -> None:
        self.holds: bool | None = False
        self._world = world
        self._before = False
        self._since_step = 0
        self._is_sure = True

    def change_by_chance(self) -> None:
        """Start or end a drain, by chance."""
        if self.holds is None or self._world.chance.random() >= (ENDS if self.holds else BEGINS):
            return
        world, self._before, self.holds = self._world, self.holds, None
        drain = None if self._before else Drain(world.clock.now().wall_ns, "somebody")
        world.broker.drains.change(
            lambda now: Draining(drain, now.topics), Change(self, on=drain is not None)
        )

    def answered(self, on: bool | None) -> None:
        """Note that a change holds; None: it failed, and the old state holds until nsqd ends."""
        self._is_sure = on is not None
        self._hold(self._before if on is None else on)

    def _hold(self, on: bool) -> None:
        self.holds, self._since_step = on, self._world.step

    def check_after_restart(self) -> None:
        """Check the drain in the next life: what was answered must hold in it."""
        holds = self._world.broker.drains.now.node is not None
        if self.holds is not None and self._is_sure and holds != self.holds:
            self._world.truth.tally.undrained += 1
            self._world.truth.tell(f"a drain was {self.holds}, and is {holds} after a restart")
        # An unanswered change may be found now, and still be lost in the next power cut.
        self._is_sure &= self.holds is not None
        self._hold(holds)

    def check_acknowledged(self, command: Command) -> None:
        """Check that a publish was acknowledged only while nsqd does not drain."""
        if self.holds and command.arrived_step > self._since_step:
            self._world.truth.tally.undrained += 1
            self._world.truth.tell(f"publish {command.first} was taken while nsqd drained")


# The world

PATH = "/data"
LASTING, SHORT = "lasting", "short"
ROUNDS_MAX = 40
INLINE_ROUNDS_MAX = 4
QUIET_TURNS_MAX = 10_000
STOPS_MAX = 200
MORE_BYTES = 100_000
DRAIN_STEP_NS = 50 * MILLISECOND


class Thread:
    """A thread of the broker: its tasks in order, and completed tasks not yet taken over."""

    def __init__(self) -> None:
        self.queue: deque[TopicTask] = deque()
        self.ran: deque[TopicTask] = deque()


class Killed(Exception):
    """The process dies between two steps."""


class World:
    """One run.

    Attributes:
        step: increases with every event.
        links: the open connections.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.weather: Weather = weathers.draw(self.chance, together=seed % 2 == 0)
        self.truth = Truth(seed & 0xFFFF_FFFF)
        self.clock = ManualClock()
        self.disk = MemoryDisk(capacity_bytes=self.weather.capacity_bytes)
        self.step = 0
        self.drain_truth = DrainTruth(self)
        self.links: list[Link] = []
        self.broker: Broker
        self._connections = 0
        self._next_tick_ns = 0
        self._deaths: dict[int, int] = {}
        lasting = self.truth.topic(LASTING)
        self.actors: list[Publisher | Consumer] = [
            Publisher(self, lasting, number) for number in range(self.weather.publishers)
        ]
        one, two = lasting.channel("one", ordered=True), lasting.channel("two", ordered=False)
        self.actors += [
            Consumer(self, channel) for channel in (one, *[two] * self.weather.consumers)
        ]
        self.actors += consumers_with_policies(self, lasting)
        if self.weather.short_lived:
            short = self.truth.topic(SHORT)
            self.actors += [
                Publisher(self, short, 60),
                Consumer(self, short.channel("three", ordered=True)),
            ]

    # The run

    def run(self) -> Tally:
        """Simulate all lives, then the final drain."""
        self.start()
        self.make_channels()
        for life in range(self.weather.lives):
            try:
                self.live()
                if life + 1 < self.weather.lives:
                    self.end_life()
            except PowerCut:
                self.die()
            except Killed:
                self.die()
            self.truth.tally.operations += self.step
        self.drain()
        self.truth.conclude()
        tally = self.truth.tally
        tally.left = self.pages_left()
        tally.operations += self.disk.count
        return tally

    def make_channels(self) -> None:
        """Create the lasting channels before anything is published."""
        for topic in self.truth.topics.values():
            self.broker.create_topic(topic.name, self.clock.now())
            for channel in topic.channels.values():
                self.broker.create_channel(topic.name, channel.name.split(":")[1], self.clock.now())
        self.settle()

    def start(self) -> None:
        """Start a broker on the contents of the disk; after a disk error, try again."""
        while True:
            self._committer = Thread()
            self._readers = [Thread(), Thread()]
            self._housekeeper = Thread()
            self.broker = Broker(self.weather.options, self.disk, PATH, self.clock.now(), seed=1)
            self.broker.configure_policies(policies(LASTING, self.weather))
            self.broker.journal.share_min = self.weather.share_min
            self.broker.journal.file_bytes = self.weather.journal_bytes
            self._next_tick_ns = 0
            if self.truth.tally.crashes and self.chance.random() < self.weather.faults:
                self.disk.fail(Fault(self.chance.randint(1, 40)))
            try:
                self.broker.load(self.clock.now())
                troubles = self.broker.turn.health.troubles
                if not any(kind is Trouble.OPENING for kind, _ in troubles):
                    self.drain_truth.check_after_restart()
                    return
            except DiskError:
                pass
            self.count_operations()
            self.disk = self.disk.killed()
            # If the disk was full, it needs more space before the broker can start.
            self.disk.capacity_bytes = (self.disk.capacity_bytes or 0) + MORE_BYTES

    def count_operations(self) -> None:
        """Add up the disk's counts before the disk is replaced."""
        self.truth.tally.disk_errors += self.disk.failed_count
        self.disk.failed_count = 0

    def live(self) -> None:
        """Run rounds until something ends this life."""
        rounds = self.chance.randint(2, ROUNDS_MAX)
        self._deaths = {}
        death = self.chance.random()
        if death < 0.35:
            self._deaths = {self.chance.randrange(rounds): self.chance.randrange(6)}
        elif death < 0.7:
            part = self.chance.choice([0.0, self.chance.random(), 1.0])
            self.disk.fail(Fault(self.chance.randint(1, 8 * rounds), None, part=part))
        for number in range(rounds):
            for place, happen in enumerate(
                (self.arrive, self.act, self.turn, self.work, self.read, self.pass_time)
            ):
                self.step += 1
                if self._deaths.get(number) == place:
                    raise Killed
                happen()

    # What happens in a round

    def arrive(self) -> None:
        """Let bytes arrive at the broker, split anywhere."""
        for link in tuple(self.links):
            if link.is_still() or not link.pending_bytes():
                continue
            size = self.chance.choice([1, 7, self.chance.randint(1, 400), 64 << 10, 64 << 10])
            link.arrive(size)

    def act(self) -> None:
        """Let the actors act; connections are made, stall and break."""
        weather, chance = self.weather, self.chance
        for actor in self.actors:
            if actor.link is None:
                if self.truth.draining or chance.random() < 0.7:
                    self.connect(actor)
            elif actor.link.ended and not actor.link.unread_bytes():
                self.disconnect(actor.link)
            elif chance.random() < weather.cuts:
                actor.link.arrive(chance.randrange(actor.link.pending_bytes() + 1))
                self.disconnect(actor.link)
            else:
                actor.act(actor.link)
                if chance.random() < weather.stalls:
                    actor.link.stall(chance.choice([0.1, 1, 30]))
        if not self.truth.draining:
            self.cause_faults()

    def connect(self, actor: Publisher | Consumer) -> None:
        """Open a connection for an actor."""
        self._connections += 1
        link = Link(self, actor, self._connections)
        self.links.append(link)
        actor.link = link
        if isinstance(actor, Consumer):
            actor.begin(link)

    def disconnect(self, link: Link) -> None:
        """Drop a connection, including the bytes on their way."""
        self.links.remove(link)
        self.broker.disconnect(link.session, self.clock.now())
        link.actor.broken(link)

    def cause_faults(self) -> None:
        """Let outside faults and an operator's actions happen."""
        weather, chance = self.weather, self.chance
        fault = self.disk.fault
        if chance.random() < weather.faults and (fault is None or fault.number is not None):
            self.disk.fail(weathers.fault(chance))
        if chance.random() < weather.jumps:
            self.clock.wall_ns += weathers.jump_ns(chance)
            self.truth.jumped_step = self.step
        self.drain_truth.change_by_chance()
        kind = chance.random()
        try:
            if kind < 0.01:
                self.broker.pause_topic(LASTING, kind < 0.005, self.clock.now())
            elif kind < 0.02:
                self.broker.pause_channel(LASTING, "one", kind < 0.015, self.clock.now())
            elif kind < 0.04 and weather.short_lived:
                self.broker.delete_topic(SHORT, self.clock.now())
                self.truth.topics[SHORT].forget()
        except RemoteError:
            return

    def turn(self) -> None:
        """Take a turn of the event loop, as nsqd does."""
        broker = self.broker
        for _ in range(INLINE_ROUNDS_MAX):
            failed = self.disk.failed_count
            tasks = broker.end_turn(self.clock.now())
            self.note_doubt(failed)
            if not self._may_run_inline(tasks):
                for topic_task in tasks:
                    self.hand_out(topic_task)
                break
            for topic_task in tasks:
                self.run_task(topic_task)
                topic_task.finish(self.clock.now())
        for ticket, error in broker.take_published():
            ticket.answered(error)
        broker.changes.clear()
        broker.notes.clear()
        sessions = broker.take_sessions()
        if sessions:
            links = {link.session: link for link in self.links}
            for session in sessions:
                if session in links:
                    links[session].flush()
        self.note_kept()

    def _may_run_inline(self, tasks: list[TopicTask]) -> bool:
        commits = self._committer
        one_commit = len(tasks) == 1 and tasks[0].task.kind is TaskKind.COMMIT
        return (
            bool(tasks)
            and (one_commit or all(topic_task.task.kind is TaskKind.WRITE for topic_task in tasks))
            and not commits.ran
            and not commits.queue
            and self.chance.random() < self.weather.inline
        )

    def threads(self) -> tuple[Thread, ...]:
        """Return all threads."""
        return self._committer, *self._readers, self._housekeeper

    def hand_out(self, topic_task: TopicTask) -> None:
        """Queue a task on its thread."""
        if topic_task.task.kind is TaskKind.READ:
            thread = min(self._readers, key=lambda reader: len(reader.queue))
        elif topic_task.task.kind is TaskKind.HOUSEKEEPING:
            thread = self._housekeeper
        else:
            thread = self._committer
        thread.queue.append(topic_task)

    def run_task(self, topic_task: TopicTask) -> None:
        """Run a task."""
        failed = self.disk.failed_count
        topic_task.task.run()
        self.note_doubt(failed)

    def note_doubt(self, failed: int) -> None:
        """After two errors in a task, or one on a nearly full disk, mark refusals as doubtful."""
        errors = self.disk.failed_count - failed
        if errors > 1 or (errors and self.disk.free_bytes(PATH) < 100_000):
            self.truth.note_two_errors()

    def note_kept(self) -> None:
        """Record which ledgers are written and synced after a turn."""
        for truth in self.truth.topics.values():
            topic = self.broker.topics.get(truth.name)
            if topic is None or topic.writer is None:
                continue
            if topic.writer.is_written():
                truth.written_step = self.step
            if topic.writer.is_synced():
                truth.synced_step = self.step
            if not topic.stream.log.unsynced.count:
                truth.safe_step = self.step

    def work(self) -> None:
        """Let each thread make progress, by chance."""
        for thread in self.threads():
            while self.chance.random() < self.weather.work and self.advance(thread):
                self.step += 1

    def advance(self, thread: Thread) -> bool:
        """Run a thread's next task or take over its result; False: it has nothing to do."""
        if thread.ran:
            thread.ran.popleft().finish(self.clock.now())
            self.turn()
            return True
        if not thread.queue:
            return False
        if thread is self._committer:
            self.commit(thread)
        else:
            topic_task = thread.queue.popleft()
            self.run_task(topic_task)
            thread.ran.append(topic_task)
        return True

    def commit(self, thread: Thread) -> None:
        """Run the waiting commits; they may share a sync."""
        by_task = {id(topic_task.task): topic_task for topic_task in thread.queue}
        tasks = [topic_task.task for topic_task in thread.queue]
        thread.queue.clear()
        failed = self.disk.failed_count
        for ran in self.broker.journal.run(tasks):
            thread.ran.extend(by_task[id(task)] for task in ran)
        self.note_doubt(failed)

    def read(self) -> None:
        """Let bytes arrive at the actors."""
        for link in tuple(self.links):
            if link.unread_bytes() and not link.is_still():
                link.read(self.chance.choice([3, 500, 64 << 10, 64 << 10]))

    def pass_time(self) -> None:
        """Let time pass, and have the broker handle what is due."""
        self.clock.advance(weathers.pause_ns(self.chance))
        self.tick()

    def tick(self) -> None:
        """Tick as nsqd does: when something is due, and every 100 ms."""
        if self.clock.mono_ns >= self._next_tick_ns:
            due_ns = self.broker.tick(self.clock.now())
            latest_ns = self.clock.mono_ns + 100 * MILLISECOND
            self._next_tick_ns = latest_ns if due_ns is None else min(due_ns, latest_ns)

    # The end of a life

    def settle(self) -> None:
        """Take turns until there is nothing left to do."""
        for _ in range(QUIET_TURNS_MAX):
            self.step += 1
            self.turn()
            moved = [self.advance(thread) for thread in self.threads()]
            if not any(moved) and not self.broker.turn.is_busy:
                return
        raise AssertionError("the broker does not come to rest")

    def end_life(self) -> None:
        """End this life with a clean stop, a kill or a power cut, unless it has already ended."""
        if self.chance.random() < 0.6:
            self.die()
            return
        self.disk.fault = None
        for link in tuple(self.links):
            self.disconnect(link)
        self.settle()
        for _ in range(STOPS_MAX):
            closed = self.broker.close(self.clock.now())
            self.settle()
            if closed:
                break
        else:
            raise AssertionError("the broker does not close")
        self.broker.closed()
        self.die(stopped=True)

    def die(self, *, stopped: bool = False) -> None:
        """End the process, and start the next one on the contents of the disk."""
        self.truth.tally.crashes += 1
        for link in tuple(self.links):
            link.actor.broken(link)
        self.links.clear()
        self.count_operations()
        power_cut = self.chance.random() < 0.5
        kept_steps: dict[TopicTruth, int] = {}
        for topic in self.truth.topics.values():
            kept_steps[topic] = self.step
            # A stop on a disk that accepts no writes saves no more than a kill.
            if stopped and self.broker.health() == "OK":
                continue
            kept_steps[topic] = topic.synced_step if power_cut else topic.written_step
            if power_cut and self.weather.options.sync_every != 1:
                topic.power_lost()
        forgotten = [] if power_cut else self.disk.forgotten()
        for topic in self.truth.topics.values():
            if any(topic.folder in path for path in forgotten):
                # A new process finds these data, and no sync reports that they are not on the disk.
                topic.power_lost()
                kept_steps[topic] = topic.synced_step
        if power_cut:
            self.truth.tally.operations += self.disk.count
            self.disk = self.disk.crash(self.chance.getrandbits(32))
        else:
            self.disk = self.disk.killed()
        died = self.clock.now()
        self.clock.advance(weathers.pause_ns(self.chance))
        if self.chance.random() < self.weather.jumps:
            self.clock.wall_ns += weathers.jump_ns(self.chance)
        self.start()
        for topic, kept_step in kept_steps.items():
            topic.reborn(died, self.clock.now(), kept_step)

    # The end of the run

    def drain(self) -> None:
        """Deliver and finish all messages, with no more faults."""
        self.disk.fault = None
        self.disk.capacity_bytes = None
        for link in tuple(self.links):
            self.disconnect(link)
        self.settle()
        self.truth.draining = True
        consumers = [actor for actor in self.actors if isinstance(actor, Consumer)]
        for consumer in consumers:
            consumer.ready_count = 300
        self.actors = [*consumers]
        self.unpause()
        wait_ns = DRAIN_STEP_NS
        while True:
            moved = self.drain_round()
            if not moved and not self.waiting():
                return
            wait_ns = DRAIN_STEP_NS if moved else 2 * wait_ns
            assert wait_ns < 100 * weathers.DAY_NS, "messages wait for no consumer"
            self.clock.advance(wait_ns)

    def unpause(self) -> None:
        """Unpause all topics and channels."""
        now = self.clock.now()
        for name, topic in self.broker.topics.items():
            self.broker.pause_topic(name, False, now)
            for channel in topic.channels:
                self.broker.pause_channel(name, channel, False, now)

    def drain_round(self) -> bool:
        """Run a round without faults; return whether any message was delivered."""
        delivered = self.truth.tally.delivered
        self.tick()
        self.act()
        for link in tuple(self.links):
            link.arrive(link.pending_bytes())
        self.settle()
        for link in tuple(self.links):
            link.read(link.unread_bytes())
        return self.truth.tally.delivered != delivered

    def pages_left(self) -> int:
        """Return the number of in-flight pages that are left although no message is in flight."""
        channels = [c for topic in self.broker.topics.values() for c in topic.channels.values()]
        return sum(len(channel.in_flight._pages) for channel in channels)

    def waiting(self) -> bool:
        """Return whether some channel has an unfinished message."""
        return any(
            channel.depth() or channel.in_flight.count or channel.deferred_count()
            for topic in self.broker.topics.values()
            for channel in topic.channels.values()
        )
