"""Where the pipeline keeps what under its data folder, and how a batch's file gets there.

    archive metrics late rejected spam_analysis    the output, Parquet
    report.json labels.json                        at the end of a run
    checkpoint/<query>, checkpoint/<query>-state   Spark's, and what queries remember
    nsqd-1 nsqd-2 logs                             the daemons' data paths, what programs printed
    run                                            what is going on: state.json, app.json
    .lock                                          held by the run that is at work

1. A file is written aside and renamed: a reader sees it whole or not at all. Names that begin with
   an underscore are not looked at by Spark and Arrow.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

OUTPUT = ("archive", "metrics", "late", "rejected", "spam_analysis", "report.json", "labels.json")
WORKING = ("checkpoint", "nsqd-1", "nsqd-2", "logs", "run")
LOCK = ".lock"


MARK = "run/state.json"
"""Where this stands, what lies beside it is a run's, and the next run may clear it."""


class FolderError(Exception):
    """The data folder holds something that is not to be touched; the text says what."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The places below one data folder."""

    data: Path

    def __getattr__(self, name: str) -> Path:
        """`folders.archive` is `<data>/archive`; the names are those of OUTPUT and WORKING."""
        if name not in OUTPUT + WORKING:
            raise AttributeError(name)
        return self.data / name

    def hold(self) -> IO[str]:
        """Keep other runs out of the folder until the file that this returns is closed.

        Raises:
            FolderError: another run is at work there.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        lock = (self.data / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise FolderError(f"another run is at work in {self.data}") from error
        return lock

    def mode(self) -> str:
        """Whose data lie here: "run", "up" (a user's own clicks), or "" before either."""
        try:
            return str(
                json.loads((self.data / MARK).read_text(encoding="utf-8")).get("mode", "run")
            )
        except (OSError, ValueError):
            return ""

    def clear(self) -> list[str]:
        """Remove what an earlier run left; returns the names.

        Raises:
            FolderError: there is something of such a name that no run has made, or a user's own
                clicks.
        """
        held = [name for name in OUTPUT + WORKING if (self.data / name).exists()]
        if self.mode() == "up":
            raise FolderError(
                f"{self.data} has the clicks of `sparq up`: move it away, or name another folder"
                " with --data"
            )
        if held and not (self.data / MARK).exists():
            raise FolderError(
                f"{self.data} has {', '.join(held)}, but not from a run: move it away, or name"
                " another folder with --data"
            )
        # The mark goes last: what is interrupted here can be cleared again.
        for name in sorted(held, key="run".__eq__):
            path = self.data / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return held

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
    aside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)
