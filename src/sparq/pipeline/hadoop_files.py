"""Files on any file system that Hadoop has a client for: a local disk, HDFS, S3A and others.

All of this runs on the driver, through the JVM's file systems, so it has Spark's configuration and
credentials. It is meant for a few small files and listings; Spark's jobs read and write the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = "java.io.FileNotFoundException"


class HadoopFiles:
    """Access to files by address, which is a path or a URI.

    Args:
        spark: a session with a JVM of its own; Spark Connect has none.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._path = self._class("org.apache.hadoop.fs.Path")
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def _class(self, name: str) -> Any:
        """A class by its full name.

        As `jvm.org.apache...`, Py4J would look for each part of the name in all of Spark's jars.
        """
        return getattr(self._jvm, name)

    def list(self, directory: str) -> list[str]:
        """The names of the files of a directory; an empty list if it does not exist."""
        path = self._path(directory)
        try:
            found = path.getFileSystem(self._conf).listStatus(path)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _MISSING:
                return []
            raise
        return [str(one.getPath().getName()) for one in found if one.isFile()]

    def glob(self, pattern: str) -> Sequence[str]:
        """The addresses that match a Hadoop pattern (`*`, `?`, `[...]`), sorted."""
        path = self._path(pattern)
        found = path.getFileSystem(self._conf).globStatus(path)
        return sorted(str(one.getPath().toString()) for one in found or ())

    def read(self, address: str) -> bytes:
        """Read a whole file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        path = self._path(address)
        try:
            stream = path.getFileSystem(self._conf).open(path)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _MISSING:
                raise FileNotFoundError(address) from error
            raise
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()
