"""Log files as messages: each line of new files, once, as rows of MESSAGE_DDL.

    nsqd       the file's address, as a URI
    id         16 hex digits: a hash of the address, plus `index`
    index      ascending within the file: the first byte of the line's block of BLOCK_BYTES (0 if
               the file is compressed), plus the number of the line in it, from 0
    timestamp  when the file was last modified
    body       the line without its line feed

Spark's file source lists the files, oldest first, and notes in the checkpoint which it has read. A
file counts as read by its address: what is appended later is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparq.pipeline.metrics import hashes_of
from sparq.pipeline.settings import SettingsError

MESSAGE_DDL = "nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP, body BINARY"
BATCH_BYTES = 64 << 20
"""Files of about this size are a batch, at least one; .gz files have five to twenty times as many
bytes of text."""
BLOCK_BYTES = 16 << 20
SPLITS = {
    # Where blocks begin must depend on the file alone: by default it depends on the number of cores
    # and on the other files, and a repeated batch could have other ids.
    "spark.sql.files.maxPartitionBytes": str(BLOCK_BYTES),
    "spark.sql.files.minPartitionNum": "1",
}
OPTIONS = {
    "lineSep": "\n",  # by default a lone CR within a line would end it, too
    "recursiveFileLookup": "true",
    "maxBytesPerTrigger": str(BATCH_BYTES),
    # By default a file is ignored that is a week older than the newest one that was read.
    "maxFileAge": "36500d",
}
EMPTY = pa.array([b"", b"\r"], pa.binary())


def file_messages(spark: SparkSession, place: str) -> DataFrame:
    """The lines of files as a stream; empty lines are left out. Sets SPLITS in the session.

    The place is a file, a folder or a Hadoop pattern. Raises SettingsError: nothing is there.
    """
    path = getattr(spark._jvm, "org.apache.hadoop.fs.Path")(place)
    system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not system.globStatus(path):
        raise SettingsError(f"--from={place}: there is no such file or folder")
    for name, value in SPLITS.items():
        spark.conf.set(name, value)
    lines = spark.readStream.format("text").options(**OPTIONS).load(place)
    columns = lines.select(
        F.col("_metadata.file_path").alias("nsqd"),
        F.col("_metadata.file_block_start").alias("index"),
        F.col("_metadata.file_modification_time").alias("timestamp"),
        F.col("value").cast("binary").alias("body"),
    )
    return columns.mapInArrow(numbered, MESSAGE_DDL)


def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the lines of a partition their ids and indexes.

    Before, `index` is the first byte of the line's block. The lines of a block follow each other.
    """
    last, lines = None, 0  # the block of the last line, and how many of its lines have come
    for batch in batches:
        paths, blocks = batch["nsqd"], batch["index"].to_numpy()
        is_new = pc.not_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
        starts = np.flatnonzero(np.append(True, is_new | (blocks[1:] != blocks[:-1])))
        counts = np.diff(starts, append=len(batch))
        within = np.arange(len(batch)) - np.repeat(starts, counts)
        if last == (paths[0].as_py(), blocks[0]):
            within[: counts[0]] += lines
        last, lines = (paths[-1].as_py(), blocks[-1]), within[-1] + 1
        index = blocks + within
        ids = hashes_of(paths).to_numpy() + index
        digits = pa.py_buffer(ids.astype(">i8").tobytes().hex().encode())
        offsets = pa.py_buffer(16 * np.arange(len(batch) + 1, dtype=np.int32))
        texts = pa.StringArray.from_buffers(len(batch), offsets, digits)
        columns = [paths, texts, pa.array(index), batch["timestamp"], batch["body"]]
        rows = pa.record_batch(columns, names=["nsqd", "id", "index", "timestamp", "body"])
        yield rows.filter(pc.invert(pc.is_in(batch["body"], EMPTY)))
