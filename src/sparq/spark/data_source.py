"""The data source `nsq`: the class that Spark looks up by name, its columns and its options.

The readers and writers are in `source` and `sink`; they are created only when Spark asks for them.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sparq.spark.connections import check_peers
from sparq.spark.options import OPTIONS, OptionError, SinkOptions, SourceOptions, check_names
from sparq.spark.ranges import SCHEMA
from sparq.spark.sink import NsqStreamWriter, NsqWriter, published_columns
from sparq.spark.source import (
    NsqBatchReader,
    NsqFilteredReader,
    NsqStreamReader,
    RefusedStreamReader,
)

COLUMNS: Final = {field.name: field.dataType.simpleString() for field in from_arrow_schema(SCHEMA)}
"""The columns of a read and their types in Spark."""

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Turns the record batches of a partition into others; runs on executors."""


class NsqDataSource(DataSource):  # type: ignore[misc] # mypy does not follow pyspark
    """Reads and writes topics of sparq's nsqd.

    Name: `nsq`

    Schema
    ------
    A read gives one row per message. A write takes the column `body` (or `value`), and `topic` and
    `defer_ms` if they are there: the delay in milliseconds after which nsqd delivers the message at
    the earliest; null and 0: none.

    =========  =========  =====================================================================
    topic      STRING     the topic; always present, so the schema stays when topics are added
    nsqd       STRING     ``host:port`` of the nsqd that holds the message, as first discovered
    id         STRING     the message id: 16 hex digits, unique in its topic over all nsqds
    index      BIGINT     the message's index in its nsqd's log of the topic; rises, with gaps
    timestamp  TIMESTAMP  when nsqd received the message, in microseconds (nsqd keeps nanoseconds)
    body       BINARY     the message body
    =========  =========  =====================================================================

    If the read has a schema with fewer of these columns, only those are decoded. ``.select`` alone
    does not reach a Python source: all columns are decoded then.

    Options
    -------
    {options}

    Raises
    ------
    OptionError
        An option is missing, wrong or misspelt; the text names it.
    WrongPeerError, NoRangesError, TlsError, AuthRequiredError
        At an address there is another daemon or port than the option takes, an nsqd that cannot
        read ranges of its log (Go's cannot), or one that requires or lacks TLS or a secret.
    UnreachableError, DataLossError, SupersededError
        An nsqd stayed unreachable, messages are lost, or another query reads the channel now.
    RowError
        nsqd would refuse the body, topic or delay of a row to write.

    Notes
    -----
    An offset is ``{"<nsqd>/<log id>": {"index": i, "ordinal": n}}``: the query has read the log up
    to index i, which is n messages into the log. A range of a log always holds the same messages,
    so a query with a checkpoint and an idempotent or transactional sink gets each message exactly
    once.
    Certificates and keys must be on the driver and on every executor. The secret is in no log line,
    plan, progress or error, but Spark sends it to the executors: protect that connection too.
    A topic delivers nothing before it has a channel, nor while it is paused, and a read sees
    nothing then either: create a channel before a batch read of a topic that has none.
    Deferred messages are read at their position in the log, that is, when they were published.
    Writing is at-least-once. The save mode must be set to ``append``, which is not the default.

    Examples
    --------
    >>> clicks = (
    ...     spark.readStream.format("nsq")
    ...     .option("topic", "clicks")
    ...     .option("channel", "archive")
    ...     .option("lookupd_http_addresses", "127.0.0.1:4161")
    ...     .load()
    ... )
    >>> query = clicks.writeStream.format("parquet").option("path", "archive") # doctest: +SKIP
    >>> (
    ...     spark.range(3).selectExpr("CAST(id AS STRING) AS body")
    ...     .write.format("nsq").mode("append")
    ...     .option("topic", "numbers")
    ...     .option("nsqd_tcp_addresses", "127.0.0.1:4150")
    ...     .save()
    ... )
    """

    @classmethod
    def name(cls) -> str:
        """The format's name in Spark."""
        return "nsq"

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options' names.

        Raises:
            OptionError: an option does not exist.
        """
        super().__init__(options)
        check_names(options)

    def schema(self) -> str:
        """The columns of a read as DDL; Spark calls this in `load()`, before any query runs.

        Raises:
            OptionError: an option is missing or wrong.
            WrongPeerError, NoRangesError, TlsError, AuthRequiredError: the daemon at an address
                cannot be read from. One that does not answer is left to the query.
        """
        # Checked here, since `load()` raises an error of this method before a query runs; Spark 4.3
        # would hide one of `streamReader` (`RefusedStreamReader`).
        options = SourceOptions.of(self.options, stream=None)
        check_peers(options.cluster, options.topics)
        return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())

    @classmethod
    def mapped(
        cls, name: str, columns: Sequence[str], function: Function, schema: str
    ) -> "type[NsqDataSource]":
        """A source with the same options, whose rows a function makes of the messages.

        It runs in the task that reads the messages. With `mapInArrow` after the source, Spark would
        carry all messages from one Python process to another, and take up to half as long again.

        Args:
            name: the format's name; register the class with `spark.dataSource.register`.
            columns: those that the function gets.
            function: makes the rows.
            schema: the columns that it yields, as DDL.
        """
        # Pickled apart: processes of Spark that only plan a query need not load its modules.
        pickled = dumps(function)

        class MappedSource(cls):  # type: ignore[misc, valid-type] # mypy takes cls for a variable
            @classmethod
            def name(cls) -> str:
                return name

            def schema(self) -> str:
                super().schema()
                return schema

            def _what(self, _: Any) -> tuple[Sequence[str], bytes | None]:
                return columns, pickled

        return MappedSource

    def streamReader(self, schema: StructType) -> NsqStreamReader | RefusedStreamReader:
        """Create a reader that follows topics' logs as they grow."""
        try:
            options = SourceOptions.of(self.options, stream=True)
            return NsqStreamReader(options, *self._what(schema))
        except OptionError as error:
            return RefusedStreamReader(error)

    def reader(self, schema: StructType) -> NsqBatchReader:
        """Create a reader of the messages that topics' logs hold."""
        options = SourceOptions.of(self.options, stream=False)
        made = NsqFilteredReader if options.pushes_predicates else NsqBatchReader
        return made(options, *self._what(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """Create a writer that publishes rows."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use mode('append')")
        return NsqWriter(self._sink_options(), published_columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        """Create a writer that publishes the rows of each micro-batch."""
        del overwrite  # a stream's output mode says nothing about a topic
        return NsqStreamWriter(self._sink_options(), published_columns(schema))

    def _what(self, schema: StructType) -> tuple[Sequence[str], bytes | None]:
        """The columns to decode, and the function for their rows."""
        return _columns(schema), None

    def _sink_options(self) -> SinkOptions:
        options = SinkOptions.of(self.options)
        check_peers(options.cluster, None)
        return options


def _columns(schema: Any) -> list[str]:
    """The columns to read: all, or those of the user's schema.

    Raises:
        OptionError: the schema has other columns or types, or a column that is not nullable.
    """
    for field in schema.fields:
        # Spark compares the first record batch with this schema exactly (names, order, types,
        # nullability), but only in a task, after the query has started.
        if COLUMNS.get(field.name) != field.dataType.simpleString() or not field.nullable:
            expected = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise OptionError(f"the schema may only have these columns, all nullable: {expected}")
    return list(schema.fieldNames())


# `OPTIONS` is the only place that declares options. With `python -OO` there is no docstring.
NsqDataSource.__doc__ = (NsqDataSource.__doc__ or "").replace(
    "{options}", textwrap.indent(OPTIONS, "    ").strip()
)
