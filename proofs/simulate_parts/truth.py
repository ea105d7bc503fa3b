"""The truth of one simulated run: what was sent, answered and delivered, and what follows from it.

It sees the broker's output at the moment it leaves the broker.

1. A message is *acknowledged* once its OK has left the broker: the client may have read it.
2. A FIN or REQ is *pledged* once a later command of its connection was answered.
3. Anything else may hold or not. But a message that was never sent must never be delivered.

The model consists of sets of message keys (`proofs.bodies`), and an index for each delivered key.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from proofs import bodies
from proofs.checker import Outcome
from sparq.protocol.instant import Instant
from sparq.protocol.layout import INDEX_LIMIT
from sparq.protocol.names import directory_name

STORIES_MAX = 20


@dataclass(slots=True)
class Tally:
    """Counts of one run or of many; from `lost` on, they count violations."""

    seeds: int = 0
    operations: int = 0
    crashes: int = 0
    disk_errors: int = 0
    attempted: int = 0
    acknowledged: int = 0
    delivered: int = 0
    revived: int = 0
    at_risk: int = 0
    lost: int = 0
    ghosts: int = 0
    corrupt: int = 0
    reused: int = 0
    early: int = 0
    disordered: int = 0
    split: int = 0
    returned: int = 0
    refused: int = 0
    hasty: int = 0
    recounted: int = 0
    left: int = 0
    aged: int = 0
    overdue: int = 0
    undrained: int = 0
    stuck: int = 0
    broken: int = 0
    stories: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally; only the first few stories are kept."""
        for counted in fields(Tally):
            name = counted.name
            setattr(self, name, getattr(self, name) + getattr(other, name))
        del self.stories[STORIES_MAX:]

    @property
    def wrong(self) -> dict[str, int]:
        """Return the violations found."""
        names = [counted.name for counted in fields(Tally)]
        wrong = {name: getattr(self, name) for name in names[names.index("lost") : -1]}
        return {name: count for name, count in wrong.items() if count}


@dataclass(slots=True, eq=False)
class Command:
    """A PUB, MPUB or DPUB: the keys of its messages are [first, first + count).

    Attributes:
        due_mono_ns, due_wall_ns: its messages must not be delivered before this time; 0: no delay.
        forgiven: its messages may be delivered or not: its topic was deleted, or a power cut came
            before the sync that the sync policy left for later.
        doubtful: after a refusal it may still be stored, since two disk errors coincided.
    """

    connection: int
    first: int
    count: int
    defer_ns: int = 0
    outcome: Outcome | None = None
    arrived_step: int = 0
    answered_step: int = 0
    due_mono_ns: int = 0
    due_wall_ns: int = 0
    forgiven: bool = False
    doubtful: bool = False

    def arrived(self, now: Instant, step: int) -> None:
        """Note that the broker has received it in full."""
        self.arrived_step = step
        if self.defer_ns:
            self.due_mono_ns = now.mono_ns + self.defer_ns
            self.due_wall_ns = now.wall_ns + self.defer_ns

    def all_keys(self) -> range:
        """Return the keys of its messages."""
        return range(self.first, self.first + self.count)


class Kind(enum.Enum):
    """What a consumer does with a message."""

    FIN = "FIN"
    REQ = "REQ"


@dataclass(slots=True, eq=False)
class Settlement:
    """A FIN or REQ, from its sending on.

    Attributes:
        arrived_step: when the broker received it; -1: not yet.
        failed: whether the broker has answered that it came too late.
        pledged: whether a later command was answered.
        contradicted: how often the message was still delivered before the pledge.
    """

    channel: ChannelTruth
    key: int
    kind: Kind
    delay_ns: int = 0
    arrived_step: int = -1
    due_mono_ns: int = 0
    due_wall_ns: int = 0
    failed: bool = False
    pledged: bool = False
    contradicted: int = 0

    def arrived(self, now: Instant, step: int) -> None:
        """Note that the broker has it; it does not replace an earlier one that holds."""
        self.arrived_step = step
        if self.delay_ns:
            self.due_mono_ns = now.mono_ns + self.delay_ns
            self.due_wall_ns = now.wall_ns + self.delay_ns
        self.channel.out.pop(self.key, None)
        self.channel.settled.setdefault(self.key, self)
        if self.kind is Kind.FIN:
            self.channel.finished.setdefault(self.key, set()).add(self)

    def fail(self) -> None:
        """Note that it came too late: the message is as it was."""
        self.failed = True
        self.channel.finished.get(self.key, set()).discard(self)
        if self.channel.settled.get(self.key) is self:
            del self.channel.settled[self.key]

    def pledge(self) -> None:
        """Note that it holds from now on, and has held since it arrived."""
        if not self.failed and not self.pledged:
            self.pledged = True
            if self.contradicted:
                self.contradict()

    def contradict(self) -> None:
        """Record a delivery that contradicts it."""
        tally = self.channel.topic.truth.tally
        if self.kind is Kind.FIN:
            tally.returned += 1
        else:
            tally.early += 1
        self.channel.topic.truth.tell(
            f"{self.channel.name}: {self.key:x} came in spite of a {self.kind.value}"
        )


@dataclass(slots=True)
class Out:
    """The last delivery of a message in this life."""

    mono_ns: int
    attempts: int
    connection: int


class ChannelTruth:
    """One channel.

    Attributes:
        came: keys ever delivered.
        drained: keys delivered in the final drain, when no more faults occur.
        settled: for each key, the FIN or REQ that holds or may hold.
        finished: for each key, the FINs that have arrived since its last delivery.
        out: keys that are with a consumer.
        attempts: for each key, the attempts of its latest frame in this life.
        ordered: whether it has one consumer, so that first deliveries have one order.
        ttl_ns: maximum age of a delivered message; 0: no limit.
        may_miss: whether messages may be missing at the end.
        skips_unread: whether unread messages may be dropped from it; deferred ones never are.
        most_attempts: maximum number of deliveries of a message; 0: no limit.
        letters: the channel that gets its dead letters; None: it has none.
    """

    def __init__(self, topic: TopicTruth, name: str, *, ordered: bool) -> None:
        self.topic = topic
        self.name = name
        self.came: set[int] = set()
        self.drained: set[int] = set()
        self.settled: dict[int, Settlement] = {}
        self.finished: dict[int, set[Settlement]] = {}
        self.out: dict[int, Out] = {}
        self.attempts: dict[int, int] = {}
        self.ordered = ordered
        self.ttl_ns = self.most_attempts = 0
        self.skips_unread = self.may_miss = False
        self.letters: ChannelTruth | None = None
        self.last_fresh = -1

    def check_age(self, published_ns: int, now: Instant) -> None:
        """Check the age of a message that leaves the broker."""
        age_ns = now.wall_ns - published_ns
        if self.ttl_ns and age_ns > self.ttl_ns:
            self.topic.truth.tally.aged += 1
            self.topic.truth.tell(f"{self.name}: a message came that was {age_ns} ns old")

    def check_delivery(
        self, message: tuple[int, bytes, bytes], connection: int, timeout_ns: int, now: Instant
    ) -> int | None:
        """Check a delivery: (attempts, id, body). Return its key; None: it was never sent."""
        attempts, name, body = message
        key = self.topic.recognise(body, int(name, 16) & INDEX_LIMIT)
        if key is None:
            return None
        command = self.topic.command_of[key]
        tally, tell = self.topic.truth.tally, self.topic.truth.tell
        tally.delivered += 1
        self.came.add(key)
        if 0 < self.most_attempts < attempts:
            tally.overdue += 1
            tell(f"{self.name}: {key:x} came as attempt {attempts}")
        self.finished.pop(key, None)
        if self.topic.truth.draining:
            self.drained.add(key)
        if now.mono_ns < command.due_mono_ns:
            tally.early += 1
            tell(f"{self.name}: {key:x} came {command.due_mono_ns - now.mono_ns} ns early")
        self._check_settled(key, now)
        self._check_out(key, attempts, connection, timeout_ns, now)
        index = self.topic.index_of[key]
        if attempts == 1 and not command.defer_ns:
            if self.ordered and index <= self.last_fresh:
                tally.disordered += 1
                tell(f"{self.name}: {key:x} came first behind a later one")
            self.last_fresh = index
        command.due_mono_ns = command.due_wall_ns = 0
        return key

    def _check_settled(self, key: int, now: Instant) -> None:
        held = self.settled.get(key)
        if held is None:
            return
        if held.kind is Kind.REQ and now.mono_ns >= held.due_mono_ns:
            del self.settled[key]
        elif held.pledged:
            held.contradict()
        else:
            held.contradicted += 1

    def _check_out(
        self, key: int, attempts: int, connection: int, timeout_ns: int, now: Instant
    ) -> None:
        tally, tell = self.topic.truth.tally, self.topic.truth.tell
        before = self.out.get(key)
        if before is not None and now.mono_ns < before.mono_ns:
            tally.hasty += 1
            tell(f"{self.name}: {key:x} came again {before.mono_ns - now.mono_ns} ns too early")
        if attempts <= self.attempts.get(key, 0):
            tally.recounted += 1
            tell(f"{self.name}: {key:x} came as attempt {attempts} after {self.attempts[key]}")
        self.attempts[key] = attempts
        self.out[key] = Out(now.mono_ns + timeout_ns, attempts, connection)

    def connection_lost(self, connection: int) -> None:
        """Note that messages with this connection may be delivered again at once."""
        self.out = {key: out for key, out in self.out.items() if out.connection != connection}

    def reborn(self, died: Instant, now: Instant, kept_step: int) -> None:
        """Start a new life: FINs and REQs hold that were pledged and arrived up to `kept_step`."""
        self.out.clear()
        self.attempts.clear()
        self.last_fresh = -1
        self.settled = {
            key: held
            for key, held in self.settled.items()
            if held.pledged and held.arrived_step <= kept_step
        }
        for held in self.settled.values():
            due = rebased(held.due_mono_ns, held.due_wall_ns, died, now)
            # A checkpoint after a jump of the wall clock stores the due time by the new one.
            held.due_mono_ns = due if held.arrived_step > self.topic.truth.jumped_step else 0

    def missing(self) -> list[int]:
        """Return keys acknowledged, but neither finished nor delivered in the final drain."""
        return [
            key
            for command in self.topic.commands
            if command.outcome is Outcome.OK and not command.forgiven and self._waits_for(command)
            for key in command.all_keys()
            if key not in self.drained and not self.finished.get(key) and not self._is_letter(key)
        ]

    def _is_letter(self, key: int) -> bool:
        """Return whether the message is in the dead-letter topic."""
        return self.letters is not None and key in self.letters.came

    def _waits_for(self, command: Command) -> bool:
        """Return whether all messages of a command must be delivered."""
        return not self.may_miss and not (self.skips_unread and not command.defer_ns)

    def is_split(self, command: Command) -> bool:
        """Return whether only a part of an MPUB was delivered although all of it must be."""
        came = sum(key in self.came for key in command.all_keys())
        return self._waits_for(command) and 0 < came < command.count


class TopicTruth:
    """One topic.

    Attributes:
        command_of: the command that published each key.
        index_of, key_of: the index seen for each key, and the reverse; one each.
        written_step, synced_step: ledger records up to this step are written, or synced.
        safe_step: everything answered up to this step is synced.
    """

    def __init__(self, truth: Truth, name: str) -> None:
        self.truth = truth
        self.name = name
        self.folder = f"/topics/{directory_name(name)}/"
        self.commands: list[Command] = []
        self.command_of: dict[int, Command] = {}
        self.index_of: dict[int, int] = {}
        self.key_of: dict[int, int] = {}
        self.channels: dict[str, ChannelTruth] = {}
        self.written_step = self.synced_step = self.safe_step = 0

    def channel(self, name: str, *, ordered: bool) -> ChannelTruth:
        """Create a channel that gets every message from now on, except those its policies drop."""
        self.channels[name] = ChannelTruth(self, f"{self.name}:{name}", ordered=ordered)
        return self.channels[name]

    def sent(self, command: Command) -> None:
        """Record a command that was sent."""
        self.commands.append(command)
        for key in command.all_keys():
            self.command_of[key] = command
        self.truth.tally.attempted += command.count

    def recognise(self, body: bytes, index: int) -> int | None:
        """Return the key of a body delivered with an index; None: it is not a sent message."""
        author = bodies.read(body)
        tally, tell = self.truth.tally, self.truth.tell
        if author is None:
            tally.corrupt += 1
            tell(f"{self.name}: the body of index {index} is damaged")
            return None
        key = author.key
        if author.run != self.truth.run or key not in self.command_of:
            tally.ghosts += 1
            tell(f"{self.name}: {author} was never sent")
            return None
        seen_index, seen_key = (
            self.index_of.setdefault(key, index),
            self.key_of.setdefault(index, key),
        )
        if seen_index != index or seen_key != key:
            tally.reused += 1
            tell(f"{self.name}: {key:x} has index {index}: {key:x}@{seen_index}, {seen_key:x}")
        return key

    def forget(self) -> None:
        """Note that the topic was deleted: nothing is promised about its messages any more."""
        for command in self.commands:
            command.forgiven = True
        for channel in self.channels.values():
            channel.settled.clear()
            channel.out.clear()
            channel.last_fresh = -1

    def power_lost(self) -> None:
        """Note a power cut: unanswered publishes, and answers since the last sync, are at risk."""
        for command in self.commands:
            if command.outcome is not Outcome.OK or command.answered_step > self.safe_step:
                command.forgiven = True

    def reborn(self, died: Instant, now: Instant, kept_step: int) -> None:
        """Start a new life: wall-clock due times are converted to the new monotonic clock."""
        for command in self.commands:
            if command.due_mono_ns:
                due = command.due_mono_ns, command.due_wall_ns
                command.due_mono_ns = rebased(*due, died, now)
        for channel in self.channels.values():
            channel.reborn(died, now, kept_step)

    def conclude(self) -> None:
        """Check after the final drain for missing, split, refused and disordered messages."""
        tally, tell = self.truth.tally, self.truth.tell
        for channel in self.channels.values():
            missing = channel.missing()
            tally.lost += len(missing)
            if missing:
                tell(f"{channel.name}: lost {[f'{key:x}' for key in missing[:5]]}")
            for command in self.commands:
                if not command.forgiven and channel.is_split(command):
                    tally.split += 1
                    tell(f"{channel.name}: an MPUB from {command.first:x} on came in part")
        for command in self.commands:
            self._conclude(command)
        self._check_order()

    def _conclude(self, command: Command) -> None:
        tally = self.truth.tally
        came = [key for key in command.all_keys() if key in self.index_of]
        if command.outcome is Outcome.OK:
            tally.acknowledged += command.count
            if command.forgiven:
                gone = set(command.all_keys()).difference(
                    *(c.drained for c in self.channels.values())
                )
                tally.at_risk += len(gone)
        elif command.outcome is Outcome.UNKNOWN:
            tally.revived += len(came)
        elif came and not command.doubtful and not command.forgiven:
            tally.refused += len(came)
            self.truth.tell(f"{self.name}: {command.first:x} was refused, and came")

    def _check_order(self) -> None:
        """Check that messages of one connection are in the log in the order of their publishing."""
        last: dict[int, int] = {}
        for command in self.commands:
            for key in command.all_keys():
                index = self.index_of.get(key)
                if index is None:
                    continue
                if index <= last.get(command.connection, -1):
                    self.truth.tally.disordered += 1
                    self.truth.tell(f"{self.name}: {key:x} stands before what was sent before it")
                last[command.connection] = index


def rebased(due_mono_ns: int, due_wall_ns: int, died: Instant, now: Instant) -> int:
    """Return when something is due after a start; 0: it was already due before."""
    if due_mono_ns <= died.mono_ns:
        return 0
    return now.mono_ns + max(0, due_wall_ns - now.wall_ns)


class Truth:
    """The truth of one run.

    Attributes:
        run: the number in each body.
        draining: whether the final drain has begun: no more faults, and every message is delivered.
        jumped_step: when the wall clock was last set while the broker ran.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self.tally = Tally(seeds=1)
        self.topics: dict[str, TopicTruth] = {}
        self.draining = False
        self.jumped_step = 0

    def topic(self, name: str) -> TopicTruth:
        """Create a topic with this name."""
        self.topics[name] = TopicTruth(self, name)
        return self.topics[name]

    def tell(self, story: str) -> None:
        """Record what was found wrong; repeating the run shows it again."""
        if len(self.tally.stories) < STORIES_MAX:
            self.tally.stories.append(f"run {self.run}: {story}")

    def conclude(self) -> None:
        """Run the checks after the final drain."""
        for topic in self.topics.values():
            topic.conclude()

    def note_two_errors(self) -> None:
        """Note two disk errors in one task: what it refuses may be stored all the same."""
        for command in self.pending():
            command.doubtful = True

    def pending(self) -> Iterable[Command]:
        """Return the unanswered commands."""
        return (
            command
            for topic in self.topics.values()
            for command in topic.commands
            if command.outcome is None
        )
