"""What a streaming query remembers between its micro-batches, on disk, by batch id.

Spark repeats a micro-batch that it could not commit, with the same id and the same rows. A query
whose memory *before* batch N is found by N alone therefore gives the same answer again, and what
the repeat writes replaces what the first attempt left: exactly once.

    <directory>/batch-00000012/<table>.arrow ...  books.json     what batch 12 added
    <directory>/snapshot-00000012/...                            all of it, after batch 12

1. A folder is written aside and renamed: it is there whole or not at all.
2. `load(N)` reads the newest snapshot before N and the batches between; what a failed attempt at N
   left is not looked at. A gap is an error, never guessed over.
3. Files older than the last snapshot but one are deleted: Spark repeats at most one batch.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather

Tables = dict[str, pa.Table]
Books = dict[str, Any]


class StateError(Exception):
    """The memory on disk does not reach up to the batch that Spark begins with."""


class StateStore:
    """The folder of one query's memory; `snapshot_every` batches are folded into one."""

    def __init__(self, directory: Path, snapshot_every: int = 20) -> None:
        self._directory = directory
        self._snapshot_every = snapshot_every
        directory.mkdir(parents=True, exist_ok=True)

    def load(self, batch_id: int) -> tuple[Tables, Books]:
        """All rows that batches before `batch_id` left, and the books of the last of them.

        Raises:
            StateError: a batch between the newest snapshot and `batch_id` is missing.
        """
        if batch_id == 0:
            return {}, {}
        snapshots = [at for at in self._ids("snapshot") if at < batch_id]
        first = snapshots[-1] + 1 if snapshots else 0
        folders = [self._folder("snapshot", first - 1)] if snapshots else []
        folders += [self._folder("batch", at) for at in range(first, batch_id)]
        missing = [folder.name for folder in folders if not folder.is_dir()]
        if missing:
            raise StateError(
                f"the checkpoint begins with batch {batch_id}, but {self._directory} lacks "
                f"{missing[0]}: checkpoint and state do not belong together"
            )
        parts = [_read_tables(folder) for folder in folders]
        names = {name for part in parts for name in part}
        tables = {
            name: pa.concat_tables([part[name] for part in parts if name in part]) for name in names
        }
        return tables, json.loads((folders[-1] / "books.json").read_text(encoding="utf-8"))

    def wants_snapshot(self, batch_id: int) -> bool:
        """Whether the caller should give its whole memory with this batch, not only what is new."""
        return (batch_id + 1) % self._snapshot_every == 0

    def save(self, batch_id: int, tables: Tables, books: Books) -> None:
        """Keep what the batch added, or all where `wants_snapshot` said so, and tidy up."""
        snapshot = self.wants_snapshot(batch_id)
        self._write(self._folder("snapshot" if snapshot else "batch", batch_id), tables, books)
        if snapshot:
            self._tidy()

    def _write(self, folder: Path, tables: Tables, books: Books) -> None:
        aside = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, table in tables.items():
            pa.feather.write_feather(table, aside / f"{name}.arrow", compression="lz4")
        (aside / "books.json").write_text(json.dumps(books), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that Spark did not commit
        aside.rename(folder)

    def _tidy(self) -> None:
        keep_from = (self._ids("snapshot")[-2:] or [0])[0]
        for kind in ("batch", "snapshot"):
            for at in self._ids(kind):
                if at < keep_from:
                    shutil.rmtree(self._folder(kind, at))

    def _folder(self, kind: str, batch_id: int) -> Path:
        return self._directory / f"{kind}-{batch_id:08d}"

    def _ids(self, kind: str) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in self._directory.glob(f"{kind}-*"))


def _read_tables(folder: Path) -> Tables:
    return {
        path.stem: pa.feather.read_table(path, memory_map=False) for path in folder.glob("*.arrow")
    }
