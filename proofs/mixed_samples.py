"""What an nsqd holds while it works, sampled, and whether it grows: for the mixed run.

A run has a time to warm up, a sixth of it (of an hour: ten minutes). What comes behind is divided
in three; the medians of the first and the last third are compared. Medians, since the figures
follow what happens to be open at the moment.
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
"""The first is what an allocator that is warm still wavers by; Python takes its memory in arenas of
1 MiB. The second is 1,300 bytes for each topic that comes and goes, of which there are some 6,500
in an hour: one whose blocks stayed in the cache cost 28,000."""
COLD_BYTES: Final = 16 * MIB
"""What a process that has not worked for ten minutes may still take, in caches and arenas."""
COLD_SECONDS = 600.0
REPLAYED_BYTES: Final = 20 * MIB
"""By what a process just started differs from one before it: it has read the ledger of the topic
that stays, which grows to 4 MiB between two checkpoints. 2.1 MiB of it took 10 MiB."""
BOUNDS = {"open_files": 60, "threads": 2, "data_files": 60}
"""A topic that exists has two files, most of them open. Of 200 names some 130 exist at a time, and
by chance the medians of two thirds of a run differ by a dozen of them. One file left behind by each
topic is thousands in an hour. Threads are begun as they are needed."""


class Sample(NamedTuple):
    """What an nsqd has.

    Attributes:
        at: seconds since the run began.
        age: seconds since this process began.
        memory: bytes of its own, files that are mapped apart.
        open_files, threads: of the process.
        data_files: files under the data path, the log of the test apart.
    """

    at: float
    age: float
    memory: int
    open_files: int
    threads: int
    data_files: int


class Growth(NamedTuple):
    """By how much the median grew from the first third to the last, and the bound."""

    name: str
    first: float
    last: float
    bound: float

    @property
    def is_flat(self) -> bool:
        """Whether it stayed within the bound."""
        return self.last - self.first <= self.bound

    def line(self) -> str:
        """In words."""
        is_memory = self.name == "memory"
        unit, digits = (MIB, ".1f") if is_memory else (1, ".0f")
        first, last, bound = (
            f"{figure / unit:,{digits}}" for figure in (self.first, self.last, self.bound)
        )
        name = self.name.replace("_", " ") + " MiB" * is_memory
        return f"{name} {first} → {last} (bound +{bound}){'' if self.is_flat else ' GROWS'}"


@dataclass(slots=True)
class Watch:
    """Samples of one nsqd, which may be started anew meanwhile."""

    server: NsqdServer
    began: float
    started: float
    samples: list[Sample]

    @classmethod
    def of(cls, server: NsqdServer) -> "Watch":
        now = time.monotonic()
        return cls(server, now, now, [])

    def restarted(self) -> None:
        """The process is a new one."""
        self.started = time.monotonic()

    def look(self) -> None:
        """One more sample; none while it is down."""
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
        """Write the samples beside the nsqd's folder: seen with --keep."""
        rows = [",".join(Sample._fields), *(",".join(map(str, each)) for each in self.samples)]
        file = self.server.folder.with_name(f"{self.server.folder.name}-samples.csv")
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")

    def growth(self, seconds: float, ages: tuple[float, float] | None = None) -> list[Growth]:
        """Of a run of so many seconds; of a server that is killed, at the same age only."""
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
    """Of one figure."""
    return statistics.median(getattr(sample, figure) for sample in samples)


def count_of_files(folder: Path) -> int:
    """Files below a folder; those that go meanwhile may count or not."""
    return sum(len(files) for _, _, files in os.walk(folder))
