"""The aims of the client: ratios to the best of pynsq, gnsq and ansq; met or missed.

A consumer is held against the best of them consuming in any way: whoever changes over may choose.
A publisher is held against the best of them on its own line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PEERS = frozenset({"pynsq", "gnsq", "ansq"})
CONSUME = "consume"
Results = dict[str, dict[str, float]]
"""Median messages a second: line -> client -> rate."""


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


def best_peer(results: Results, line: str) -> tuple[str, float] | None:
    """Who is to be beaten on a line, and its rate; None when no peer was measured."""
    rivals: list[Mapping[str, float]] = [results[line]]
    if line.startswith(CONSUME):
        rivals = [rates for name, rates in results.items() if name.startswith(CONSUME)]
    found = [(rate, key) for rates in rivals for key, rate in rates.items() if key in PEERS]
    rate, key = max(found, default=(0.0, ""))
    return (key, rate) if key else None


def verdicts(results: Results) -> Iterator[str]:
    """One line for each of sparq's figures that has an aim and a rival."""
    for line, rates in results.items():
        rival = best_peer(results, line)
        for aim in AIMS:
            if not line.startswith(aim.lines) or rival is None:
                continue
            for key in rates.keys() - PEERS:
                found = rates[key] / rival[1]
                word = "met" if found >= aim.ratio else "MISSED"
                yield (
                    f"  {line:<34}{key:<14}{found:>8.2f} x {rival[0]:<6}"
                    f" at least {aim.ratio:g}: {word}"
                )


def report(results: Results) -> str:
    """Each aim that was measured, met or missed; "" without any."""
    found = sorted(verdicts(results))
    return "\n".join(["aims, as ratios to the best of the others:", *found]) if found else ""
