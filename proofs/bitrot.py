"""Damages files of a data path, with nsqd stopped or running: `make bitrot`.

Each damage is made on a fresh copy. First a bit is flipped in every byte of a small segment, one
byte at a time. Then single bits are flipped anywhere in the data path, half of them in its small
files: ledgers, checkpoint, catalog. Then come truncations, zeroed and misplaced blocks, swapped,
copied and foreign files. A broker in this process opens each copy and drains it. The delivered
messages are compared, index by index, with the published ones:

1. Every delivered body was published, under that index.
2. Missing messages belong to batches with a damaged byte. Damage to ledgers loses no message.
3. Messages that are missing or delivered again are reported, and counted where possible.
4. The topic still works: it stores and delivers a new message, under an index never used before.

Every second bit flip in a segment happens under a running broker. The control accepts every payload
without checking its checksum: it must deliver damaged bodies.
"""

from __future__ import annotations

import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from proofs import damages, original, outcome
from proofs.damages import Damage
from proofs.original import CHANNELS, OPTIONS, PARTLY, PATH, SMALL, TOPIC, Original, topic_of
from proofs.outcome import Outcome, Plan, progress
from proofs.reopened import Consumer, Reopened, replaced
from sparq.broker.catalog import CatalogError
from sparq.protocol import batch
from sparq.testing import MemoryDisk

PROMISES = ("P5", "P6")
WHOLE_SEGMENT_FROM = 1_000
"""From this number of flips, every byte of the small segment is damaged; below, only some."""
SHOWN_MAX = 20
CONTROL_FLIPS = 40
AFTERWARDS = b"published after the damage"
WRONG = ("corrupt", "outside", "unreported", "reused", "stuck")


@dataclass(slots=True)
class Tally:
    """Results of all cases.

    Attributes:
        cases: number of damages, by kind.
        lost: missing messages from damaged batches.
        refused: refused starts, each with its reason.
        wrong: number of violations, by kind; `shown` describes them.
    """

    cases: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    refused: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)

    def note(self, kind: str, count: int, damage: Damage, said: str) -> None:
        """Record `count` violations of this kind, if there are any."""
        if count:
            self.wrong[kind] += count
            self.shown.append(f"{kind} {count}: {damage}; said: {said or 'nothing'}")


class Case:
    """One damaged copy: opens it, drains it and compares its messages."""

    def __init__(self, sound: Original, damage: Damage, tally: Tally, *, running: bool) -> None:
        self.sound = sound
        self.damage = damage
        self.tally = tally
        self.running = running

    def run(self) -> None:
        """Open the copy and compare its messages; with `running`, damage it after it is open."""
        self.tally.cases[self.damage.kind] += 1
        disk = original.disk_with(self.sound.files if self.running else self.damage.files)
        try:
            home = Reopened(disk, PATH, clock=self.sound.clock(), **OPTIONS)
        except CatalogError as error:
            # Refused with a reason, and the data are unchanged: an operator can repair them.
            self.tally.refused += 1
            assert "sparq.json" in str(error)
            return
        with home:
            if self.running:
                disk.data(self.damage.path)[:] = self.damage.files[self.damage.path]
            topics = {topic_of(path) for path in self.damage.files} - {""}
            for topic, channel in CHANNELS:
                if topic in topics:
                    self.compare(home, topic, channel)
            for topic in topics:
                self.goes_on(home, topic)

    def compare(self, home: Reopened, topic: str, channel: str) -> None:
        """Check that the channel delivered everything that it must, and nothing else."""
        bodies = self.sound.bodies[topic]
        done = self.sound.finished if channel == PARTLY else set()
        came = home.drain(topic, channel)
        found = {one.index for one in came}
        missing = bodies.keys() - done - found
        harmed = self.harmed(topic)
        lost = missing & harmed
        said = home.said()
        tell = self.tally.note
        corrupt = sum(bodies.get(one.index) != one.body for one in came)
        tell("corrupt", corrupt, self.damage, said)
        tell("outside", len(missing - harmed), self.damage, f"{channel}: {said}")
        again = found & done or len(came) > len(found)
        told = said and (not lost or "lost" in said or "unfinished write" in said)
        tell("unreported", int(bool(lost or again) and not told), self.damage, said)
        self.tally.lost += len(lost) if channel != PARTLY else 0

    def harmed(self, topic: str) -> set[int]:
        """Return the indexes of the messages that this damage may lose."""
        hurt = self.damage
        return {
            index
            for stored in self.sound.batches
            if stored.path == hurt.path and topic_of(stored.path) == topic
            if hurt.all_of_it or stored.touches(hurt.start, hurt.end)
            for index in stored.indexes
        }

    def goes_on(self, home: Reopened, topic: str) -> None:
        """Check that the topic still accepts and delivers messages."""
        _, channel = next(pair for pair in CHANNELS if pair[0] == topic)
        home.publish(topic, AFTERWARDS)
        came = home.drain(topic, channel)
        is_whole = [one.body for one in came] == [AFTERWARDS]
        reused = any(one.index <= max(self.sound.bodies[topic]) for one in came)
        self.tally.note("stuck", int(not is_whole), self.damage, home.said())
        self.tally.note("stuck", len(home.errors), self.damage, "; ".join(home.errors[:1]))
        self.tally.note("reused", int(reused), self.damage, home.said())


def each_byte(sound: Original, count: int) -> Iterator[Damage]:
    """Flip a bit in every byte of the small segment, or in evenly spaced bytes of it."""
    files = {path: data for path, data in sound.files.items() if topic_of(path) != TOPIC}
    (path,) = damages.segments(files)
    step = max(1, WHOLE_SEGMENT_FROM // max(1, count))
    for offset in range(0, len(files[path]), step):
        yield damages.flip(files, path, offset, offset % 8)


def flips(sound: Original, count: int, chance: random.Random) -> Iterator[Damage]:
    """Flip random bits, half of them in small files."""
    for number in range(count):
        anywhere = number % 4 < 2
        choose = damages.flip_anywhere if anywhere else damages.flip_small
        yield choose(sound.files, chance)


def larger(sound: Original, count: int, chance: random.Random) -> Iterator[Damage]:
    """Make larger damages, of all kinds in turn, in the topic that has several segments."""
    files = {path: data for path, data in sound.files.items() if topic_of(path) != SMALL}
    kinds: tuple[Callable[[], Damage], ...] = (
        lambda: damages.truncate(files, chance),
        lambda: damages.zero_block(files, chance),
        lambda: damages.noise_block(files, chance),
        lambda: damages.misplaced_block(files, chance),
        lambda: damages.truncate_head(files, chance),
        lambda: damages.swap(files, chance),
        lambda: damages.stray(files, sound.foreign, chance),
        lambda: damages.replaced(files, sound.foreign, chance),
        lambda: damages.copied(files, chance),
        lambda: damages.wrong_index(files, chance),
    )
    for number in range(count):
        yield kinds[number % len(kinds)]()


def damage_all(plan: Plan, sound: Original) -> Tally:
    """Try all damages, one after another."""
    chance = random.Random(f"{plan.seed} damages")
    tally = Tally()
    sources = (
        each_byte(sound, plan.count),
        flips(sound, plan.count, chance),
        larger(sound, plan.count // 2, chance),
    )
    for source in sources:
        for number, damage in enumerate(source):
            can_run = damage.kind == "flip" and damage.path.endswith(".log")
            Case(sound, damage, tally, running=can_run and number % 2 == 1).run()
            if number % 100 == 0:
                progress(f"{tally.cases.total():,} damages")
    return tally


def corrupt_bodies_delivered(sound: Original, chance: random.Random) -> int:
    """The control: return how many damaged bodies come if no payload checksum is checked."""
    corrupt = 0
    stored = [one for one in sound.batches if topic_of(one.path) == SMALL]
    with replaced(batch, "check_payload", lambda *_: True):
        for number in range(CONTROL_FLIPS):
            one = stored[number % len(stored)]
            offset = chance.randrange(one.frames_at, one.offset + one.size)
            damage = damages.flip(sound.files_of(SMALL), one.path, offset, chance.randrange(8))
            disk = original.disk_with({**sound.files, **damage.files})
            corrupt += came_wrong(sound, disk)
    return corrupt


def came_wrong(sound: Original, disk: MemoryDisk) -> int:
    """Return how many messages of the small topic come that were never published."""
    with Reopened(disk, PATH, clock=sound.clock(), **OPTIONS) as home:
        try:
            came = Consumer(home, SMALL, CHANNELS[-1][1]).take(100)
        except struct.error:
            return 1
    published = set(sound.bodies[SMALL].values())
    return sum(one.body not in published for one in came)


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    sound = original.make(plan.seed)
    tally = damage_all(plan, sound)
    for line in tally.shown[:SHOWN_MAX]:
        print(f"  {line}")
    flipped = tally.cases.pop("flip")
    others = " · ".join(f"{kind} {count:,}" for kind, count in sorted(tally.cases.items()))
    figures = (
        f"flips {flipped:,} · {others} · messages lost in damaged batches {tally.lost:,} · "
        f"corrupt bodies delivered {tally.wrong['corrupt']:,} · "
        f"messages lost outside the damaged batch {tally.wrong['outside']:,} · "
        f"unreported damage {tally.wrong['unreported']:,} · "
        f"indexes reused {tally.wrong['reused']:,} · "
        f"topics that stopped working {tally.wrong['stuck']:,} · "
        f"starts refused for a damaged sparq.json {tally.refused:,}"
    )
    held, control = not tally.wrong.total() and tally.lost > 0, ""
    if plan.control:
        corrupt = corrupt_bodies_delivered(sound, random.Random(f"{plan.seed} control"))
        control = f"without payload checksums: corrupt bodies delivered {corrupt:,}"
        held = held and corrupt > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("bitrot", prove, count=1_000, of="random flips"))
