"""Where tables are: the address of a folder, and the options of its storage, for `deltalake`.

`deltalake` has its own clients for S3, GCS, Azure and HDFS, with credentials from the environment
and from options. Spark's options for S3 (`spark.hadoop.fs.s3a.*`) are passed on to them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, PyFileSystem

from sparq.options.declare import option
from sparq.options.kinds import pairs
from sparq.options.mistakes import Mistake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3_OPTIONS = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
}


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A folder, of a table or of all tables: a local path or a URI, and options of `deltalake`.

    Tasks carry it to the executors, with the credentials.
    """

    address: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def of(self, name: str) -> TablePlace:
        """The folder of this name in this one."""
        return TablePlace(f"{self.address}/{name}", self.options)

    def exists(self) -> bool:
        """Whether there is a table."""
        return bool(DeltaTable.is_deltatable(self.address, self.options or None))

    def table(self) -> DeltaTable:
        """Open the table in its newest version. Raises deltalake's TableNotFoundError."""
        return DeltaTable(self.address, storage_options=self.options or None)

    def files(self) -> FileSystem:
        """The file system of the folder; paths are relative to it."""
        return PyFileSystem(DeltaStorageHandler(self.address, self.options or None))

    def data_files(self) -> dict[str, float]:
        """All Parquet files of a table, committed or not: when each was written, s since 1970."""
        found = self.files().get_file_info(FileSelector("", recursive=True))
        times = {one.path.lstrip("/"): one.mtime for one in found if one.extension == "parquet"}
        return {path: at.timestamp() for path, at in times.items() if not path.startswith("_")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options of a program that reads the tables."""

    data: str = option("", "the data folder: a path or a URI (required)")
    storage_option: tuple[tuple[str, str], ...] = option(
        (), "option of the storage, such as AWS_REGION=eu-central-1", kind=pairs("KEY=VALUE")
    )


def place_given(given: TableOptions) -> TablePlace:
    """The place that the flags name. Raises Mistake: there is none."""
    if not given.data:
        raise Mistake("--data is missing: name the data folder, a path or a URI")
    options = dict(given.storage_option)
    if re.match(r"[a-z0-9]+:", given.data):
        return TablePlace(given.data.rstrip("/"), options)
    if not Path(given.data).is_dir():
        raise Mistake(f"--data={given.data}: no such folder")
    return TablePlace(str(Path(given.data).absolute()), options)


def place_of(
    spark: SparkSession, root: str, options: Mapping[str, str] | None = None
) -> TablePlace:
    """The place to which Spark would write under this name; `options` override Spark's."""
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    path = getattr(spark._jvm, "org.apache.hadoop.fs.Path")(root)
    # Nothing is escaped in it, so `file:/data/a b` is `/data/a b`.
    address = str(path.getFileSystem(configuration).makeQualified(path).toString())
    if address.startswith("file:"):
        address = f"/{address.removeprefix('file:').lstrip('/')}"
    parts = urlsplit(address)
    known = s3_options(configuration.get, parts.netloc) if parts.scheme in ("s3", "s3a") else {}
    return TablePlace(address, {**known, **(options or {})})


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


def s3_options(configured: Callable[[str], str | None], bucket: str) -> dict[str, str]:
    """Storage options for a bucket, from Hadoop's: `fs.s3a.bucket.<bucket>.*` before `fs.s3a.*`."""

    def value(name: str) -> str:
        own = configured(f"fs.s3a.bucket.{bucket}.{name}")
        return (own or configured(f"fs.s3a.{name}") or "").strip()

    options = {theirs: value(name) for name, theirs in _S3_OPTIONS.items()}
    endpoint = value("endpoint")
    # Amazon's own endpoints are derived from the region.
    if endpoint and not endpoint.endswith("amazonaws.com"):
        if "://" not in endpoint:
            is_plain = value("connection.ssl.enabled").lower() == "false"
            endpoint = f"{'http' if is_plain else 'https'}://{endpoint}"
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = "true" if endpoint.startswith("http:") else ""
    return {name: each for name, each in options.items() if each}
