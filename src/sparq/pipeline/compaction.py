"""Merges small files of the archive into large ones, hour by hour; readers are not affected.

    archive/_compaction/<token>.json                       record of a merge: the files it replaces
    archive/date=D/hour=H/compacted-<token>-*.parquet      the merged files

1. A merge takes effect with one commit to the archive's log: before it readers see the small files,
   after it the large ones.
2. If it is killed at any point, a merge has either taken effect or left files that do not count.
   Its record names them all, and a later clean-up deletes those that are not live.
3. Replaced files stay for `keep_s`, for readers that are still reading them.
4. Files of the newest batch of the query that writes the archive are not merged: Spark may run that
   batch again, and these files show that the archive has it already.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from sparq.pipeline.archive_log import ArchiveLog, Snapshot
from sparq.pipeline.hadoop_files import FileStatus, HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "_compaction"
PREFIX = "compacted-"
MIB = 1 << 20

_OF_A_BATCH = re.compile(r"([0-9a-f]{8})-(\d+)-")


@dataclass(frozen=True, slots=True)
class Sizes:
    """When files are merged.

    Attributes:
        small_bytes: a file with fewer bytes is small.
        target_bytes: small files with this many bytes in total are merged at once.
        merge_bytes_max: maximum bytes of one merge.
        settle_s: an hour without a new file for this time is considered over.
        final_s: after this time, small files that came late are merged with a large one.
        small_count: this many small files are merged in an hour that also has a large one.
        keep_s: how long replaced files stay.
    """

    small_bytes: int = 64 * MIB
    target_bytes: int = 128 * MIB
    merge_bytes_max: int = 1024 * MIB
    settle_s: int = 600
    final_s: int = 86_400
    small_count: int = 8
    keep_s: int = 3600


SIZES = Sizes()


def due(files: Iterable[FileStatus], sizes: Sizes, now_ms: int) -> list[list[FileStatus]]:
    """Files to merge, a list for each hour; the hour with the most files first."""
    ordered = sorted(files, key=lambda one: (one.directory, one.modified_ms, one.uri))
    hours = [list(hour) for _, hour in groupby(ordered, lambda one: one.directory)]
    found = [chosen for hour in hours if (chosen := _due_in_hour(hour, sizes, now_ms))]
    return sorted(found, key=len, reverse=True)


def _due_in_hour(hour: list[FileStatus], sizes: Sizes, now_ms: int) -> list[FileStatus]:
    """The files of one hour to merge into one or more files; empty if none."""
    small = [one for one in hour if one.size < sizes.small_bytes]
    large = sorted((one for one in hour if one.size >= sizes.small_bytes), key=lambda one: one.size)
    if not small or len(hour) < 2:
        return []
    in_all = sum(one.size for one in small)
    quiet_s = (now_ms - max(one.modified_ms for one in small)) / 1000
    if large and quiet_s >= sizes.final_s:
        small = [*small, large[0]]
    elif len(small) < 2:
        return []
    elif in_all < sizes.target_bytes:
        # With a large file in the hour, a few small ones stay: merged they would still be a small
        # file.
        few = bool(large) and in_all < sizes.small_bytes and len(small) < sizes.small_count
        if quiet_s < sizes.settle_s or few:
            return []
    return _within(small, sizes.merge_bytes_max)


def _within(files: list[FileStatus], bytes_max: int) -> list[FileStatus]:
    """The first files up to `bytes_max` bytes in total, but at least two."""
    chosen, in_all = files[:2], sum(one.size for one in files[:2])
    for one in files[2:]:
        in_all += one.size
        if in_all > bytes_max:
            break
        chosen.append(one)
    return chosen


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: live files before and after, and files deleted."""

    files_before: int
    files_after: int
    deleted: int


class Compaction:
    """Merges the files of one archive.

    Args:
        spark: the session whose jobs read and write the files.
        root: the archive's folder, a path or a URI of any Hadoop file system.
        sizes: when files are merged.
    """

    def __init__(self, spark: SparkSession, root: str, sizes: Sizes = SIZES) -> None:
        self._spark = spark
        self._root = root.rstrip("/")
        self._sizes = sizes
        self._files = HadoopFiles(spark)
        self._log = ArchiveLog(self._files, root)

    def between_batches(self, prefix: str, now_ms: int) -> int:
        """Merge files of one hour if due, and delete files that were replaced long ago.

        Args:
            prefix: prefix of the names of the newest batch's files, which are not merged.
            now_ms: milliseconds since 1970.
        Returns:
            The number of merged files.
        """
        free = [one for one in self._log.read().files if not one.name.startswith(prefix)]
        chosen = next(iter(due(free, self._sizes, now_ms)), [])
        if chosen:
            self.merge(chosen, now_ms)
        self.clean_up(now_ms)
        return len(chosen)

    def all_due(self, now_ms: int) -> Compacted:
        """Merge all files that are due, hour by hour.

        A query may write to the archive at the same time if the checkpoint's file manager refuses
        to replace files, as on a local disk and HDFS.
        """
        before = self._log.read().files
        while chosen := next(iter(due(_settled(self._log.read()), self._sizes, now_ms)), []):
            if not self.merge(chosen, now_ms):
                break
        deleted = self.clean_up(now_ms)
        return Compacted(len(before), len(self._log.read().files), deleted)

    def merge(self, chosen: list[FileStatus], now_ms: int) -> bool:
        """Replace some files of one hour by one or more larger ones.

        Returns:
            Whether the merge took effect; it does not if one of the files was replaced meanwhile.
        Raises:
            RuntimeError: the written files have another number of rows; they do not count then.
        """
        token = uuid.uuid4().hex
        hour = self._files.path_of(chosen[0].directory)
        uris = [one.uri for one in chosen]
        note = {"at_ms": now_ms, "hour": hour, "token": token, "replaced": uris}
        # Before any file is written: whatever a killed merge leaves can then be found.
        self._files.create(f"{self._root}/{FOLDER}/{token}.json", json.dumps(note).encode())
        # All columns of any of the files, including columns that a later version added.
        reader = self._spark.read.option("mergeSchema", "true")
        clicks = reader.parquet(*map(self._files.path_of, uris))
        # Always fewer files than before, so that merging comes to an end.
        in_all = sum(one.size for one in chosen)
        count = max(1, min(in_all // self._sizes.target_bytes, len(chosen) - 1))
        writer = clicks.coalesce(count).write.mode("append")
        writer.option("mapreduce.output.basename", f"{PREFIX}{token}").parquet(hour)
        made = self._made(hour, token)
        # Rows are counted in what was written: after the commit the small files will be deleted.
        written = self._spark.read.parquet(*(self._files.path_of(one.uri) for one in made)).count()
        if written != clicks.count():
            raise RuntimeError(
                f"a merge in {hour} has {written:,} rows instead of {clicks.count():,}"
            )
        return self._commit(chosen, made)

    def clean_up(self, now_ms: int) -> int:
        """Delete files that merges replaced, or left when they were killed, more than `keep_s` ago.

        Returns:
            The number of deleted files.
        """
        notes = self._files.list(f"{self._root}/{FOLDER}")
        last_ms = now_ms - self._sizes.keep_s * 1000
        old = [one for one in notes if one.name.endswith(".json") and one.modified_ms < last_ms]
        live = {one.uri for one in self._log.read().files} if old else set()
        deleted = 0
        for one in old:
            address = self._files.path_of(one.uri)
            note = json.loads(self._files.read(address))
            made = [one.uri for one in self._made(note["hour"], note["token"])]
            for uri in {*note["replaced"], *made} - live:
                self._files.delete(self._files.path_of(uri))
                deleted += 1
            # The record goes last: a clean-up that is killed is done again.
            self._files.delete(address)
        return deleted

    def _made(self, hour: str, token: str) -> list[FileStatus]:
        prefix = f"{PREFIX}{token}"
        return [one for one in self._files.list(hour) if one.name.startswith(prefix)]

    def _commit(self, replaced: list[FileStatus], made: list[FileStatus]) -> bool:
        while True:
            before = self._log.read()
            if not {one.uri for one in replaced} <= {one.uri for one in before.files}:
                return False
            try:
                self._log.commit(before, before.changed(replaced, made))
            except FileExistsError:
                continue  # the writer of the clicks committed first: read again
            return True


def _settled(snapshot: Snapshot) -> list[FileStatus]:
    """The files that do not belong to the newest batch of any query."""
    batches = [batch_of(one) for one in snapshot.files]
    # Of equal keys a dict keeps the last value: after sorting, each query's newest batch.
    newest = dict(sorted(batch for batch in batches if batch is not None))
    return [
        one
        for one, batch in zip(snapshot.files, batches, strict=True)
        if batch is None or batch[1] < newest[batch[0]]
    ]


def batch_of(file: FileStatus) -> tuple[str, int] | None:
    """The query and batch that wrote a file; None for a merged file."""
    found = _OF_A_BATCH.match(file.name)
    return (found[1], int(found[2])) if found else None
