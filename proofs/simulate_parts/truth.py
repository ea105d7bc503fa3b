"""The truth of one simulated run: what was sent, what was answered, what was handed out, and what
follows from it. It sees the bytes that leave the broker, the moment that they leave.

1. What is *acknowledged* is what an OK was handed out for: the client may have read it.
2. A FIN or REQ is *pledged* once a later command of its connection was answered.
3. Of what was neither, everything is allowed, but never a message that nobody sent.

The model is sets of message keys (`proofs.bodies`), and an index for each key that was seen.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from proofs import bodies
from proofs.history import Outcome
from sparq.protocol.instant import Instant
from sparq.protocol.layout import INDEX_LIMIT
from sparq.protocol.names import directory_name

STORIES_MAX = 20


@dataclass(slots=True)
class Tally:
    """Counts of one run or of many; from `lost` on, what must not be."""

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
        """Sum up; of the stories the first few are kept."""
        for counted in fields(Tally):
            name = counted.name
            setattr(self, name, getattr(self, name) + getattr(other, name))
        del self.stories[STORIES_MAX:]

    @property
    def wrong(self) -> dict[str, int]:
        """What was found that must not be."""
        names = [counted.name for counted in fields(Tally)]
        wrong = {name: getattr(self, name) for name in names[names.index("lost") : -1]}
        return {name: count for name, count in wrong.items() if count}


@dataclass(slots=True, eq=False)
class Command:
    """A PUB, MPUB or DPUB: its messages' keys are [first, first + count).

    Attributes:
        due_mono_ns, due_wall_ns: before which it is not to be handed out; 0: at once.
        forgiven: it may come or not: its topic was deleted, or a power cut has cost what the sync
            policy puts at risk.
        doubtful: if it was refused, it may be stored all the same: two disk errors met.
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
        """The broker has it in full."""
        self.arrived_step = step
        if self.defer_ns:
            self.due_mono_ns = now.mono_ns + self.defer_ns
            self.due_wall_ns = now.wall_ns + self.defer_ns

    def all_keys(self) -> range:
        """Of its messages."""
        return range(self.first, self.first + self.count)


class Kind(enum.Enum):
    """What a consumer does with a message."""

    FIN = "FIN"
    REQ = "REQ"


@dataclass(slots=True, eq=False)
class Settlement:
    """A FIN or REQ on its way and afterwards.

    Attributes:
        arrived_step: when the broker had it; -1: it has not.
        failed: the broker has said that it was too late.
        pledged: a later command was answered.
        contradicted: how often the message was handed out all the same, before the pledge.
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
        """The broker has it; an earlier one of this message that holds goes before."""
        self.arrived_step = step
        if self.delay_ns:
            self.due_mono_ns = now.mono_ns + self.delay_ns
            self.due_wall_ns = now.wall_ns + self.delay_ns
        self.channel.out.pop(self.key, None)
        self.channel.settled.setdefault(self.key, self)
        if self.kind is Kind.FIN:
            self.channel.finished.setdefault(self.key, set()).add(self)

    def fail(self) -> None:
        """It was too late: the message is as it was."""
        self.failed = True
        self.channel.finished.get(self.key, set()).discard(self)
        if self.channel.settled.get(self.key) is self:
            del self.channel.settled[self.key]

    def pledge(self) -> None:
        """It holds from now on, and has since it arrived."""
        if not self.failed and not self.pledged:
            self.pledged = True
            if self.contradicted:
                self.contradict()

    def contradict(self) -> None:
        """The message was handed out though it must not be."""
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
    """The last time a message was handed out in this life."""

    mono_ns: int
    attempts: int
    connection: int


class ChannelTruth:
    """One channel.

    Attributes:
        came: keys that were ever handed out.
        drained: keys that were handed out at the end, when nothing went wrong any more.
        settled: the FIN or REQ that holds for a key, or may.
        finished: the FINs of a key that have arrived since it was handed out last.
        out: keys that are with a consumer.
        attempts: how often each was handed out in this life, as its frame said.
        ordered: whether it has one consumer, so that first deliveries have one order.
        ttl_ns: how old a message may be that is handed out; 0: as old as it is.
        may_miss: whether anything may be missing at the end.
        skips_unread: whether what is unread may be taken from it, which is never what is deferred.
        most_attempts: how often a message is handed out; 0: any number.
        letters: where it is after that; None: it has no such place.
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

    def grown(self, published_ns: int, now: Instant) -> None:
        """A message leaves the broker that was published at this time."""
        age_ns = now.wall_ns - published_ns
        if self.ttl_ns and age_ns > self.ttl_ns:
            self.topic.truth.tally.aged += 1
            self.topic.truth.tell(f"{self.name}: a message came that was {age_ns} ns old")

    def handed(
        self, message: tuple[int, bytes, bytes], connection: int, timeout_ns: int, now: Instant
    ) -> int | None:
        """A message leaves the broker: (attempts, id, body). Returns its key, None: no message."""
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
        """What was with it may come again at once."""
        self.out = {key: out for key, out in self.out.items() if out.connection != connection}

    def reborn(self, died: Instant, now: Instant, kept_step: int) -> None:
        """The broker starts: of FINs and REQs those hold that were pledged, up to a step."""
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
            # A checkpoint behind a jump of the wall clock tells the due time by the new one.
            held.due_mono_ns = due if held.arrived_step > self.topic.truth.jumped_step else 0

    def missing(self) -> list[int]:
        """Acknowledged, not finished, and not handed out at the end."""
        return [
            key
            for command in self.topic.commands
            if command.outcome is Outcome.OK and not command.forgiven and self._waits_for(command)
            for key in command.all_keys()
            if key not in self.drained and not self.finished.get(key) and not self._is_letter(key)
        ]

    def _is_letter(self, key: int) -> bool:
        """Whether it came too often, and is where such messages are."""
        return self.letters is not None and key in self.letters.came

    def _waits_for(self, command: Command) -> bool:
        """Whether what a command has published must have come."""
        return not self.may_miss and not (self.skips_unread and not command.defer_ns)

    def is_split(self, command: Command) -> bool:
        """Whether some but not all of an MPUB ever came, where all of it must."""
        came = sum(key in self.came for key in command.all_keys())
        return self._waits_for(command) and 0 < came < command.count


class TopicTruth:
    """One topic.

    Attributes:
        command_of: the command that brought a key.
        index_of, key_of: which index a key was seen with; one each.
        written_step, synced_step: all that its ledger was told before is written, or synced.
        safe_step: whatever was answered before is synced.
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
        """A channel that gets everything from now on, but for what its policies take from it."""
        self.channels[name] = ChannelTruth(self, f"{self.name}:{name}", ordered=ordered)
        return self.channels[name]

    def sent(self, command: Command) -> None:
        """A command is on its way."""
        self.commands.append(command)
        for key in command.all_keys():
            self.command_of[key] = command
        self.truth.tally.attempted += command.count

    def recognise(self, body: bytes, index: int) -> int | None:
        """The key of a body that was handed out under an index; None: it is nobody's."""
        author = bodies.read(body)
        tally, tell = self.truth.tally, self.truth.tell
        if author is None:
            tally.corrupt += 1
            tell(f"{self.name}: the body of index {index} is spoilt")
            return None
        key = author.key
        if author.run != self.truth.run or key not in self.command_of:
            tally.ghosts += 1
            tell(f"{self.name}: nobody sent {author}")
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
        """It was deleted: nothing is promised of what it held."""
        for command in self.commands:
            command.forgiven = True
        for channel in self.channels.values():
            channel.settled.clear()
            channel.out.clear()
            channel.last_fresh = -1

    def power_lost(self) -> None:
        """What was answered since the last sync is at risk, and so is what was not answered."""
        for command in self.commands:
            if command.outcome is not Outcome.OK or command.answered_step > self.safe_step:
                command.forgiven = True

    def reborn(self, died: Instant, now: Instant, kept_step: int) -> None:
        """The broker starts: due times of the wall clock begin to run on the other one."""
        for command in self.commands:
            if command.due_mono_ns:
                due = command.due_mono_ns, command.due_wall_ns
                command.due_mono_ns = rebased(*due, died, now)
        for channel in self.channels.values():
            channel.reborn(died, now, kept_step)

    def conclude(self) -> None:
        """Everything that there is was handed out: what is missing, split, refused or misplaced?"""
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
        """What one connection published stands in the log in that order."""
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
    """When something is due after a start; 0: it was due before."""
    if due_mono_ns <= died.mono_ns:
        return 0
    return now.mono_ns + max(0, due_wall_ns - now.wall_ns)


class Truth:
    """All of one run.

    Attributes:
        run: the number that stands in each body.
        draining: nothing goes wrong any more, and everything is to be handed out.
        jumped_step: when the wall clock was set last while the broker ran.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self.tally = Tally(seeds=1)
        self.topics: dict[str, TopicTruth] = {}
        self.draining = False
        self.jumped_step = 0

    def topic(self, name: str) -> TopicTruth:
        """A topic of this name."""
        self.topics[name] = TopicTruth(self, name)
        return self.topics[name]

    def tell(self, story: str) -> None:
        """What was found wrong, for whoever repeats the run."""
        if len(self.tally.stories) < STORIES_MAX:
            self.tally.stories.append(f"run {self.run}: {story}")

    def conclude(self) -> None:
        """Everything that there is was handed out: what came of it?"""
        for topic in self.topics.values():
            topic.conclude()

    def doubt(self) -> None:
        """Two disk errors met in one work: what is refused for it may be stored all the same."""
        for command in self.pending():
            command.doubtful = True

    def pending(self) -> Iterable[Command]:
        """The commands that are not answered."""
        return (
            command
            for topic in self.topics.values()
            for command in topic.commands
            if command.outcome is None
        )
