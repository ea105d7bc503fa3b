"""Facts from Spark's own checkpoint of a query that the next start of the query needs."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.fs import FileSelector, FileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAME_IN_A_URI = re.compile(r"[0-9A-Za-z/._~-]*")

PARTITIONS = "spark.sql.shuffle.partitions"


def newest_batch(files: FileSystem, log: str) -> int:
    """The number of the newest batch in `<checkpoint>/offsets` or `<checkpoint>/commits`, or -1."""
    names = [one.base_name for one in files.get_file_info(FileSelector(log, allow_not_found=True))]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def is_unfinished(files: FileSystem, checkpoint: str) -> bool:
    """Whether a batch has begun that has not been committed."""
    begun, committed = (
        newest_batch(files, f"{checkpoint}/{log}") for log in ("offsets", "commits")
    )
    return begun > committed


def shuffle_partitions(files: FileSystem, checkpoint: str) -> int | None:
    """The number of shuffle partitions of a query, which Spark fixes at its first batch.

    None before that. The second line of each file of the offset log has it: a JSON object whose
    `conf` holds the settings that a query keeps over restarts.

    Raises:
        ValueError: the newest file does not have that form.
    """
    newest = newest_batch(files, f"{checkpoint}/offsets")
    if newest < 0:
        return None
    file = f"{checkpoint}/offsets/{newest}"
    try:
        lines = files.open_input_file(file).read().splitlines()
        return int(json.loads(lines[1])["conf"][PARTITIONS])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} has no valid value of {PARTITIONS}") from error


@contextmanager
def readable_as_state(checkpoint: str) -> Iterator[str]:
    """Give the checkpoint a name that `spark.read.format("statestore")` can load.

    Spark 4.3 turns the name into a URI and then uses the URI as a path: for the folder `my clicks`
    it looks in `my%20clicks`. For a local folder whose name has such characters, yield a symbolic
    link to it, which is deleted afterwards; otherwise yield the name unchanged.
    """
    scheme, colon, rest = checkpoint.partition(":")
    folder: str | None = checkpoint
    if colon and "/" not in scheme:
        folder = f"/{rest.lstrip('/')}" if scheme.lower() == "file" else None
    if folder is None or _SAME_IN_A_URI.fullmatch(folder):
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="sparq-state-") as place:
        link = Path(place, "checkpoint")
        link.symlink_to(folder)
        yield str(link)
