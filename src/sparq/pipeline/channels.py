"""What a query reads: messages of its channel, or lines of files, as rows that a function makes.

The function runs in the task that reads the messages, before Spark sees them (`NsqDataSource.
mapped`). Spark's count of input rows is then that of the rows made, so each task ends with a row
that says how many messages it has read, and when the newest one was published, for `monitor`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sparq.client.errors import SparqClientError
from sparq.pipeline.files import file_messages
from sparq.pipeline.monitor import MESSAGES, NEWEST_PUBLISHED
from sparq.pipeline.settings import Settings, SettingsError, cluster_options
from sparq.protocol.errors import RemoteError
from sparq.spark.connections import TopicConnections
from sparq.spark.data_source import Function, NsqDataSource
from sparq.spark.errors import SparkNsqError
from sparq.spark.options import SourceOptions

COLUMNS = ("nsqd", "id", "index", "timestamp", "body")
"""The columns of messages that functions get."""

ANSWER_SECONDS: Final = 3.0
"""Time limit for the answer of an nsqlookupd."""
STARTING_SECONDS: Final = 30.0
"""The same limit if a supervisor, for which `run_dir` is, starts the nsqlookupds just now."""

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
    """Add `batch_ms` BIGINT: the time of the rows' batch, in ms since 1970.

    Spark keeps this time in its offset log, so a repeated batch has the same.
    """
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


def check_cluster(settings: Settings) -> None:
    """Find the nsqds and connect to each, to report mistakes before any query starts.

    Nothing is created. One nsqlookupd that answers is enough, and queries wait for an nsqd that is
    out of reach. Raises SettingsError: no nsqlookupd answers, something else answers, or an nsqd
    does not accept the options for TLS and AUTH.
    """
    # No channel: whether nsqd refuses it is known only when a query asks for it.
    given = {**cluster_options(settings), "topic": settings.topic}
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
