"""What a query reads: messages of its channel, or lines of files, as rows that a function makes.

The function runs in the task that reads the messages (`NsqDataSource.mapped`). Spark's count of
input rows is then that of the rows made, so each task ends with a row that says for `monitor` how
many messages it has read, and when the newest one was published.

Files are listed by Spark's file source, oldest first, which notes in the checkpoint those that it
has read: what is appended later is not read. Each line is a message:

    nsqd       the file's address, as a URI
    id         16 hex digits: a hash of the address, plus `index`
    index      ascending within the file: the first byte of the line's block of BLOCK_BYTES (0 if
               the file is compressed), plus the number of the line in it, from 0
    timestamp  when the file was last modified
    body       the line without its line feed
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sparq.client.errors import SparqClientError
from sparq.pipeline.metrics import hashes_of
from sparq.pipeline.monitor import MESSAGES, NEWEST_PUBLISHED
from sparq.pipeline.settings import Settings, SettingsError
from sparq.protocol.errors import RemoteError
from sparq.spark.connections import TopicConnections
from sparq.spark.data_source import Function, NsqDataSource
from sparq.spark.errors import SparkNsqError
from sparq.spark.options import SourceOptions

COLUMNS = ("nsqd", "id", "index", "timestamp", "body")
"""The columns of messages that functions get."""

MESSAGE_DDL = "nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP, body BINARY"
BATCH_BYTES = 64 << 20
"""Files of about this size are a batch; .gz files have 5 to 20 times as many bytes of text."""
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

ANSWER_SECONDS: Final = 3.0  # limit for the answer of an nsqlookupd
STARTING_SECONDS: Final = 30.0  # if a supervisor, for which `run_dir` is, starts it just now

_READ = [pa.field("messages", pa.int64()), pa.field("published", pa.timestamp("us", "UTC"))]


def channel(
    spark: SparkSession, options: Mapping[str, str], function: Function, schema: str
) -> DataFrame:
    """The stream of a channel, from the first message that it has not finished.

    `function` gets COLUMNS, and yields the rows, whose schema is given as DDL.
    """
    counted, columns = _counting(function, schema)
    # A format for each query. Queries that share one share a Java map of environment variables,
    # which Spark changes while it plans a query: a task of another query that was being serialized
    # at that moment could be read by no executor.
    name = f"nsq_{options['queryName']}"
    spark.dataSource.register(NsqDataSource.mapped(name, COLUMNS, counted, columns))
    options = {"startingOffsets": "earliest", **options}
    return _observed(spark.readStream.format(name).schema(columns).options(**options).load())


def files(spark: SparkSession, place: str, function: Function, schema: str) -> DataFrame:
    """The stream of the lines of files; the rest as in `channel`."""
    counted, columns = _counting(function, schema)
    return _observed(file_messages(spark, place).mapInArrow(counted, columns))


def with_batch_time(rows: DataFrame) -> DataFrame:
    """Add `batch_ms` BIGINT, the time of the batch, also if it is repeated, in ms since 1970."""
    return rows.withColumn("batch_ms", F.unix_millis(F.current_timestamp()))


def _counting(function: Function, schema: str) -> tuple[Function, StructType]:
    """The function, with rows of what each task has read after its own; and their columns."""
    own = to_arrow_schema(StructType.fromDDL(schema), timezone="UTC")
    columns = pa.schema([*own, *_READ])

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages, newest = 0, None

        def seen() -> Iterator[pa.RecordBatch]:
            nonlocal messages, newest
            for batch in batches:
                messages += len(batch)
                latest = pc.max(batch["timestamp"])
                newest = latest if newest is None else max(newest, latest, key=lambda at: at.value)
                yield batch

        for rows in function(seen()):
            nothing = [pa.nulls(len(rows), one.type) for one in _READ]
            yield pa.record_batch([*rows.columns, *nothing], schema=columns)
        read = {"messages": messages, "published": newest and newest.as_py()}
        yield pa.RecordBatch.from_pylist([read], schema=columns)

    return counted, from_arrow_schema(columns)


def _observed(rows: DataFrame) -> DataFrame:
    """The function's own rows; the others become figures of the batch."""
    figures = [
        F.sum("messages").alias(MESSAGES),
        (F.max(F.unix_micros("published")) / 1e6).alias(NEWEST_PUBLISHED),
    ]
    observed = rows.observe("sparq_read", *figures)
    return observed.where("messages IS NULL").drop(*(one.name for one in _READ))


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
    """Give lines their ids and indexes; before, `index` is the first byte of the line's block."""
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


def check_cluster(settings: Settings) -> None:
    """Find the nsqds and connect to each. Raises SettingsError: none answers, or one refuses us.

    Nothing is created. One nsqlookupd is enough, and queries wait for an nsqd that is out of reach.
    """
    # No channel: whether nsqd refuses it is known only when a query asks for it.
    given = {**settings.cluster_options, "topic": settings.topic}
    fleet = TopicConnections(SourceOptions.of(given, stream=None))
    deadline = time.monotonic() + (STARTING_SECONDS if settings.run_dir else ANSWER_SECONDS)
    try:
        fleet.refresh()
        while not fleet.give_up():  # until an nsqlookupd has answered
            if time.monotonic() >= deadline:
                reasons = "; ".join(fleet.out_of_reach)
                raise SettingsError(f"--lookupd-http-address: no nsqlookupd answers ({reasons})")
            time.sleep(0.2)
            fleet.refresh()
    except RemoteError as refusal:
        # A valid secret may not allow this topic without a channel.
        if refusal.code != "E_UNAUTHORIZED":
            raise SettingsError(f"--source: an nsqd refuses these options: {refusal}") from None
    except (SparqClientError, SparkNsqError) as error:
        flag = "--lookupd-http-address" if "nsqlookupd" in str(error) else "--source"
        raise SettingsError(f"{flag}: {error}") from None
    finally:
        fleet.close()
