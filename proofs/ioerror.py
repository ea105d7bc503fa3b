"""The N-th system call of nsqd fails with an I/O error, for N = 1, 2, 3 and so on: `make ioerror`.

strace injects errors into the system calls on nsqd's data: writes, syncs, reads, opens, renames,
deletions and truncations. nsqd runs many times on one data path, and kill -9 ends each run. Three
kinds of runs:

- starts: only the N-th call of a kind fails. nsqd starts, or exits and logs the reason;
- loads: every n-th call of a kind fails, with an I/O error or for lack of space, while publishers
  and consumers work. nsqd keeps running, refuses messages that it cannot store, and never syncs a
  file again after a failed sync of it;
  From some moment on, each kind of call that changes files is refused until the kill, as by a
  quota, a read-only disk or a broken one;
- blackouts: every sync fails. nsqd must acknowledge nothing.

At the end nsqd starts without faults, everything is drained, and the checker counts. A message that
was refused during faults may appear after a crash, because its truncation may have failed as well:
that is counted, but is no violation. The control is an nsqd that ignores failed syncs
(`ignored_sync_error`).
"""

import asyncio
import random
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path

from tests.support import strace

from proofs import faults, outcome
from proofs.checker import Verdict
from proofs.faults import Rig, Rule, placed
from proofs.file_systems import Disks
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import data_folder

PROMISES = ("P7", "P8")
LOADED = "proofs.loaded"
STARTS = {
    "openat": 16,
    "pread64": 10,
    "pwrite64": 6,
    "fsync": 5,
    "fdatasync": 3,
    "getdents64": 4,
    "renameat": 1,
    "flock": 1,
    "fallocate": 1,
    "mkdirat": 1,
}
"""For a kind of call with number N: N starts, in which its first, second, ... N-th call fails."""
START_SHARE = 0.16
CUT = ("ftruncate", "EIO", "1+2")
LOADS: tuple[Rule, ...] = (
    Rule((("fdatasync", "EIO", "{first}+4"),), 14),
    Rule((("pwrite64", "EIO", "4{first}+9"),), 20),
    Rule((("fsync", "EIO", "{first}+3"),), 8),
    Rule((("pread64", "EIO", "{reads}+31"),), 10, reads=True),
    Rule((("pread64", "EIO", "{reads}..{bad}"),), 40, reads=True),
    Rule((("pread64", "EIO", "{heads}..{bad}"),), 40, reads=True),
    Rule((("pwritev2", "EIO", "{first}+4"), CUT), 12),
    Rule((("fdatasync,fsync", "EIO", "{first}+2"),), 16),
    Rule((("openat", "EMFILE", "{first}+3"),), 5, in_topic=True),
    Rule((("pwrite64,pwritev2", "EIO", "3{first}+7"), CUT), 16),
    Rule((("unlinkat,renameat,mkdirat", "EIO", "{first}+2"),), 10),
    Rule((("fdatasync", "EIO", "{first}+3"), ("openat", "EIO", "{later}+5")), 16),
    Rule((("openat", "EMFILE", "{later}+3"),), 12),
)
LOADS += (
    Rule((("pwrite64", "ENOSPC", "4{first}+9"),), 16),
    Rule((("pwritev2", "ENOSPC", "{first}+4"),), 10),
    Rule((("openat,mkdirat,renameat", "ENOSPC", "{first}+2"),), 6, in_topic=True),
    Rule((("fallocate", "ENOSPC", "1"), ("pwrite64", "ENOSPC", "3{first}+7")), 16),
    Rule(
        (("ftruncate,renameat", "EDQUOT", "1+"), ("pwrite64,pwritev2", "EDQUOT", "9{first}+")), 30
    ),
)
"""A disk without space, and one whose quota is used up."""
UNTIL_KILL = (
    *(("pwrite64,pwritev2", error) for error in ("EIO", "EROFS", "EDQUOT")),
    *(("ftruncate", "EIO"), ("renameat", "EDQUOT"), ("unlinkat", "EROFS"), ("mkdirat", "EDQUOT")),
    *(("fallocate", "EDQUOT"), ("fdatasync", "EIO"), ("fsync", "EIO")),
    ("pwrite64,pwritev2,ftruncate,renameat,unlinkat,mkdirat,fallocate,fdatasync,fsync", "EROFS"),
)
"""Calls that change files, each refused from some moment on until the kill."""
LOADS += tuple(Rule(((calls, error, "3{first}+"),), 6) for calls, error in UNTIL_KILL)
BAD_READS = 40
"""Number of consecutive failed reads: enough to fail every retry, as bad pages do. They begin with
the reads of the start, which find the channels, or after them."""
DARK = Rule((("fdatasync", "EIO", "1+"),), 12)
DARK_EVERY = 6
LIVES_MAX = 100
SMALL = 100
"""If `--count` is at least this, each load runs at least once."""


def start_rules(before: Counter[str]) -> list[Rule]:
    """One rule per start."""
    return [
        Rule(((call, "EIO", str(before[call] + number)),), 1)
        for call, count in STARTS.items()
        for number in range(1, count + 1)
    ]


def load_rule(rule: Rule, first: int, before: Counter[str]) -> Rule:
    """The rule with its placeholders filled in; `first`, 1 to 9, shifts the first fault."""
    later = before["openat"] + STARTS["openat"] + first
    reads = before["pread64"] + STARTS["pread64"] + first
    heads, bad = before["pread64"] + first, reads + BAD_READS
    return placed(rule, first=first, later=later, reads=reads, heads=heads, bad=bad)


async def lives(rig: Rig, plan: Plan, before: Counter[str]) -> Verdict:
    """Run starts, loads and blackouts until `plan.count` calls failed; then drain and check."""
    chance = random.Random(f"{plan.seed} faults")
    starts = start_rules(before)
    chance.shuffle(starts)
    async with rig.actors:
        for rule in starts[: max(2, round(plan.count * START_SHARE))]:
            await rig.start(rule)
            progress(f"{rig.tally.faults.total()} faults")
        for number, rule in zip(range(LIVES_MAX), cycle(LOADS), strict=False):
            whole = number >= len(LOADS) or plan.count < SMALL
            if whole and rig.tally.faults.total() >= plan.count:
                break
            await rig.load(load_rule(rule, chance.randint(1, 9), before))
            if number % DARK_EVERY == 0:
                await rig.load(DARK, dark=True)
            progress(f"{rig.tally.faults.total()} faults")
        return await rig.end()


async def acknowledged_without_syncs(rig: Rig) -> int:
    """Number of publishes that an nsqd which ignores failed syncs acknowledges in a blackout."""
    async with rig.actors:
        await rig.load(DARK, dark=True)
    return rig.tally.acknowledged_dark


def prove(plan: Plan) -> Outcome:
    """The proof and its control."""
    if needs := strace.missing():
        return skipped(PROMISES, needs)
    with data_folder(plan.keep) as folder:
        before = faults.before_data(folder, *STARTS, module=LOADED)
        rig = faults.rig(folder / "faults", plan.seed, LOADED)
        with rig.server:
            rig.server.kill9()
            verdict = asyncio.run(lives(rig, plan, before))
            rig.note_damage()
        held, control = holds(rig, verdict), ""
        if plan.control:
            dark = run_control(folder / "control", plan.seed)
            control = f"with failed syncs ignored: OK sent for failed syncs {dark:,}"
            held = held and dark > 0
    for death in rig.tally.deaths:
        print(f"\ndeath: {death}")
    return Outcome(PROMISES, figures(rig, verdict), held, control)


def run_control(folder: Path, seed: int) -> int:
    """Run the control; returns the number of publishes acknowledged while every sync fails."""
    unsafe = faults.rig(folder, seed, "ignored_sync_error")
    with unsafe.server:
        unsafe.server.kill9()
        return asyncio.run(acknowledged_without_syncs(unsafe))


def holds(rig: Rig, verdict: Verdict) -> bool:
    """Whether there are no violations. nsqd may lose only messages that it reported as damaged."""
    tally = rig.tally
    wrong = (verdict.ghosts, verdict.corrupt, verdict.split, tally.acknowledged_dark)
    return (
        verdict.delivered > 0
        and verdict.lost <= tally.damaged
        and not any(wrong)
        and not tally.deaths
        and not tally.synced_again
    )


def figures(rig: Rig, verdict: Verdict) -> str:
    """The line of figures."""
    tally = rig.tally
    calls = ", ".join(f"{call} {count}" for call, count in tally.faults.most_common())
    return (
        f"fault points {tally.faults.total()} ({calls}) · lives {rig.history.kills} · "
        f"server deaths {len(tally.deaths)} · starts refused with a reason {tally.refused_starts} "
        f"· OK sent while every sync failed: {tally.acknowledged_dark:,} · "
        f"files synced again after a failed sync: {len(tally.synced_again)} · "
        f"acknowledged {verdict.acknowledged:,} · acknowledged lost {verdict.lost:,} "
        f"(reported as damaged {tally.damaged:,}) · split MPUBs {verdict.split:,} · "
        f"ghosts {verdict.ghosts:,} · corrupt {verdict.corrupt:,} · "
        f"refused, but present after a crash {verdict.refused_yet_delivered:,} · "
        f"FINs undone by the kills {verdict.returned:,}"
    )


if __name__ == "__main__":
    sys.exit(outcome.run("ioerror", prove, count=320, of="faults", disks=Disks.GIVEN))
