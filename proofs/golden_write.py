"""Writes golden data paths with the current version: `python -m proofs.golden_write <name>`.

The name is the version, with a letter if that version wrote several formats. The output is
tests/golden/<name>/<case>.tar.xz, and <case>.json with the content that every later version must
read from it (see golden_read.py). An existing name is refused: golden data paths never change.

The cases are states of a data path whose nsqd has ended: see the functions.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from proofs.golden_read import STOPPED_WALL_NS, describe
from proofs.layout import batches
from proofs.reopened import Consumer, Reopened, replaced
from proofs.workload import ROOT
from sparq.log import ledger
from sparq.log.disk import RealDisk
from sparq.testing import ManualClock

GOLDEN = ROOT / "tests" / "golden"
OPTIONS = {"node_id": 613, "max_bytes_per_file": 12_000}
LEFT_OUT = ("reserve",)
"""Files that are not packed: the reserve is 16 MiB without content."""
SECOND_MS = 1000


def bodies(word: str, count: int, first: int = 0) -> list[bytes]:
    """Return `count` different bodies of many sizes."""
    return [f"{word} {n} ".encode() * (1 + n * n % 29) for n in range(first, first + count)]


def queued(home: Reopened) -> None:
    """Write several segments, with a channel without deliveries, one with gaps among its finished
    messages and a paused one; a paused topic; and names that are special to file systems."""
    for channel in ("untouched", "holes", "paused"):
        home.create("clicks", channel)
    for first in range(0, 120, 8):
        home.publish("clicks", *bodies("click", 7, first))
        home.publish("clicks", *bodies("single", 1, first))
    consumer = Consumer(home, "clicks", "holes")
    taken = consumer.take(60)
    consumer.finish(taken[::2] + taken[40:])
    consumer.close()
    home.broker.pause_channel("clicks", "paused", True, home.clock.now())
    home.create("still", "c")
    home.publish("still", *bodies("before", 3))
    home.broker.pause_topic("still", True, home.clock.now())
    home.turn()
    home.publish("still", *bodies("after", 4))
    for name in ("..", ".", "UPPER.lower_1-2", "con"):
        home.create(name, "C..c")
        home.publish(name, *bodies(name, 2))
    home.publish("no-channel", *bodies("waits", 5))


def deferred(home: Reopened) -> None:
    """Write deferred messages, by DPUB and by REQ, and waiting ones that were delivered before."""
    home.create("later", "c")
    home.create("later", "d")
    for seconds in (2, 5, 9, 17):
        home.publish("later", *bodies(f"in {seconds}", 1), defer_ms=seconds * SECOND_MS + 500)
    home.publish("later", *bodies("now", 20))
    consumer = Consumer(home, "later", "c")
    taken = consumer.take(20)
    consumer.requeue(taken[:6], 0)
    consumer.finish(taken[16:])
    consumer.requeue(taken[6:9], 7 * SECOND_MS + 500)
    again = consumer.take(6)
    consumer.requeue(again[:2], 0)
    consumer.close()


def checkpointed(home: Reopened) -> None:
    """Write a checkpoint, later ledger entries, a deleted channel and a deleted topic."""
    for channel in ("a", "gone", "b"):
        home.create("t", channel)
    home.create("deleted", "c")
    home.publish("deleted", *bodies("nobody sees this", 3))
    home.publish("t", *bodies("message", 50))
    consumer = Consumer(home, "t", "a")
    taken = consumer.take(40)
    with replaced(ledger, "CHECKPOINT_BYTES", 0):
        consumer.finish(taken[:21])
        home.pass_time(3)
    consumer.finish(taken[25:30])
    consumer.requeue(taken[30:32], 11 * SECOND_MS + 500)
    consumer.close()
    home.broker.delete_channel("t", "gone", home.clock.now())
    home.broker.delete_topic("deleted", home.clock.now())
    home.turn()


def trimmed(home: Reopened) -> None:
    """Write a log whose middle segments are deleted as finished, while an older message waits."""
    home.create("t", "c")
    home.publish("t", *bodies("pins the first segment", 1), defer_ms=12 * SECOND_MS + 500)
    for first in range(0, 160, 10):
        home.publish("t", *bodies("message", 10, first))
    consumer = Consumer(home, "t", "c")
    consumer.finish(consumer.take(140))
    consumer.close()
    home.pass_time(2)
    home.pass_time(2)


CASES: dict[str, Callable[[Reopened], None]] = {
    "queued": queued,
    "deferred": deferred,
    "checkpointed": checkpointed,
    "trimmed": trimmed,
}
KILLED, DAMAGED = "killed", "damaged"
"""`killed` is `deferred` without a clean stop, and with an unfinished write at the end of each log
file and ledger; `damaged` is `queued` with a flipped bit in each segment except the newest."""
BASES = {KILLED: "deferred", DAMAGED: "queued"}
TORN = b"SPQB\x50\x00\x01\x00 an unfinished write"


def write(name: str, case: str, folder: Path) -> None:
    """Write one case: its packed data path and its document."""
    data = folder / case
    clock = ManualClock(STOPPED_WALL_NS)
    home = Reopened(RealDisk(), str(data), clock=clock, **OPTIONS)
    CASES[BASES.get(case, case)](home)
    if case != KILLED:
        home.close()
    if case in BASES:
        harm(case, data)
    target = GOLDEN / name / case
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(f"{target}.tar.xz", "w:xz") as pack:
        pack.add(data, ".", filter=plain)
    document = json.dumps(describe(data), indent=1, sort_keys=True)
    Path(f"{target}.json").write_text(document + "\n", encoding="utf-8")


def harm(case: str, data: Path) -> None:
    """Damage files as a kill (case `killed`) or a disk (case `damaged`) may do."""
    logs = sorted(data.rglob("*.log"))
    if case == KILLED:
        for path in [*logs, *data.rglob("ledger-*")]:
            path.write_bytes(path.read_bytes() + TORN)
        return
    for path in [path for path in logs if path != sorted(path.parent.glob("*.log"))[-1]]:
        stored = list(batches(str(path), path.read_bytes()))[1]
        changed = bytearray(path.read_bytes())
        changed[stored.frames_at + 40] ^= 4
        path.write_bytes(changed)


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a member without times and owners; None leaves it out."""
    if member.name.rpartition("/")[2] in LEFT_OUT:
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all cases and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: python -m proofs.golden_write <name>, e.g. 0.1.0", file=sys.stderr)
        return 2
    (name,) = words
    if (GOLDEN / name).exists():
        print(f"{name} is there: golden data paths are never written again", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="sparq-golden-") as folder:
        for case in (*CASES, *BASES):
            write(name, case, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
