"""The targets for speed: ratios to Go's nsqd in memory, with sparq syncing before each OK."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.results import REFERENCE, Cell, Result


def rate(cell: Cell) -> float:
    """Messages per second."""
    return cell.rate


def server_us(cell: Cell) -> float:
    """Server CPU per message."""
    return cell.server_us


def median_ms(cell: Cell) -> float:
    """Median latency."""
    return cell.quantile_ms(0.5)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for a line's ratio to Go: at least `ratio` if `is_least`, else at most."""

    line: str
    figure: Callable[[Cell], float]
    ratio: float
    is_least: bool
    key: str = "sparq"

    def verdict(self, results: Sequence[Result]) -> str:
        """The ratio and whether it meets the target, as text; "" if it was not measured."""
        for result in results:
            if result.name == self.line and {self.key, REFERENCE} <= result.cells.keys():
                found = self.figure(result.cells[self.key]) / self.figure(result.cells[REFERENCE])
                is_met = found >= self.ratio if self.is_least else found <= self.ratio
                name = (self.figure.__doc__ or "").rstrip(".").lower()
                bound = "at least" if self.is_least else "at most"
                word = "met" if is_met else "MISSED"
                return f"  {self.line:<44}{name:<24}{found:>8.3f}  {bound} {self.ratio:g}: {word}"
        return ""


MPUB, PUB = "MPUB, pipelined, 200 of 200 B", "PUB, pipelined, 200 B"
DELIVER = "deliver + FIN, 1 consumer, RDY 2500"
TARGETS = (
    Target(MPUB, server_us, 0.4, is_least=False),
    Target(PUB, server_us, 0.3, is_least=False),
    Target(DELIVER, server_us, 0.06, is_least=False),
    Target(MPUB, rate, 1.5, is_least=True),
    Target(PUB, rate, 3, is_least=True),
    Target(DELIVER, rate, 10, is_least=True),
    Target("fan-out, 10 channels, a consumer each", rate, 20, is_least=True),
    Target("HTTP /pub, 1 connection", rate, 1.3, is_least=True),
    Target("HTTP /pub, 10 connections", rate, 1.3, is_least=True),
    Target("PUB, one at a time, 200 B", rate, 1.0, is_least=True, key="sparq-later"),
    Target("latency at 50 msg/s, RDY 100", median_ms, 0.01, is_least=False),
)


def report(results: Sequence[Result]) -> str:
    """Each target whose line was measured, and whether it is met; "" if none was."""
    verdicts = [verdict for target in TARGETS if (verdict := target.verdict(results))]
    return "\n".join(["targets, as ratios to Go's nsqd in memory:", *verdicts]) if verdicts else ""
