"""Thousands of simulated runs of the broker, its log and its protocol: crashes, power cuts, errors.

The real `broker`, `log` and `protocol` run in one thread on a memory disk, with manually set clocks
and connections that break, stall and split bytes anywhere. Each run is drawn entirely from one
seed, so `make simulate SEED=<its number> N=1 ARGS=--no-control` repeats it. Every tenth run has a
second part on a full disk (`simulate_parts/full_disk.py`).

The control repeats the simulation with one guard of sparq switched off at a time
(`simulate_parts/guards.py`): the simulation must detect each missing guard.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from proofs.outcome import Outcome, Plan, progress, run
from proofs.simulate_parts.full_disk import FullDisk
from proofs.simulate_parts.guards import GUARDS, Guard
from proofs.simulate_parts.truth import Tally
from proofs.simulate_parts.world import World

PROMISES = tuple(f"P{number}" for number in (*range(1, 12), 13, 17, 18, 19))
CONTROL_SEEDS_MAX = 100
"""Maximum number of runs without a guard until one of them must detect that it is missing."""
FULL_DISK_EVERY = 10
POOL_MIN = 24
"""Below this number of runs, starting processes for them does not pay."""


def simulate(seed: int) -> Tally:
    """Do one run, and count what goes wrong in it."""
    world = World(seed)
    try:
        tally = world.run()
        if not seed % FULL_DISK_EVERY:
            tally.add(FullDisk(seed).run())
        return tally
    except Exception:
        tally = world.truth.tally
        tally.broken = 1
        tally.stories.append(f"run {seed}: {traceback.format_exc(limit=-3)}")
        return tally


def without(name: str, seed: int) -> tuple[str, int, int]:
    """Return (name of the guard, runs, findings), after runs without it until it is missed."""
    guard = guard_of(name)
    step = FULL_DISK_EVERY if guard.on_full_disk else 1
    first = -(-seed // step) * step
    with guard.off():
        for number in range(CONTROL_SEEDS_MAX):
            found = getattr(simulate(first + number * step), guard.finds)
            if found:
                return name, number + 1, found
    return name, CONTROL_SEEDS_MAX, 0


def guard_of(name: str) -> Guard:
    """Return the guard with this name."""
    return next(guard for guard in GUARDS if guard.name == name)


def all_runs(plan: Plan, pool: ProcessPoolExecutor | None) -> Iterator[Tally]:
    """Yield the tallies of all seeds, in order."""
    seeds = range(plan.seed, plan.seed + plan.count)
    yield from map(simulate, seeds) if pool is None else pool.map(simulate, seeds, chunksize=4)


def all_controls(plan: Plan, pool: ProcessPoolExecutor | None) -> Iterable[tuple[str, int, int]]:
    """Return what was found without each guard."""
    arguments = [guard.name for guard in GUARDS], repeat(plan.seed)
    return map(without, *arguments) if pool is None else pool.map(without, *arguments)


def prove(plan: Plan) -> Outcome:
    """Simulate as many runs as planned, then the runs without guards."""
    if plan.count < POOL_MIN:
        return prove_with(plan, None)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return prove_with(plan, pool)


def prove_with(plan: Plan, pool: ProcessPoolExecutor | None) -> Outcome:
    """Run the proof in the processes of a pool, or in this process."""
    total = Tally()
    for tally in all_runs(plan, pool):
        total.add(tally)
        progress(f"seed {total.seeds:,} of {plan.count:,}")
        if tally.wrong:
            again = f"make simulate SEED={plan.seed + total.seeds - 1} N=1 ARGS=--no-control"
            print("\n".join([f"\r{tally.wrong}, repeat with: {again}", *tally.stories[:5]]))
    held, control = not total.wrong, ""
    if plan.control:
        found = list(all_controls(plan, pool))
        held &= all(count for _, _, count in found)
        control = "without " + " · without ".join(
            f"{name}: {guard_of(name).finds} {count:,} in run {runs}"
            if count
            else f"{name}: NOTHING in {runs} runs"
            for name, runs, count in found
        )
    return Outcome(PROMISES, line(total), held, control=control)


def line(total: Tally) -> str:
    """Return the line of figures."""
    return (
        f"seeds {total.seeds:,} · operations {total.operations:,} · crashes {total.crashes:,} · "
        f"disk errors {total.disk_errors:,} · attempted {total.attempted:,} · "
        f"acknowledged {total.acknowledged:,} · delivered {total.delivered:,} · "
        f"lost {total.lost:,} · ghosts {total.ghosts:,} · corrupt {total.corrupt:,} · "
        f"indexes reused {total.reused:,} · early deferred {total.early:,} · "
        f"out of order {total.disordered:,} · split MPUBs {total.split:,} · "
        f"returned after an answered FIN {total.returned:,} · "
        f"refused yet stored {total.refused:,} · redelivered before their time {total.hasty:,} · "
        f"miscounted attempts {total.recounted:,} · "
        f"state left in memory {total.left:,} · "
        f"older than their channel allows {total.aged:,} · "
        f"delivered more often than it allows {total.overdue:,} · "
        f"accepted while draining, and lost drains {total.undrained:,} · "
        f"topics closed after a full disk {total.stuck:,} · broken runs {total.broken:,} · "
        f"lost in power cuts without sync before OK {total.at_risk:,} (allowed)"
    )


if __name__ == "__main__":
    sys.exit(run("simulate", prove, count=2_000, of="seeds"))
