"""Reads the output of the queries on disk, and when each batch became readable.

    <place>/batch=12/_SUCCESS         its modification time: the batch is readable from then on
    minutes/_delta_log/0...3.json     a commit of a table; its modification time, likewise
    <checkpoint>/offsets/12           written when Spark begins the batch; its last line: the offset
    <checkpoint>/commits/12           written when the batch is done
    clicks/_delta_log/0...3.json      a commit of the table, with a line for each file that it adds

Times are modification times of files, so they do not depend on how often the bench polls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

MARK = "_SUCCESS"


def first_archived(clicks: Path) -> float | None:
    """Time at which the table first had a click, in seconds since 1970; None: not yet."""
    commits = (clicks / "_delta_log").glob("*.json")
    times = [path.stat().st_mtime for path in commits if b'"add"' in path.read_bytes()]
    return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Batch:
    """A readable batch.

    Attributes:
        number: Spark's number of the batch.
        readable_s: time at which it became readable, in seconds since 1970.
        rows: its rows, with the requested columns.
    """

    number: int
    readable_s: float
    rows: pa.Table


@dataclass
class BatchFolders:
    """The batches of one place, each read once.

    Attributes:
        place: the folder with one folder per batch.
        columns: the columns to read.
    """

    place: Path
    columns: list[str]
    _seen: set[int] = field(default_factory=set)

    def new(self) -> list[Batch]:
        """The batches that have become readable since the last call, ordered by number."""
        found = []
        for mark in self.place.glob(f"batch=*/{MARK}"):
            number = int(mark.parent.name.partition("=")[2])
            if number not in self._seen:
                self._seen.add(number)
                found.append(Batch(number, mark.stat().st_mtime, self._rows(mark.parent)))
        return sorted(found, key=lambda batch: batch.number)

    def _rows(self, folder: Path) -> pa.Table:
        files = sorted(folder.glob("part-*.parquet"))
        tables = [pq.read_table(file, columns=self.columns, partitioning=None) for file in files]
        return pa.concat_tables(tables) if tables else pa.table({name: [] for name in self.columns})


@dataclass
class CommittedClicks:
    """The clicks of the table of minutes, commit by commit.

    Attributes:
        table: the table's folder.
    """

    table: Path
    _seen: set[str] = field(default_factory=set)
    _clicks: int = 0

    def new(self) -> list[tuple[int, float]]:
        """The clicks after each commit since the last call, and its time in seconds since 1970."""
        found = []
        for commit in sorted((self.table / "_delta_log").glob("*.json")):
            if commit.name in self._seen:
                continue
            self._seen.add(commit.name)
            for line in commit.read_text(encoding="utf-8").splitlines():
                added = json.loads(line).get("add")
                if added and added["dataChange"]:  # a merge adds files, too
                    path = self.table / unquote(added["path"])
                    rows = pq.read_table(path, columns=["clicks"], partitioning=None)
                    self._clicks += sum(rows["clicks"].to_pylist())
            found.append((self._clicks, commit.stat().st_mtime))
        return found


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The length of a batch, from writing its offset to writing its commit.

    Attributes:
        has_rows: whether its offset differs from that of the previous batch.
    """

    seconds: float
    has_rows: bool


def batch_times(checkpoint: Path) -> dict[int, BatchTime]:
    """The completed batches of a query, by number; Spark keeps the last hundred."""
    offsets = {number: path for number, path in _numbered(checkpoint / "offsets")}
    found = {}
    for number, commit in _numbered(checkpoint / "commits"):
        if number in offsets:
            before = offsets.get(number - 1)
            has_rows = before is None or _offset(before) != _offset(offsets[number])
            seconds = commit.stat().st_mtime - offsets[number].stat().st_mtime
            found[number] = BatchTime(seconds, has_rows)
    return found


def _offset(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[-1]


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    found = [(int(path.name), path) for path in folder.glob("[0-9]*") if path.name.isdecimal()]
    return sorted(found)
