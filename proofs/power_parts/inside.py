"""Inside the namespace: run episodes of cuts, and compare each cut with what was acknowledged.

The outcome is written as JSON to the named file; problems are printed, one per line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from tests.broker.harness import Message

from proofs import bodies
from proofs.checker import History, Verdict, check, lost_commands
from proofs.file_systems import make, run
from proofs.outcome import progress
from proofs.power_parts import image
from proofs.power_parts.episode import CHANNELS, Cut, Episode
from proofs.reopened import Reopened
from proofs.workload import NSQD
from sparq.broker.catalog import CatalogError
from sparq.log.disk import RealDisk, RealFile
from sparq.testing import ManualClock

NO_SYNC = "no_sync"
SHARED_SYNCS = "proofs.shared_syncs"
CUTS_OF_EPISODE = 15
RELAXED_EVERY = 2500
RELAXED_SHARE = 10
"""Number of cuts with `--sync-every=1` for each cut with `--sync-every=2500`."""
CONTROL_CUTS = 5
TMPFS_BYTES = "6g"
AFTER_SECONDS = 1.0
"""After this time, messages requeued with a delay are due."""
SHOWN_MAX = 10
AFTERWARDS = b"published after the power was back"


@dataclass(slots=True)
class Sums:
    """Totals over several cuts.

    Attributes:
        lost: acknowledged messages that are missing, over all cuts.
        lost_most: the most messages lost by one channel in one cut.
        wrong: cuts with any problem other than loss.
        reused: indexes used twice.
        finished: FINs old enough to be on the disk; `returned`: of these, messages redelivered.
    """

    cuts: int = 0
    acknowledged: int = 0
    lost: int = 0
    lost_most: int = 0
    wrong: int = 0
    reused: int = 0
    split: int = 0
    corrupt: int = 0
    ghosts: int = 0
    finished: int = 0
    returned: int = 0
    revived: int = 0

    def add(self, verdict: Verdict) -> None:
        """Add the verdict on one channel of a cut."""
        self.lost += verdict.lost
        self.lost_most = max(self.lost_most, verdict.lost)
        self.split += verdict.split
        self.corrupt += verdict.corrupt
        self.ghosts += verdict.ghosts
        self.returned += verdict.returned
        self.revived += verdict.revived
        self.wrong += not replace(verdict, lost=0, delivered=1).holds


class OpenFile(RealFile):
    """A file that knows whether it is closed."""

    closed = False

    def close(self) -> None:
        """Close the file, if it is still open."""
        if not self.closed:
            self.closed = True
            super().close()


class CountingDisk(RealDisk):
    """A disk that knows which files were opened: none may be open when it is unmounted."""

    def __init__(self) -> None:
        self.opened: list[OpenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.opened:
            file.close()

    def _open(self, operation: str, path: str, flags: int) -> RealFile:
        plain = super()._open(operation, path, flags)
        file = OpenFile(plain.fd, plain.path)
        self.opened.append(file)
        return file


def check_cut(cut: Cut, folder: Path, kind: str, sums: Sums) -> None:
    """Open the data path that a cut has left, drain it, and compare."""
    at = folder / "after"
    sums.cuts += 1
    with image.mounted(cut.image, at, kind):
        clock = ManualClock(time.time_ns())
        try:
            with (
                CountingDisk() as disk,
                Reopened(disk, str(at / "data"), clock=clock, sync_every=RELAXED_EVERY) as home,
            ):
                home.pass_time(AFTER_SECONDS)
                for topic, history in cut.histories.items():
                    check_topic(home, cut, topic, history, sums)
        except CatalogError:
            # A refused start delivers nothing: everything acknowledged is lost.
            for history in cut.histories.values():
                compare(history, sums)
    cut.image.unlink()


def check_topic(home: Reopened, cut: Cut, topic: str, history: History, sums: Sums) -> None:
    """Drain the topic's channels, publish to it once more, and count."""
    highest = cut.highest_ids[topic]
    for channel in CHANNELS[topic]:
        noted = history.channels[channel]
        noted.before_cut = len(noted.events) if cut.may_take else 0
        sums.finished += sum(event >> 62 for event in noted.events)
        for one in home.drain(topic, channel):
            highest = max(highest, int(one.id, 16))
            note(history, channel, one)
        noted.in_flight_at_kills += cut.young[f"{topic}/{channel}"]
    home.publish(topic, AFTERWARDS)
    (last,) = home.drain(topic, CHANNELS[topic][0])
    sums.reused += int(last.id, 16) <= highest or last.body != AFTERWARDS
    compare(history, sums)


def compare(history: History, sums: Sums) -> None:
    """Compare the delivered messages with the acknowledged ones."""
    verdicts = check(history)
    for verdict in verdicts.values():
        sums.add(verdict)
    sums.acknowledged += next(iter(verdicts.values())).acknowledged


def note(history: History, channel: str, one: Message) -> None:
    """Record a delivery after the cut in the history."""
    author, noted = bodies.read(one.body), history.channels[channel]
    if author is None:
        noted.corrupt += 1
    elif author.run != history.run:
        noted.foreign += 1
    else:
        noted.delivered(author.key)


def cut_power(
    given: argparse.Namespace, folder: Path, count: int, sync_every: int, *modules: str
) -> Sums:
    """Make `count` cuts, in episodes that alternate between these modules, and check them."""
    sums = Sums()
    for module in itertools.cycle(modules):
        if sums.cuts >= count:
            break
        episode = Episode(given.seed + sums.cuts, folder, module, sync_every, given.kind)
        for cut in episode.cuts(min(CUTS_OF_EPISODE, count - sums.cuts)):
            lost, wrong = sums.lost, sums.wrong
            check_cut(cut, folder, given.kind, sums)
            if module != NO_SYNC and (sums.wrong > wrong or (sync_every == 1 and sums.lost > lost)):
                show(cut)
        progress(f"{sums.cuts} cuts with --sync-every={sync_every}, lost {sums.lost:,}")
    return sums


def show(cut: Cut) -> None:
    """Print what was wrong with a cut."""
    for topic, history in cut.histories.items():
        for channel, verdict in check(history).items():
            print(f"  {topic}/{channel}: {verdict.line()}")
        for line in list(lost_commands(history))[:SHOWN_MAX]:
            print(f"    lost on {line}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--kind", default="ext4")
    given = parser.parse_args(arguments)
    answer = given.folder / "outcome.json"
    folder: Path = given.folder / "disks"
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},mode=0700", "tmpfs", folder)
        make(folder / "empty", given.kind, image.SIZES_MIB[given.kind])
        with image.mounted(folder / "empty", folder / "mount", given.kind):
            pass
    except OSError as error:
        answer.write_text(json.dumps({"skipped": f"needs loop mounts ({error})"}))
        return 0
    strict = cut_power(given, folder, given.count, 1, NSQD, SHARED_SYNCS)
    relaxed_count = max(2, given.count // RELAXED_SHARE)
    found = {
        "strict": asdict(strict),
        "relaxed": asdict(cut_power(given, folder, relaxed_count, RELAXED_EVERY, NSQD)),
    }
    if given.control:
        some = min(CONTROL_CUTS, given.count)
        found["control"] = asdict(cut_power(given, folder, some, 1, NO_SYNC))
    answer.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
