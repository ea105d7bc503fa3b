"""Where the pipeline keeps what under its data folder, and how a batch's file gets there.

    archive metrics late rejected spam_analysis    the output, Parquet
    report.json labels.json                        at the end of a run
    checkpoint/<query>, checkpoint/<query>-state   Spark's, and what queries remember
    nsqd-1 nsqd-2 logs                             the daemons' data paths, what programs printed
    run                                            what is going on: state.json, app.json, lock

1. A file is written aside and renamed: a reader sees it whole or not at all. Names that begin with
   an underscore are not looked at by Spark and Arrow.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

OUTPUT = ("archive", "metrics", "late", "rejected", "spam_analysis", "report.json", "labels.json")
WORKING = ("checkpoint", "nsqd-1", "nsqd-2", "logs", "run")


@dataclass(frozen=True, slots=True)
class Folders:
    """The places below one data folder."""

    data: Path

    def __getattr__(self, name: str) -> Path:
        """`folders.archive` is `<data>/archive`; the names are those of OUTPUT and WORKING."""
        if name not in OUTPUT + WORKING:
            raise AttributeError(name)
        return self.data / name

    def checkpoint_of(self, query: str) -> Path:
        """Where Spark keeps how far a query has come."""
        return self.data / "checkpoint" / query

    def state_of(self, query: str) -> Path:
        """Where a query keeps what it remembers."""
        return self.data / "checkpoint" / f"{query}-state"


def write_batch(directory: Path, batch_id: int, name: str, table: pa.Table) -> None:
    """Put a batch's rows into its folder, in place of what an earlier attempt put there."""
    if not len(table):
        discard_batch(directory, batch_id)
        return
    folder = batch_folder(directory, batch_id)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"_{name}.{os.getpid()}"
    pq.write_table(table, aside, compression="zstd")
    aside.replace(folder / f"{name}.parquet")


def discard_batch(directory: Path, batch_id: int) -> None:
    """Remove what an earlier attempt at a batch left."""
    shutil.rmtree(batch_folder(directory, batch_id), ignore_errors=True)


def batch_folder(directory: Path, batch_id: int) -> Path:
    """The folder of one batch; Spark and Arrow read its number as a column `batch`."""
    return directory / f"batch={batch_id}"


def read_batches(directory: Path, schema: pa.Schema) -> pa.Table:
    """All rows below `directory`, with those columns; none where there is no folder."""
    files = sorted(directory.glob("batch=*/[!_.]*.parquet"))
    tables = [pq.read_table(file, columns=schema.names, partitioning=None) for file in files]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value, indent=2) + "\n")
    aside.replace(path)
