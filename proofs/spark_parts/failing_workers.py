"""The parent of Spark's Python workers, in which a task fails once after it has written a file.

An option names it, in place of the pipeline's own parent.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import daemon

from sparq.pipeline import tables, workers_daemon  # noqa: F401 - loads what workers need
from sparq.pipeline.storage import TablePlace

FAILED = ".failed"
FOLDER = "SPARQ_PROOF_FAILURES"
"""Environment variable with the folder."""


def failing_once(write: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Write files, and fail if the folder has a file with the table's name, which is renamed."""

    def written(place: TablePlace, *rest: Any) -> Any:
        made = write(place, *rest)
        name = Path(place.address).name
        try:
            (folder / name).rename(folder / f"{name}-{time.time_ns()}{FAILED}")
        except FileNotFoundError:
            return made
        raise OSError("the proof lets this task fail after it has written")

    return written


if __name__ == "__main__":
    failing = failing_once(tables.write_rows, Path(os.environ[FOLDER]))
    setattr(tables, "write_rows", failing)  # noqa: B010 - a replacement
    gc.freeze()
    daemon.manager()
