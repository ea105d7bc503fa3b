"""Checks that robots are found among many visitors as well as among few.

    python -m bench.pipeline_robots --clicks 5000000 --visitors 500000 --per-second 5000

The same planted robots, at the same event times, are mixed with two crowds in turn: one at a low
rate, and the one that the flags describe. In both runs the query `spam_analysis` judges the clicks
of the crowd and the robots. Both runs must have the same findings, and the run with the larger
crowd must not drop any visit for lack of space.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.pipeline_clicks import Crowd
from bench.pipeline_running import Running, note
from sparq.demo import website
from sparq.demo.generator import PLANTED, line_of
from sparq.demo.scores import Labels, scores
from sparq.pipeline import spam_analysis
from sparq.pipeline.report.figures import newest_findings, scan
from sparq.pipeline.storage import TablePlace

LOW_PER_SECOND = 100
CLICKS_A_VISITOR = 10
STARTS_SHARE = 0.5
"""Robots start in this first part of the time, so most of their clicks are among the crowd's."""

CLOSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Found:
    """The results of one run.

    Attributes:
        findings: (address, user agent, reason).
        precision, recall: of the findings, compared with the planted robots.
        evicted: number of visits that ended early for lack of room.
        clicks: number of judged clicks.
        seconds: duration from the start of the application.
    """

    findings: frozenset[tuple[str, str, str]]
    precision: float
    recall: float
    evicted: int
    clicks: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.clicks:,} clicks in {self.seconds:.0f} s: {len(self.findings)} findings, "
            f"precision {self.precision:.3f}, recall {self.recall:.3f}, evicted {self.evicted}"
        )


def planted(seed: int, seconds: float) -> tuple[list[tuple[float, bytes]], Labels]:
    """The clicks of all planted robots with their times, and the true reasons of each robot."""
    rng = random.Random(seed)
    world = website.SiteModel(rng)
    labels: dict[tuple[str, str], frozenset[str]] = {}
    hits: list[website.Hit] = []
    for plant, count in PLANTED:
        for _ in range(count):
            visitor, reasons, made = plant(world, 2 + rng.random() * seconds * STARTS_SHARE)
            labels[visitor.key] = reasons
            hits += made
    lines = [(hit.second, line_of(hit).encode()) for hit in hits]
    return sorted(lines), labels


def among(crowd: Crowd, size: int, robots: list[tuple[float, bytes]]) -> Iterator[bytes]:
    """The clicks of a crowd and of the robots, in order of time."""
    people = ((at / crowd.per_second, line) for at, line in enumerate(crowd.lines(size)))
    return (line for _, line in heapq.merge(people, robots))


def judge(folder: Path, crowd: Crowd, size: int, seed: int, seconds: float) -> Found:
    """Publish the clicks of a crowd and of the robots, and run `spam_analysis` on them."""
    robots, labels = planted(seed, seconds)
    run_dir = folder / "run-dir"
    flags = ("--run-dir", str(run_dir), "--no-publish")
    with Running(folder, ("spam_analysis",), flags=flags) as running:
        run_dir.mkdir()
        count = running.publish(among(crowd, size, robots))
        note(f"{count:,} clicks are published")
        began = time.perf_counter()
        running.start()
        running.drain()
        note("all clicks are judged; closing the open visits")
        (run_dir / "finish").touch()
        assert running.application.process is not None
        if running.application.process.wait(CLOSE_SECONDS):
            raise RuntimeError(f"sparq pipeline failed:\n{running.log_end()}")
        took = time.perf_counter() - began
    place = TablePlace(str(running.data))
    rows = newest_findings(scan(place, spam_analysis.FINDINGS)).to_dicts()
    score = scores(rows, labels)["all"]
    found = frozenset((row["address"], row["user_agent"], row["reason"]) for row in rows)
    ended = scan(place, spam_analysis.SESSIONS).collect()["ended"].to_list()
    return Found(found, score["precision"], score["recall"], ended.count("room"), count, took)


def main() -> int:
    """Run with both crowds; return 0 if both runs find the same robots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clicks", type=int, default=5_000_000, help="clicks of the crowd")
    parser.add_argument("--visitors", type=int, default=500_000, help="visitors in the crowd")
    parser.add_argument(
        "--per-second", type=int, default=5_000, help="the crowd's clicks per second of event time"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the planted robots")
    given = parser.parse_args()
    seconds = given.clicks / given.per_second
    few = round(seconds * LOW_PER_SECOND)
    crowds = {
        "low": (Crowd(max(1, few // CLICKS_A_VISITOR), LOW_PER_SECOND), few),
        "high": (Crowd(given.visitors, given.per_second), given.clicks),
    }
    found = {}
    with tempfile.TemporaryDirectory(prefix="sparq-robots-") as folder:
        for name, (crowd, size) in crowds.items():
            note(
                f"{name}: {size:,} clicks at {crowd.per_second:,}/s of {crowd.visitors:,} visitors"
            )
            found[name] = judge(Path(folder, name), crowd, size, given.seed, seconds)
            print(f"{name:>5}  {found[name]}", flush=True)
    low, high = found["low"], found["high"]
    lost, more = len(low.findings - high.findings), len(high.findings - low.findings)
    holds = not lost and not more and not high.evicted and bool(high.findings)
    print(
        f"robots found at {given.per_second:,}/s as at {LOW_PER_SECOND}/s: {holds} "
        f"(missing {lost}, additional {more})"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
