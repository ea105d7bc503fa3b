"""The targets for the client: ratios to the fastest of pynsq, gnsq and ansq.

1. A consumer is compared with the fastest of them on any consuming line, since users who switch to
   sparq can choose how to consume. A publisher is compared with the fastest on the same line.
2. The targets are about rates. The ratio of CPU per message, of the most economical other client to
   sparq, is printed as well: on a busy machine it is more reliable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

PEERS = frozenset({"pynsq", "gnsq", "ansq"})
CONSUME = "consume"


class Speed(NamedTuple):
    """Medians of one client on one line: messages per second, microseconds of CPU per message."""

    rate: float
    cpu_us: float


Results = dict[str, dict[str, Speed]]
"""line -> client -> speed"""


@dataclass(frozen=True, slots=True)
class Target:
    """At least `ratio` times the fastest peer's rate, on lines whose name begins with `lines`."""

    lines: str
    ratio: float


TARGETS = (
    Target("consume + FIN, by iteration", 5),
    Target("consume + FIN, with a handler", 5),
    Target("consume + FIN, in batches", 20),
    Target("publish, awaited", 3),
)


def rivals(results: Results, line: str) -> dict[str, Speed]:
    """The speeds of the other clients that count for a line; for consuming, each one's fastest."""
    kin = [name for name in results if name.startswith(CONSUME)] if line.startswith(CONSUME) else []
    found = [pair for name in kin or [line] for pair in results[name].items()]
    return {key: speed for key, speed in sorted(found, key=_rate) if key in PEERS}


def _rate(pair: tuple[str, Speed]) -> float:
    return pair[1].rate


def verdicts(results: Results) -> Iterator[str]:
    """One line of text for each figure of sparq that has a target and a rival."""
    for line, speeds in results.items():
        others = rivals(results, line)
        ratio = next((target.ratio for target in TARGETS if line.startswith(target.lines)), 0)
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
    """Each target that was measured, and whether it is met; "" if none was."""
    found = list(verdicts(results))
    return "\n".join(["targets, as ratios to the best of the others:", *found]) if found else ""
