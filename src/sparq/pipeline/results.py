"""Output of a query's batches: rows in files, a folder per batch, and the same as JSON on topics.

    <place>/batch=12/part-00000-*.parquet    written by executors
    <place>/batch=12/_SUCCESS                written last; a folder without it does not count

1. A batch that is run again replaces its folder. So the rows of a batch count once, whichever
   process is killed at any moment. Readers read whole folders.
2. Executors publish to topics, at least once. They read the messages back from the files that the
   batch has just written, so nothing is computed twice, and a batch that is run again publishes the
   content of its files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from sparq.pipeline.checkpoints import readable_as_state
from sparq.pipeline.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparq.pipeline.folders import FolderAddresses

MARK = "_SUCCESS"
COMPRESSION = "zstd"


def folder_of(place: str, batch_id: int) -> str:
    """The folder of one batch; Spark and Arrow read its number as the column `batch`."""
    return f"{place}/batch={batch_id}"


def write(rows: DataFrame, place: str, batch_id: int) -> None:
    """Write a batch's rows into its folder; replaces the rows of an earlier attempt."""
    writer = rows.write.mode("overwrite").option("compression", COMPRESSION)
    writer.parquet(folder_of(place, batch_id))


def discard(spark: SparkSession, place: str, batch_id: int) -> None:
    """Delete the files of an earlier attempt at a batch that now has no rows."""
    HadoopFiles(spark).delete_tree(folder_of(place, batch_id))


def frame(spark: SparkSession, place: str, ddl: str) -> DataFrame:
    """All rows of a place, with these columns; no rows before the first batch."""
    marks = HadoopFiles(spark).glob(f"{place}/batch=*/{MARK}")
    if not marks:
        return spark.createDataFrame([], ddl)
    folders = [mark.removesuffix(f"/{MARK}") for mark in marks]
    return spark.read.schema(ddl).parquet(*folders)


def local_rows(directory: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a place on a local disk, with these columns; no rows before the first batch."""
    folders = sorted(mark.parent for mark in directory.glob(f"batch=*/{MARK}"))
    files = [file for folder in folders for file in sorted(folder.glob("part-*.parquet"))]
    tables = [pq.read_table(file, columns=schema.names, partitioning=None) for file in files]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


BODIES = pa.schema([("body", pa.binary())])
BODY_DDL = "body BINARY"


@dataclass(frozen=True, slots=True)
class ResultTopics:
    """The topics for results.

    Attributes:
        options: options of the sink `nsq`: the addresses.
        minutes, rejected, findings: names of topics.
    """

    options: dict[str, str] = field(default_factory=dict)
    minutes: str = "clicks.metrics"
    rejected: str = "clicks.rejected"
    findings: str = "clicks.spam"

    def publish(self, topic: str, bodies: DataFrame) -> None:
        """Publish rows of `body` BINARY; returns when all are acknowledged."""
        writer = bodies.write.format("nsq").mode("append")
        writer.options(topic=topic, **self.options).save()


def written_as_bodies(
    spark: SparkSession, folder: str, ddl: str, to_body: Callable[[dict[str, Any]], bytes]
) -> DataFrame:
    """Each row of a folder as a message. Only for few rows, since Python makes them one by one."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            bodies = pa.array(map(to_body, batch.to_pylist()), pa.binary())
            yield pa.record_batch([bodies], schema=BODIES)

    return spark.read.schema(ddl).parquet(folder).mapInArrow(made, BODY_DDL)


Writer = Callable[["DataFrame", str, int], None]
"""Writes a batch's rows of one kind into its folder of a place, and publishes them to a topic."""


class Sink(ABC):
    """A function for foreachBatch: writes a batch's rows by their `kind` to disk and topics.

    Args:
        places: the folders for the files.
        topics: the topics for results; None: results are not published.
    """

    query: ClassVar[str]

    def __init__(self, places: FolderAddresses, topics: ResultTopics | None = None) -> None:
        self._places = places
        self._topics = topics

    @abstractmethod
    def writers(self) -> dict[str, tuple[str, Writer]]:
        """For each kind of row, its place and the function that writes it."""

    @abstractmethod
    def closing(self, spark: SparkSession, checkpoint: str) -> DataFrame:
        """The output rows for everything that is open in the state of the stopped query."""

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Process one micro-batch, also if it is repeated."""
        # Each kind is written by a job of its own: without `persist`, each would run the stateful
        # stage of the query again.
        rows, writers = rows.persist(), self.writers()
        try:
            counts = rows.agg(*(F.count_if(F.col("kind") == kind) for kind in writers)).first()
            assert counts is not None
            for (kind, (place, write_kind)), count in zip(writers.items(), counts, strict=True):
                if count:
                    write_kind(rows.where(F.col("kind") == kind), place, batch_id)
                else:
                    discard(rows.sparkSession, place, batch_id)
        finally:
            rows.unpersist()

    def close(self, spark: SparkSession, next_batch: int) -> None:
        """Write the open visits as the next batch.

        Args:
            spark: the session; the query has stopped.
            next_batch: the number of the next batch.
        """
        with readable_as_state(self._places.checkpoint_of(self.query)) as checkpoint:
            self(self.closing(spark, checkpoint), next_batch)
