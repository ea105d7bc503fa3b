"""The aims of the client: ratios to the best of pynsq, gnsq and ansq; met or missed.

1. A consumer is held against the best of them consuming in any way: whoever changes over may
   choose. A publisher is held against the best of them on its own line.
2. Rates are what the aims are about. Beside them stands how many times as much CPU a message costs
   the thriftiest of the others: on a busy machine that says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

PEERS = frozenset({"pynsq", "gnsq", "ansq"})
CONSUME = "consume"


class Speed(NamedTuple):
    """Medians of one client on one line: messages a second, microseconds of its CPU a message."""

    rate: float
    cpu_us: float


Results = dict[str, dict[str, Speed]]
"""line -> client -> speed"""


@dataclass(frozen=True, slots=True)
class Aim:
    """At least so many times the best peer, on the lines whose name begins with a text."""

    lines: str
    ratio: float


AIMS = (
    Aim("consume + FIN, by iteration", 5),
    Aim("consume + FIN, with a handler", 5),
    Aim("consume + FIN, in batches", 20),
    Aim("publish, awaited", 3),
)


def rivals(results: Results, line: str) -> dict[str, Speed]:
    """Who is to be beaten on a line: each of the others where it does best."""
    kin = [name for name in results if name.startswith(CONSUME)] if line.startswith(CONSUME) else []
    found = [pair for name in kin or [line] for pair in results[name].items()]
    return {key: speed for key, speed in sorted(found, key=_rate) if key in PEERS}


def _rate(pair: tuple[str, Speed]) -> float:
    return pair[1].rate


def verdicts(results: Results) -> Iterator[str]:
    """One line for each of sparq's figures that has an aim and a rival."""
    for line, speeds in results.items():
        others = rivals(results, line)
        ratio = next((aim.ratio for aim in AIMS if line.startswith(aim.lines)), 0)
        for key, speed in speeds.items() if others and ratio else ():
            if not key.startswith("sparq"):
                continue
            best, theirs = max(others.items(), key=_rate)
            found = speed.rate / theirs.rate
            cpu = min(other.cpu_us for other in others.values()) / speed.cpu_us
            word = "met" if found >= ratio else "MISSED"
            yield (
                f"  {line:<34}{key:<14}{found:>8.2f} x {best:<6}(CPU {cpu:.2f} x)"
                f"  at least {ratio:g}: {word}"
            )


def report(results: Results) -> str:
    """Each aim that was measured, met or missed; "" without any."""
    found = list(verdicts(results))
    return "\n".join(["aims, as ratios to the best of the others:", *found]) if found else ""
