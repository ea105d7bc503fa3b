"""Facts from Spark's own checkpoint of a query that the next start of the query needs.

The files are listed and read on the driver through the JVM's file systems, so any file system that
Hadoop has a client for will do, with Spark's configuration and credentials.
"""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_SAME_IN_A_URI = re.compile(r"[0-9A-Za-z/._~-]*")

PARTITIONS = "spark.sql.shuffle.partitions"


class QueryCheckpoint:
    """The checkpoint of one query.

    Args:
        spark: a session with a JVM of its own; Spark Connect has none.
        address: a path or a URI.
    """

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.address = address
        self._spark = spark

    def shuffle_partitions(self) -> int:
        """The number of shuffle partitions of the query, which Spark fixes at its first batch.

        Before that, the session's. The second line of each file of the offset log has it: a JSON
        object whose `conf` holds the settings that a query keeps over restarts.

        Raises:
            ValueError: the newest file does not have that form.
        """
        begun = self._newest("offsets")
        if begun < 0:
            return int(self._spark.conf.get(PARTITIONS) or 0)
        path = self._path(f"offsets/{begun}")
        stream = path.getFileSystem(self._hadoop()).open(path)
        try:
            lines = bytes(stream.readAllBytes()).decode().splitlines()
            return int(json.loads(lines[1])["conf"][PARTITIONS])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.toString()} has no valid value of {PARTITIONS}") from error
        finally:
            stream.close()

    def is_unfinished(self) -> bool:
        """Whether a batch has begun that has not been committed."""
        return self._newest("offsets") > self._newest("commits")

    def _newest(self, log: str) -> int:
        """The number of the newest batch in one of the two logs; -1: none."""
        path = self._path(log)
        try:
            found = path.getFileSystem(self._hadoop()).listStatus(path)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == "java.io.FileNotFoundException":
                return -1
            raise
        names = (str(one.getPath().getName()) for one in found)
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _path(self, name: str) -> Any:
        # As `jvm.org.apache...`, Py4J would look for each part of the name in all of Spark's jars.
        return getattr(self._spark._jvm, "org.apache.hadoop.fs.Path")(f"{self.address}/{name}")

    def _hadoop(self) -> Any:
        return self._spark._jsparkSession.sessionState().newHadoopConf()


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
