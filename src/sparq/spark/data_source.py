"""The data source `nsq`: the class that Spark looks up by name, its columns and its options.

The readers and writers are in `source`, `reader` and `sink`; they are created only when Spark asks
for them.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparq.spark.discovery import check_peers
from sparq.spark.options import OptionError, SinkOptions, check_names
from sparq.spark.reader import NsqBatchReader, NsqFilteredReader
from sparq.spark.sink import NsqStreamWriter, NsqWriter, body_column
from sparq.spark.source import NsqStreamReader, RefusedStreamReader
from sparq.spark.source_options import SourceOptions

# The columns of `decode.SCHEMA`. Not derived from it: that module loads Arrow, which only executors
# need.
COLUMNS: Final = {
    "topic": "string",
    "nsqd": "string",
    "id": "string",
    "index": "bigint",
    "timestamp": "timestamp",
    "body": "binary",
}


class NsqDataSource(DataSource):  # type: ignore[misc] # mypy does not follow pyspark
    """Reads and writes topics of sparq's nsqd.

    Name: `nsq`

    Schema
    ------
    A read gives one row per message; a write takes the column `body` (or `value`) and, if present,
    `topic`.

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
    Reading and writing:

    nsqd_tcp_addresses : str
        Comma-separated ``host:port`` of the nsqds. Give either this or:
    lookupd_http_addresses : str
        Comma-separated ``host:port`` (HTTP port) or URLs of nsqlookupds. A running query picks up
        new nsqds.
    nsqdTimeoutMs : int, default 60000
        How long an nsqd that the query needs may be unreachable before the query fails. With
        failOnDataLoss=false an availableNow query continues without it instead. If this option is
        not set, a query without a checkpoint waits only 5 s, so that a mistyped address is
        reported soon.
    tls_v1 : bool, default false
        Use TLS with the nsqds. Their certificates and host names are verified.
    tls_root_ca_file, tls_cert, tls_key : str
        PEM files, on the driver and on every executor: the authorities to trust instead of the
        system's; the client certificate and its key.
    tls_min_version : str, default tls1.2
        The oldest TLS version to accept.
    tls_insecure_skip_verify : bool, default false
        Accept any certificate without verifying it.
    snappy, deflate : bool, default false
        Compress the connection with one of the two, if nsqd offers it.
    deflate_level : int, default 6
        From 1 to 9.
    auth_secret : str
        For nsqds that require AUTH. No log line, plan, progress or error shows it. But it is part
        of the options that Spark sends to the executors, so protect that connection too.
    auth_without_tls : bool, default false
        Send the secret without TLS as well, in plain text.
    lookupd_authorization : bool, default true
        Send the secret to nsqlookupds, as ``Authorization: Bearer``.

    Reading:

    topic : str
        The topic to read. Give one of topic, topics and topicsPattern.
    topics : str
        Comma-separated topics; the column `topic` tells which one a row is from.
    topicsPattern : str
        A regular expression (Python's) that must match a topic's whole name. It applies to all
        topics that nsqlookupd lists; ephemeral topics have no log and are skipped. Topics that
        appear while the query runs are added to it. Needs lookupd_http_addresses.
    channel : str
        The channel whose cursor follows the query's commits, in each topic: its depth is the
        query's lag, and messages after the cursor stay in the log. Required for streams; a batch
        read uses none. The channel cannot have consumers at the same time.
    queryName : str
        Name that nsqd and nsqadmin show for the reader of the channel. Spark does not pass a source
        the name that the writer's ``queryName()`` gives to a query.
    startingOffsets : str
        Where a query without a checkpoint begins: ``earliest``, ``latest``, ``committed`` (the
        channel's cursor) or JSON with an index or one of these words per nsqd,
        ``{"127.0.0.1:4150": 12345}``, or with several topics
        ``{"clicks": {"127.0.0.1:4150": 12345}, "views": "latest"}``. Logs that the JSON does not
        name begin at the earliest message. Default: ``committed`` for a stream, ``earliest`` for a
        batch. If the channel's consumers finished messages out of order, its cursor is at the first
        unfinished one: messages finished after it are read again. An nsqd that joins later begins
        at the earliest message, or with ``committed`` and ``latest`` at its channel's cursor; a
        topic that joins later and does not have the channel begins at its first message.
    startingTimestamp : int
        Instead: at the first message published at or after this time, in ms since 1970.
    endingOffsets : str, default latest
        Where a batch read ends: ``latest`` or JSON as above.
    endingTimestamp : int
        Instead: before the first message published at or after this time, in ms since 1970.
    pushDownPredicate : bool, default false
        Whether a batch read skips messages that predicates on the column `timestamp` exclude,
        without reading them. Spark requires its own setting as well:
        ``spark.sql.python.filterPushdown.enabled=true``. Call ``load`` again for each query: Spark
        4.3 keeps the predicates that one query pushed down for later queries of the same DataFrame
        that push none down, and those queries then lack rows. See docs/spark.md, also about clocks.
    maxOffsetsPerTrigger : int
        Maximum number of messages in one micro-batch, over all nsqds and topics. Default: no limit.
    maxBytesPerTrigger : size like ``64m``
        Maximum stored bytes in one micro-batch: the bodies, 38 bytes for each message, and batch
        headers. Counted in extents of the log: 64 to 128 KiB, or one larger MPUB. Each log
        with unread messages gives at least one extent. Default: no limit.
    minOffsetsPerTrigger : int
        A micro-batch waits until this many messages are available, or maxTriggerDelay has passed,
        or maxBytesPerTrigger is reached. The first batch after a start does not wait, and neither
        does availableNow.
    maxTriggerDelay : time like ``30s``, default 15m
        How long a micro-batch waits for minOffsetsPerTrigger, counted from the previous batch.
    minPartitions : int
        Approximate number of partitions in a batch. Set it to the number of the executors' cores
        (``spark.sparkContext.defaultParallelism``), which Spark does not pass to a source. Default:
        one for each 50,000 messages, at most 64. The value is stored in the offset: a batch that
        runs again has the same partitions.
    maxRecordsPerPartition : int, default 1000000
        A longer range is split.
    failOnDataLoss : bool, default true
        Whether the query fails when messages that it has not read are lost: deleted, damaged, or
        gone with a deleted topic. If false, it logs how many and continues.

    Writing:

    topic : str
        The topic to write to; takes precedence over a column `topic`.
    max_msg_size : int, default 1048576
        nsqd's limit for one message body, in bytes; a larger one is an error.
    max_body_size : int, default 5242880
        nsqd's limit for one MPUB body, in bytes.

    Raises
    ------
    OptionError
        An option is missing, wrong or misspelt; the text names it.
    WrongPeerError
        At an address there is another daemon or another port than the option takes.
    UnreachableError
        An nsqd that the query needs stayed unreachable.
    DataLossError
        Messages are lost (failOnDataLoss).
    SupersededError
        Another query reads the channel now.
    TlsError, AuthRequiredError
        An nsqd does not offer TLS or is not trusted, or requires a secret.
    NoRangesError
        An nsqd cannot read ranges of its log (Go's cannot); the error names it.
    RowError
        A row to write has no body, an empty body, a body that is too large, or no topic.

    Notes
    -----
    An offset is ``{"<nsqd>/<log id>": {"index": i, "ordinal": n}}``: the query has read the log up
    to index i, which is n messages into the log. A range of a log always holds the same messages,
    so a query with a checkpoint and an idempotent or transactional sink gets each message exactly
    once.
    A topic delivers nothing before it has a channel, nor while it is paused, and a read sees
    nothing then either: create a channel before a batch read of a topic that has none.
    Deferred messages are read at their position in the log, that is, when they were published.
    Writing is at-least-once: an MPUB whose reply was lost is sent again, possibly to another nsqd.
    A task checks all rows of its partition before it publishes the first. The save mode must be set
    to ``append``: Spark's default is a different one.

    Examples
    --------
    >>> clicks = (
    ...     spark.readStream.format("nsq")
    ...     .option("topic", "clicks")
    ...     .option("channel", "archive")
    ...     .option("lookupd_http_addresses", "127.0.0.1:4161")
    ...     .option("maxOffsetsPerTrigger", 100_000)
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
        # would hide one of `streamReader` (`RefusedStreamReader`). Spark does not tell whether a
        # stream or a batch is read, so what differs is left to `SourceOptions.of`.
        options = SourceOptions.checked(self.options)
        check_peers(options.cluster, options.topics)
        return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())

    def streamReader(self, schema: StructType) -> NsqStreamReader | RefusedStreamReader:
        """Create a reader that follows topics' logs as they grow."""
        try:
            return NsqStreamReader(SourceOptions.of(self.options, stream=True), _columns(schema))
        except OptionError as error:
            return RefusedStreamReader(error)

    def reader(self, schema: StructType) -> NsqBatchReader:
        """Create a reader of the messages that topics' logs hold."""
        options = SourceOptions.of(self.options, stream=False)
        made = NsqFilteredReader if options.pushes_predicates else NsqBatchReader
        return made(options, _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """Create a writer that publishes rows."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use mode('append')")
        return NsqWriter(self._sink_options(), body_column(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        """Create a writer that publishes the rows of each micro-batch."""
        del overwrite  # a stream's output mode says nothing about a topic
        return NsqStreamWriter(self._sink_options(), body_column(schema))

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
