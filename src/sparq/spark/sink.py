"""The sink `nsq`: publishes a DataFrame's rows, of a batch or of a stream's micro-batches.

Delivery is at least once: a task that Spark runs again publishes its rows again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from sparq.protocol.names import is_valid_name, quote
from sparq.spark.errors import RowError
from sparq.spark.options import OptionError, SinkOptions
from sparq.spark.worker import settle

BODY_COLUMNS = ("body", "value")


class SinkColumns(NamedTuple):
    """Where in a row the body is, and the topic, if rows have one."""

    body: int
    topic: int | None


@dataclass
class Published(WriterCommitMessage):  # type: ignore[misc] # mypy does not follow pyspark
    """What one task has published."""

    messages: int


def body_column(schema: StructType) -> SinkColumns:
    """Finds the columns that matter to a sink; the others are left out.

    Raises:
        OptionError: there is no body, or a column has a type that cannot be published.
    """
    places = {field.name.lower(): at for at, field in enumerate(schema.fields)}
    body = next((places[name] for name in BODY_COLUMNS if name in places), None)
    if body is None:
        raise OptionError(f"a column body (or value) is needed, not {', '.join(places)}")
    if not isinstance(schema.fields[body].dataType, StringType | BinaryType):
        kind = schema.fields[body].dataType.simpleString()
        raise OptionError(
            f"column {schema.fields[body].name} is {kind}: cast it to string or binary"
        )
    topic = places.get("topic")
    if topic is not None and not isinstance(schema.fields[topic].dataType, StringType):
        raise OptionError("column topic is no string")
    return SinkColumns(body, topic)


class _Writer:
    """What the batch and the stream writer have in common."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        if not options.topic and columns.topic is None:
            raise OptionError("the option topic is needed, or a column topic")
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publishes the record batches of one task."""
        # Only executors need Arrow, and importing it takes a while.
        from sparq.spark.encode import multi_publishes  # noqa: PLC0415 - executors only
        from sparq.spark.publisher import Publisher  # noqa: PLC0415 - executors only

        settle()
        options, context = self._options, TaskContext.get()
        publisher = Publisher(options.cluster, context.partitionId() if context else 0)
        messages = 0
        try:
            for rows in iterator:
                for topic, bodies in self._topics(rows):
                    for mpub in multi_publishes(
                        bodies, options.max_msg_size, options.max_body_size
                    ):
                        publisher.publish(topic, mpub)
                        messages += mpub.messages
        finally:
            publisher.close()
        return Published(messages)

    def _topics(self, rows: Any) -> Iterator[tuple[str, Any]]:
        """The bodies of a record batch, by topic."""
        from sparq.spark.encode import by_topic  # noqa: PLC0415 - executors only

        bodies = rows.column(self._columns.body)
        if self._options.topic or self._columns.topic is None:
            yield self._options.topic, bodies
            return
        for topic, chosen in by_topic(rows.column(self._columns.topic), bodies):
            if not is_valid_name(topic):
                raise RowError(f"not a legal topic name: {quote(topic)}")
            yield topic, chosen


class NsqWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc] # mypy skips pyspark
    """Publishes a DataFrame."""


class NsqStreamWriter(
    _Writer,
    DataSourceStreamArrowWriter,  # type: ignore[misc] # mypy does not follow pyspark
):
    """Publishes the rows of each micro-batch."""
