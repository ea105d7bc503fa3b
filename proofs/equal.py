"""Compares each vectorised function of the hot path with its plain twin, on random input.

The pairs are listed in `twins.py`. Each case has its own random generator, seeded with the proof's
seed, the pair's name and the case's number, so the same seed and count repeat a difference.

The controls use vectorised functions that are wrong in some cases.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple
from unittest.mock import patch

from proofs.outcome import Outcome, Plan, progress, run
from proofs.twins import PAIRS
from sparq.broker import in_flight
from sparq.log import records
from sparq.protocol import runs

PROMISES = ("P12",)
SHARE = 500
"""Number of cases of one pair that a process checks at a time."""
CONTROL_CASES = 1_000


class Share(NamedTuple):
    """The cases [first, end) of one pair."""

    seed: int
    pair: int
    first: int
    end: int


def differences(share: Share) -> list[str]:
    """Describe the cases in which the two functions differ."""
    name, case = PAIRS[share.pair]
    found: list[str] = []
    for number in range(share.first, share.end):
        chance = random.Random(f"{share.seed} {name} {number}")
        try:
            vectorised, plain = case(chance)
        except Exception as error:  # any exception is a difference: the twin raises none
            found.append(f"{name}, case {number}: {error!r}")
            continue
        if vectorised != plain:
            found.append(f"{name}, case {number}: {vectorised!r:.200} is not {plain!r:.200}")
    return found


def shares_of(plan: Plan) -> list[Share]:
    """Return all cases, the same number for each pair."""
    each = -(-plan.count // len(PAIRS))
    return [
        Share(plan.seed, pair, first, min(first + SHARE, each))
        for pair in range(len(PAIRS))
        for first in range(0, each, SHARE)
    ]


def prove(plan: Plan) -> Outcome:
    """Run the planned number of cases, and the controls."""
    shares = shares_of(plan)
    found: list[str] = []
    if len(shares) > len(PAIRS):
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for number, some in enumerate(pool.map(differences, shares)):
                found += some
                progress(f"share {number + 1} of {len(shares)}")
    else:
        found = [line for share in shares for line in differences(share)]
    for line in found[:10]:
        print(f"\r{line}")
    cases = sum(share.end - share.first for share in shares)
    figures = f"cases {cases:,} · pairs {len(PAIRS)} · differences {len(found):,}"
    held, control = not found, ""
    if plan.control:
        seen = {wrong.name: without(wrong, plan.seed) for wrong in WRONG}
        held &= all(seen.values())
        control = " · ".join(f"{name}: differences {count:,}" for name, count in seen.items())
    return Outcome(PROMISES, figures, held, control=control)


# The control


class Wrong(NamedTuple):
    """A vectorised function that is wrong in some cases.

    Attributes:
        name: short description of the error.
        pair: the pair that must find it.
        target, function, replacement: `function` of `target` is replaced by `replacement`.
    """

    name: str
    pair: str
    target: Any
    function: str
    replacement: Any


def touching_apart(firsts: Any, ends: Any) -> Any:
    """Do not join ranges that touch, in arrays."""
    if len(firsts) < records.VECTOR_MIN:
        return MERGE_RANGES(firsts, ends)
    pairs = sorted({(a, b) for a, b in zip(firsts, ends, strict=True) if a < b})
    return pairs


def one_too_many(data: bytes, at: int) -> int:
    """Make a run of FINs one row too long."""
    return min(FINISH_ROWS(data, at) + 1, (len(data) - at) // runs.FIN_WIDTH)


def mine_and_yours(tracked: in_flight.InFlight, first: int, end: int, _owner: int) -> bool:
    """Accept a range of FINs for messages that are in flight to another client."""
    return all(index in tracked.indexes() for index in range(first, end))


MERGE_RANGES, FINISH_ROWS = records.merge_ranges, runs._finish_rows

WRONG = (
    Wrong("ranges not joined", "log.records.merge_ranges", records, "merge_ranges", touching_apart),
    Wrong("a row too many", "protocol.runs.finish_run", runs, "_finish_rows", one_too_many),
    Wrong(
        "owners ignored",
        "broker.in_flight.InFlight.finish",
        in_flight.InFlight,
        "_owns_range",
        mine_and_yours,
    ),
)


def without(wrong: Wrong, seed: int) -> int:
    """Return the number of differences that are found with this wrong function."""
    pair = next(number for number, pair in enumerate(PAIRS) if pair.name == wrong.pair)
    with patch.object(wrong.target, wrong.function, wrong.replacement):
        return len(differences(Share(seed, pair, 0, CONTROL_CASES)))


if __name__ == "__main__":
    sys.exit(run("equal", prove, count=100_000, of="cases"))
