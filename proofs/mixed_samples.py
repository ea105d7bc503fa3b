"""Samples memory, files and threads of an nsqd during the mixed run, and shows whether they grow.

The first sixth of a run is its warm-up (in an hour: ten minutes). The rest is divided into thirds,
and the medians of the first and the last third are compared. Medians, because each sample depends
on how many topics and files are open at that moment.
"""

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.servers import NsqdServer

MIB: Final = 1 << 20
WARM_SHARE = 1 / 6
HOUR_SECONDS = 3600.0
MEMORY_BYTES: Final = 4 * MIB
MEMORY_BYTES_AN_HOUR: Final = 8 * MIB
"""The first is the fluctuation of a warm allocator; Python allocates memory in arenas of 1 MiB. The
second allows 1,300 bytes for each topic that is created and deleted, about 6,500 in an hour. A
topic whose blocks stayed in the cache cost 28,000 bytes."""
COLD_BYTES: Final = 16 * MIB
"""Additional memory that a process may take for caches and arenas in its first ten minutes."""
COLD_SECONDS = 600.0
REPLAYED_BYTES: Final = 20 * MIB
"""Difference between a newly started process and an earlier one: it has read the ledger of the
topic that stays, which grows to 4 MiB between two checkpoints. 2.1 MiB of ledger took 10 MiB."""
BOUNDS = {"open_files": 60, "threads": 2, "data_files": 60}
"""An existing topic has two files, most of them open. About 130 of the 200 names exist at a time,
and the medians of two thirds of a run differ by about a dozen topics by chance. One file leaked per
topic adds up to thousands in an hour. Threads start on demand."""


class Sample(NamedTuple):
    """One sample of an nsqd.

    Attributes:
        at: seconds since the start of the run.
        age: seconds since the start of this process.
        memory: resident anonymous memory in bytes, without mapped files.
        open_files, threads: numbers of the process.
        data_files: number of files under the data path, without the test's own log file.
    """

    at: float
    age: float
    memory: int
    open_files: int
    threads: int
    data_files: int


class Growth(NamedTuple):
    """Medians of a figure in the first and in the last third, and the bound of their difference."""

    name: str
    first: float
    last: float
    bound: float

    @property
    def is_flat(self) -> bool:
        """Whether the growth is within the bound."""
        return self.last - self.first <= self.bound

    def line(self) -> str:
        """The figures for the report."""
        is_memory = self.name == "memory"
        unit, digits = (MIB, ".1f") if is_memory else (1, ".0f")
        first, last, bound = (
            f"{figure / unit:,{digits}}" for figure in (self.first, self.last, self.bound)
        )
        name = self.name.replace("_", " ") + " MiB" * is_memory
        return f"{name} {first} → {last} (bound +{bound}){'' if self.is_flat else ' GROWS'}"


@dataclass(slots=True)
class Watch:
    """Samples of one nsqd, which may restart in between."""

    server: NsqdServer
    began: float
    started: float
    samples: list[Sample]

    @classmethod
    def of(cls, server: NsqdServer) -> "Watch":
        now = time.monotonic()
        return cls(server, now, now, [])

    def restarted(self) -> None:
        """Note that a new process starts now."""
        self.started = time.monotonic()

    def take_sample(self) -> None:
        """Take a sample; does nothing while nsqd is down."""
        process, now = self.server.process, time.monotonic()
        if process is None:
            return
        status = Path(f"/proc/{process.pid}/status")
        with suppress(OSError, KeyError, ValueError):
            lines = status.read_text(encoding="utf-8").splitlines()
            figures = dict(line.split(":", 1) for line in lines if ":" in line)
            sample = Sample(
                at=now - self.began,
                age=now - self.started,
                memory=int(figures["RssAnon"].split()[0]) << 10,
                open_files=len(os.listdir(f"/proc/{process.pid}/fd")),
                threads=int(figures["Threads"]),
                data_files=count_of_files(self.server.folder) - 1,
            )
            self.samples.append(sample)

    def save(self) -> None:
        """Write the samples to a CSV file next to the nsqd's folder; `--keep` keeps it."""
        rows = [",".join(Sample._fields), *(",".join(map(str, each)) for each in self.samples)]
        file = self.server.folder.with_name(f"{self.server.folder.name}-samples.csv")
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")

    def growth(self, seconds: float, ages: tuple[float, float] | None = None) -> list[Growth]:
        """Growth of each figure in a run of `seconds`; with `ages`, only of processes that old."""
        kept = [
            sample
            for sample in self.samples
            if sample.at >= seconds * WARM_SHARE
            and (ages is None or ages[0] <= sample.age <= ages[1])
        ]
        rest = seconds * (1 - WARM_SHARE)
        early = [each for each in kept if each.at < seconds * WARM_SHARE + rest / 3]
        late = [each for each in kept if each.at >= seconds - rest / 3]
        if not early or not late:
            return []
        memory = MEMORY_BYTES + MEMORY_BYTES_AN_HOUR * seconds / HOUR_SECONDS
        if seconds * WARM_SHARE < COLD_SECONDS:
            memory += COLD_BYTES * (1 - seconds * WARM_SHARE / COLD_SECONDS)
        if ages is not None:
            memory += REPLAYED_BYTES
        bounds = {"memory": memory, **BOUNDS}
        return [
            Growth(name, median(early, name), median(late, name), bound)
            for name, bound in bounds.items()
        ]


def median(samples: Sequence[Sample], figure: str) -> float:
    """Median of one figure of the samples."""
    values: list[float] = [getattr(sample, figure) for sample in samples]
    return statistics.median(values)


def count_of_files(folder: Path) -> int:
    """Number of files below a folder. Files deleted during the count may be included or not."""
    return sum(len(files) for _, _, files in os.walk(folder))
