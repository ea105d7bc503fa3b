"""The pipeline on a Spark cluster, with workers, drivers and nsqds killed: `make spark`.

A standalone master, two workers with one executor each, one nsqlookupd, two nsqds and the driver
run as separate processes on this machine. All share its disk, and the data folder on it, which
stands for a cluster's file system.

`N=` clicks are published while workers (with their executors), drivers and nsqds are killed with
kill -9 in the middle of batches, at random from the seed; each is restarted. When all clicks are
read, the pipeline's audit must hold, and all six tables, counted here once more (`exactly_once`),
must have every message exactly once. This is done in each of the following ways, with `--kills`
kills each, of the three kinds in turn:

  kills        nothing but the kills
  speculation  with spark.speculation, and executors that are stopped for seconds
  failure      with tasks that fail once after they have written
  commits      each killed driver loses the last file of each checkpoint's `commits/`
  cores        each killed driver restarts on another number of cores

The control is a pipeline whose commits have no transactions (without_transactions.py):
there the check must find rows twice.

Further flags: `--only kills,cores` runs only these ways (`--only control` only the control);
`--kills 10` sets the number of kills in each.
"""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from proofs import outcome
from proofs.outcome import Outcome, Plan, progress
from proofs.spark_parts.cluster_run import (
    CONTROL,
    KILLS,
    VARIANTS,
    ClusterRun,
    Variant,
    clicks,
)
from proofs.workload import data_folder

CLICKS = 100_000
CONTROL_CLICKS = 40_000
PROMISES = ("P14",)


def attempt(folder: Path, variant: Variant, seed: int, count: int) -> ClusterRun:
    """Do one run, and print a line about it."""
    progress(f"{variant.name}: making {count:,} clicks")
    clicks(count, seed)
    began = time.monotonic()
    run = ClusterRun(folder, variant, seed, count)
    run.do()
    verdict = "\n".join(run.wrong) or "holds"
    parts = [f"killed {'; '.join(run.kills) or 'nothing'}", *run.notes]
    parts.append(f"{time.monotonic() - began:.0f} s")
    print(f"\r{variant.name} ({variant.text}): {'. '.join(parts)}. {verdict}", flush=True)
    return run


def prove(plan: Plan, variants: Sequence[Variant] = VARIANTS) -> Outcome:
    """Run each way once, then the control."""
    runs: list[ClusterRun] = []
    control, is_noticed = "", True
    with data_folder(plan.keep) as scratch:
        for variant in variants:
            folder = scratch.resolve() / variant.name
            runs.append(attempt(folder, variant, plan.seed, plan.count))
            if plan.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
        if plan.control:
            count = min(plan.count, CONTROL_CLICKS)
            unguarded = attempt(scratch.resolve() / CONTROL.name, CONTROL, plan.seed, count)
            is_noticed = unguarded.twice > 0
            control = f"without transactions: rows twice {unguarded.twice:,}"
    held = not any(run.wrong for run in runs) and is_noticed
    figures = (
        f"runs {len(runs)} of {plan.count:,} clicks · kills {sum(len(run.kills) for run in runs)}"
        f" · archived {sum(run.rows for run in runs):,} · twice {sum(run.twice for run in runs):,}"
        f" · audits that failed {sum(bool(run.wrong) for run in runs)}"
    )
    return Outcome(PROMISES, figures, held, control)


def chosen(text: str) -> list[Variant]:
    """Return the ways with these names. `control` is accepted, but adds no way.

    Raises:
        ArgumentTypeError: a name is unknown.
    """
    known = {variant.name: variant for variant in VARIANTS}
    names = [name for name in text.split(",") if name != CONTROL.name]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return [known[name] for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    # SIGTERM must also end the processes that this one has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--only", type=chosen, default=list(VARIANTS))
    parser.add_argument("--kills", type=int, default=KILLS)
    own, rest = parser.parse_known_args(arguments)
    if own.kills != KILLS or len(own.only) != len(VARIANTS):
        names = ",".join(variant.name for variant in own.only) or CONTROL.name
        print(f'with ARGS="--only {names} --kills {own.kills}"')
    proof = partial(prove, variants=[replace(each, kills=own.kills) for each in own.only])
    return outcome.run("spark", proof, count=CLICKS, of="clicks a run", arguments=rest)


if __name__ == "__main__":
    sys.exit(main())
