"""What Spark's own checkpoint of a query says that the next start of the query must know."""

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
    """The number of shuffle partitions of a query, which Spark keeps from its first batch on.

    None before that. It stands in the second line of each file of the offset log: a JSON object
    whose `conf` has the settings that a query keeps over its restarts.

    Raises:
        ValueError: the newest file is not of that form.
    """
    address = _newest(files, f"{checkpoint}/offsets")
    if address is None:
        return None
    lines = files.read(address).decode().splitlines()
    try:
        return int(json.loads(lines[1])["conf"][PARTITIONS])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{address} does not say what {PARTITIONS} was at the start") from error


def next_batch(files: HadoopFiles, checkpoint: str) -> int:
    """The number of the batch that Spark would begin next."""
    address = _newest(files, f"{checkpoint}/commits")
    return 0 if address is None else int(address.rpartition("/")[2]) + 1


@contextmanager
def readable_as_state(checkpoint: str) -> Iterator[str]:
    """A name of the checkpoint that `spark.read.format("statestore")` can load.

    Spark 4.3 makes a URI of the name that it is given, and then takes the URI for a path: for the
    folder `my clicks` it looks in `my%20clicks`. Where a name has such characters and is that of a
    local folder, this is a link to it, which is gone afterwards.
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
    numbers = [int(one.name) for one in files.list(directory) if one.name.isdecimal()]
    return f"{directory}/{max(numbers)}" if numbers else None
