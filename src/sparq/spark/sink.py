"""The sink `nsq`: publishes a DataFrame's rows, as a batch or in a stream's micro-batches.

1. Delivery is at-least-once: a task that Spark runs again publishes its rows again.
2. A task checks that all rows of its partition can become messages before it publishes the first:
   a row that cannot leaves its whole partition unpublished. Other partitions may already be
   published by then.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from sparq.spark.options import OptionError, SinkOptions
from sparq.spark.ranges import freeze_loaded_objects

if TYPE_CHECKING:
    from sparq.spark.encode import RowPosition

BODY_COLUMNS = ("body", "value")


class SinkColumns(NamedTuple):
    """Column positions of the body and of the topic; None: rows have no topic."""

    body: int
    topic: int | None


@dataclass
class PublishedCount(WriterCommitMessage):  # type: ignore[misc] # mypy does not follow pyspark
    """The number of messages that one task has published."""

    messages: int


def body_column(schema: StructType) -> SinkColumns:
    """Find the columns that a sink publishes; other columns are ignored.

    Raises:
        OptionError: there is no body column, or a column has a type that cannot be published.
    """
    places = {field.name.lower(): at for at, field in enumerate(schema.fields)}
    body = next((places[name] for name in BODY_COLUMNS if name in places), None)
    if body is None:
        raise OptionError(
            f"the DataFrame needs a column body or value; its columns are {', '.join(places)}"
        )
    if not isinstance(schema.fields[body].dataType, StringType | BinaryType):
        kind = schema.fields[body].dataType.simpleString()
        raise OptionError(
            f"column {schema.fields[body].name} is {kind}: cast it to string or binary"
        )
    topic = places.get("topic")
    if topic is not None and not isinstance(schema.fields[topic].dataType, StringType):
        raise OptionError("column topic is not a string: cast it to string")
    return SinkColumns(body, topic)


class _Writer:
    """Common base of the batch and stream writers."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        if not options.topic and columns.topic is None:
            raise OptionError("set the option topic, or add a column topic")
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> PublishedCount:
        """Publish the record batches of one task.

        Raises:
            RowError: a row cannot become a message; no row of the partition was published.
        """
        # Only executors need Arrow, and importing it takes a while.
        from sparq.spark.encode import RowPosition, Spool  # noqa: PLC0415 - executors only

        freeze_loaded_objects()
        context = TaskContext.get()
        with closing(Spool()) as spool:
            # All rows are kept before the first is published: Spark passes them once, and a row
            # that cannot become a message may be the last.
            first = 0
            for rows in iterator:
                spool.add(self._checked(rows, RowPosition(_where(context), first)))
                first += rows.num_rows
            return self._publish(spool.batches(), context.partitionId() if context else 0)

    def _checked(self, rows: Any, place: "RowPosition") -> Any:
        """Select the columns to publish and check that each row can become a message."""
        import pyarrow as pa  # noqa: PLC0415 - executors only

        from sparq.spark import encode  # noqa: PLC0415 - executors only

        options, bodies = self._options, rows.column(self._columns.body)
        size_max = encode.size_limit(options.max_msg_size, options.max_body_size)
        encode.check_bodies(bodies, size_max, place)
        if options.topic or self._columns.topic is None:
            return pa.RecordBatch.from_arrays([bodies], ["body"])
        topics = rows.column(self._columns.topic)
        encode.check_topics(topics, place)
        return pa.RecordBatch.from_arrays([bodies, topics], ["body", "topic"])

    def _publish(self, batches: Iterator[Any], partition: int) -> PublishedCount:
        """Publish rows that were checked."""
        from sparq.spark.encode import by_topic, multi_publishes  # noqa: PLC0415 - executors only
        from sparq.spark.publisher import MpubPublisher  # noqa: PLC0415 - executors only

        options, messages = self._options, 0
        with closing(MpubPublisher(options.cluster, partition)) as publisher:
            for rows in batches:
                bodies = rows.column(0)
                by_name = [(options.topic, bodies)]
                if rows.num_columns > 1:
                    by_name = list(by_topic(rows.column(1), bodies))
                for topic, chosen in by_name:
                    for mpub in multi_publishes(chosen, options.max_body_size):
                        publisher.publish(topic, mpub)
                        messages += mpub.messages
        return PublishedCount(messages)


def _where(context: TaskContext | None) -> str:
    """The task's partition, and the micro-batch if it belongs to one."""
    if context is None:
        return "partition 0"
    # Not a documented interface of Spark: only this text depends on it.
    batch = context.getLocalProperty("streaming.sql.batchId")
    of_batch = f" of batch {batch}" if batch else ""
    return f"partition {context.partitionId()}{of_batch}"


class NsqWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc] # mypy skips pyspark
    """Publishes a DataFrame."""


class NsqStreamWriter(
    _Writer,
    DataSourceStreamArrowWriter,  # type: ignore[misc] # mypy does not follow pyspark
):
    """Publishes the rows of each micro-batch."""
