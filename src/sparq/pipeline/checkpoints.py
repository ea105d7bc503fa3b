"""Facts from Spark's own checkpoint of a query that the next start of the query needs."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.fs import FileSelector, FileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparq.pipeline.storage import TablePlace

PARTITIONS = "spark.sql.shuffle.partitions"


def newest_batch(files: FileSystem, log: str) -> int:
    """The number of the newest batch in `<checkpoint>/offsets` or `<checkpoint>/commits`, or -1."""
    names = [one.base_name for one in files.get_file_info(FileSelector(log, allow_not_found=True))]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def is_unfinished(files: FileSystem, checkpoint: str) -> bool:
    """Whether a batch has begun that has not been committed."""
    begun = newest_batch(files, f"{checkpoint}/offsets")
    return begun > newest_batch(files, f"{checkpoint}/commits")


def shuffle_partitions(files: FileSystem, checkpoint: str) -> int | None:
    """The number of shuffle partitions of a query, which Spark fixes at its first batch, or None.

    The second line of each file of the offset log has it: JSON whose `conf` holds the settings that
    a query keeps over restarts.
    """
    newest = newest_batch(files, f"{checkpoint}/offsets")
    if newest < 0:
        return None
    lines = files.open_input_file(f"{checkpoint}/offsets/{newest}").read().splitlines()
    return int(json.loads(lines[1])["conf"][PARTITIONS])


@contextmanager
def readable_as_state(checkpoint: TablePlace) -> Iterator[str]:
    """Give the checkpoint a name that `spark.read.format("statestore")` can load.

    Spark 4.3 turns the name into a URI and then uses the URI as a path: for the folder `my clicks`
    it looks in `my%20clicks`. So of a local folder this is a symbolic link, deleted afterwards.
    """
    if not checkpoint.address.startswith("/"):
        yield checkpoint.address
        return
    with tempfile.TemporaryDirectory(prefix="sparq-state-") as folder:
        link = Path(folder, "checkpoint")
        link.symlink_to(checkpoint.address)
        yield str(link)
