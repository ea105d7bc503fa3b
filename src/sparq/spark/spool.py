"""Keeps a partition's rows until all of them have been looked at.

A sink publishes nothing of a partition before it knows that every row can be published. The rows
are kept as Arrow writes them, in memory up to a limit and in a temporary file beyond it.
"""

import os
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

MEMORY_BYTES_MAX: Final = 64 << 20
"""What a task keeps in memory; Spark's own tasks have some hundred MiB each."""


class Spool:
    """Record batches, written once and read once; `close` deletes them."""

    def __init__(self) -> None:
        # Spark's executors have folders of their own for what does not fit into memory.
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close()
            MEMORY_BYTES_MAX, dir=folder if os.path.isdir(folder) else None
        )
        self._writer: Any = None

    def add(self, rows: Any) -> None:
        """Keeps a record batch; all have the same columns."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        self._writer.write_batch(rows)

    def batches(self) -> Iterator[Any]:
        """The record batches, in order."""
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Deletes what was kept."""
        self._file.close()
