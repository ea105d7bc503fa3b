"""One simulated run: a broker on a memory disk, its threads, its clients, and the faults.

The broker is driven as nsqd drives it (`nsqd/server.py`, `nsqd/disk_threads.py`): a turn after each
group of events; disk tasks on one thread for commits, two for reads and one for housekeeping; the
event loop takes over results in any order between threads. Here a thread is a queue, and whether it
makes progress is random.

A life of the broker ends as a clean stop, a kill (written data stay) or a power cut (of unsynced
data, any sectors may stay), between any two steps or in the middle of any disk operation.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from proofs.simulate_parts import limited
from proofs.simulate_parts import weather as weathers
from proofs.simulate_parts.actors import Consumer, Publisher
from proofs.simulate_parts.drain_truth import DrainTruth
from proofs.simulate_parts.link import Link
from proofs.simulate_parts.truth import Tally, TopicTruth, Truth
from sparq.broker.broker import Broker
from sparq.broker.publishing import Trouble
from sparq.broker.turn import TopicTask
from sparq.log.disk import DiskError
from sparq.log.task import TaskKind
from sparq.options.units import MILLISECOND
from sparq.protocol.errors import RemoteError
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut

if TYPE_CHECKING:
    from proofs.simulate_parts.weather import Weather

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
        self.actors += limited.consumers_with_policies(self, lasting)
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
            self.broker.configure_policies(limited.policies(LASTING, self.weather))
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
                self.broker.finish(topic_task, self.clock.now())
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
            self.broker.finish(thread.ran.popleft(), self.clock.now())
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
            if not any(moved) and not self.broker.busy:
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
            closed = self.broker.close()
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
