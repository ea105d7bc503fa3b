"""Reads the output of the queries on disk, and when each batch became readable.

    minutes/_delta_log/0...3.json     a commit of a table, with a line for each file that it adds;
                                      its modification time: the rows are readable from then on
    <checkpoint>/offsets/12           written when Spark begins the batch; its last line: the offset
    <checkpoint>/commits/12           written when the batch is done

Times are modification times of files, so they do not depend on how often the bench polls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


def first_archived(clicks: Path) -> float | None:
    """Time at which the table first had a click, in seconds since 1970; None: not yet."""
    commits = (clicks / "_delta_log").glob("*.json")
    times = [path.stat().st_mtime for path in commits if b'"add"' in path.read_bytes()]
    return min(times, default=None)


@dataclass
class TableCommits:
    """The commits of a Delta table, each read once.

    Attributes:
        table: the table's folder.
        columns: the columns to read.
    """

    table: Path
    columns: list[str]
    _seen: set[str] = field(default_factory=set)

    def new(self) -> list[tuple[pa.Table, float]]:
        """The rows of each commit since the last call, and its time in seconds since 1970."""
        found = []
        for commit in sorted((self.table / "_delta_log").glob("*.json")):
            if commit.name in self._seen:
                continue
            self._seen.add(commit.name)
            rows = [pa.table({name: [] for name in self.columns})]
            for line in commit.read_text(encoding="utf-8").splitlines():
                added = json.loads(line).get("add")
                if added and added["dataChange"]:  # a merge adds files, too
                    path = self.table / unquote(added["path"])
                    rows.append(pq.read_table(path, columns=self.columns, partitioning=None))
            whole = pa.concat_tables(rows, promote_options="permissive")
            found.append((whole, commit.stat().st_mtime))
        return found


class BatchTime(NamedTuple):
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
