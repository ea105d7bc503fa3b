"""Facts from Spark's own checkpoint of a query that the next start of the query needs."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparq.pipeline.hadoop_files import HadoopFiles

_SAME_IN_A_URI = re.compile(r"[0-9A-Za-z/._~-]*")

PARTITIONS = "spark.sql.shuffle.partitions"


def shuffle_partitions(files: HadoopFiles, checkpoint: str) -> int | None:
    """The number of shuffle partitions of a query, which Spark fixes at its first batch.

    None before that. The second line of each file of the offset log has it: a JSON object whose
    `conf` holds the settings that a query keeps over restarts.

    Raises:
        ValueError: the newest file does not have that form.
    """
    address = _newest(files, f"{checkpoint}/offsets")
    if address is None:
        return None
    lines = files.read(address).decode().splitlines()
    try:
        return int(json.loads(lines[1])["conf"][PARTITIONS])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{address} has no valid value of {PARTITIONS}") from error


def next_batch(files: HadoopFiles, checkpoint: str) -> int:
    """The number of the batch that Spark would start next."""
    address = _newest(files, f"{checkpoint}/commits")
    return 0 if address is None else int(address.rpartition("/")[2]) + 1


def is_unfinished(files: HadoopFiles, checkpoint: str) -> bool:
    """Whether a batch has begun that has not been committed."""
    begun = _newest(files, f"{checkpoint}/offsets")
    return begun is not None and int(begun.rpartition("/")[2]) >= next_batch(files, checkpoint)


@contextmanager
def readable_as_state(checkpoint: str) -> Iterator[str]:
    """Give the checkpoint a name that `spark.read.format("statestore")` can load.

    Spark 4.3 turns the name into a URI and then uses the URI as a path: for the folder `my clicks`
    it looks in `my%20clicks`. For a local folder whose name has such characters, yield a symbolic
    link to it, which is deleted afterwards; otherwise yield the name unchanged.
    """
    folder = _local_path(checkpoint)
    if folder is None or _SAME_IN_A_URI.fullmatch(folder):
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="sparq-state-") as place:
        link = Path(place, "checkpoint")
        link.symlink_to(folder)
        yield str(link)


def _local_path(address: str) -> str | None:
    scheme, colon, rest = address.partition(":")
    if not colon or "/" in scheme:
        return address
    return f"/{rest.lstrip('/')}" if scheme.lower() == "file" else None


def _newest(files: HadoopFiles, directory: str) -> str | None:
    numbers = [int(name) for name in files.list(directory) if name.isdecimal()]
    return f"{directory}/{max(numbers)}" if numbers else None
