"""Files on any file system that Hadoop has a client for: a local disk, HDFS, S3A and others.

All of this runs on the driver, through the JVM's file systems, so it has Spark's configuration and
credentials. It is meant for a few small files and listings; Spark's jobs read and write the data.

1. `create` is atomic and never replaces a file. It uses the manager that Spark writes checkpoints
   with (`spark.sql.streaming.checkpointFileManagerClass`), and is as safe as that manager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXISTS = "FileAlreadyExistsException"
_MISSING = "java.io.FileNotFoundException"
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file.

    Attributes:
        uri: its full address, with characters escaped as in a URI.
        size: in bytes.
        modified_ms: time of the last write, in milliseconds since 1970.
        replication: number of copies that the file system keeps.
        block_size: in bytes.
    """

    uri: str
    size: int
    modified_ms: int
    replication: int = 1
    block_size: int = 0

    @property
    def name(self) -> str:
        """The last part of its address."""
        return self.uri.rpartition("/")[2]

    @property
    def directory(self) -> str:
        """The address without the last part."""
        return self.uri.rpartition("/")[0]


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

    def list(self, directory: str) -> list[FileStatus]:
        """The files of a directory; an empty list if the directory does not exist."""
        path = self._path(directory)
        try:
            found = path.getFileSystem(self._conf).listStatus(path)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _MISSING:
                return []
            raise
        return [
            FileStatus(
                one.getPath().toUri().toString(),
                one.getLen(),
                one.getModificationTime(),
                one.getReplication(),
                one.getBlockSize(),
            )
            for one in found
            if one.isFile()
        ]

    def glob(self, pattern: str) -> Sequence[str]:
        """The addresses that match a Hadoop pattern (`*`, `?`, `[...]`), sorted."""
        path = self._path(pattern)
        found = path.getFileSystem(self._conf).globStatus(path)
        return sorted(str(one.getPath().toString()) for one in found or ())

    def path_of(self, uri: str) -> str:
        """A URI in the form that Spark's readers and writers expect: nothing is escaped."""
        return str(self._path(self._class("java.net.URI")(uri)).toString())

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

    def create(self, address: str, content: bytes) -> None:
        """Create a file, whole or not at all.

        Raises:
            FileExistsError: the file exists already.
        """
        path = self._path(address)
        manager = self._class(_MANAGER).create(path.getParent(), self._conf)
        path.getFileSystem(self._conf).mkdirs(path.getParent())
        try:
            # The file appears when the stream is closed; False: never replace one.
            stream = manager.createAtomic(path, False)
            stream.write(content)
            stream.close()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName().endswith(_EXISTS):
                raise FileExistsError(address) from error
            raise
        finally:
            manager.close()

    def delete_tree(self, address: str) -> None:
        """Delete a directory with all its contents, if it exists."""
        path = self._path(address)
        path.getFileSystem(self._conf).delete(path, True)

    def delete(self, address: str) -> None:
        """Delete a file, if it exists."""
        path = self._path(address)
        path.getFileSystem(self._conf).delete(path, False)
