"""The data source `nsq`, as Spark's users see it.

The class that Spark looks up by name, its columns and its options; what reads and what writes is
made in `source` and `sink`, and only when Spark asks for it.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparq.spark.options import OptionError, SinkOptions, check_names
from sparq.spark.ports import check
from sparq.spark.reader import NsqBatchReader, NsqFilteredReader
from sparq.spark.sink import NsqStreamWriter, NsqWriter, body_column
from sparq.spark.source import NsqStreamReader, RefusedStreamReader
from sparq.spark.source_options import SourceOptions

COLUMNS: Final = {
    "topic": "string",
    "nsqd": "string",
    "id": "string",
    "index": "bigint",
    "timestamp": "timestamp",
    "attempts": "int",
    "body": "binary",
}


class NsqDataSource(DataSource):  # type: ignore[misc] # mypy does not follow pyspark
    """Reads and writes topics of sparq's nsqd.

    Name: `nsq`

    Schema
    ------
    A read gives one row a message; a write takes `body` (or `value`) and, if it is there, `topic`.

    =========  =========  =====================================================================
    topic      STRING     the topic; always there, so that a query keeps its schema when topics join
    nsqd       STRING     ``host:port`` of the nsqd that holds the message, as it was found first
    id         STRING     the message id: 16 hex digits, unique over all nsqds
    index      BIGINT     the message's place in its nsqd's log of the topic; rises, with gaps
    timestamp  TIMESTAMP  when nsqd took the message, in microseconds (nsqd keeps nanoseconds)
    attempts   INT        as stored, 1: a range reader's own attempts are not counted
    body       BINARY     the message
    =========  =========  =====================================================================

    A reader that is given a schema with fewer of these columns makes only those; ``.select`` alone
    does not reach a Python source, which makes all columns then.

    Options
    -------
    Both ways:

    nsqd_tcp_addresses : str
        ``host:port`` of the nsqds, with commas between them. Either this or:
    lookupd_http_addresses : str
        ``host:port`` or URL of nsqlookupds, their HTTP port. New nsqds join a running query.
    nsqdTimeoutMs : int, default 60000
        How long an nsqd that is needed may be out of reach before the query fails. With
        failOnDataLoss=false an availableNow query goes on without it then. Unless this option is
        given, a query without a checkpoint waits 5 s only: a mistyped address is named soon.
    tls_v1 : bool, default false
        Speak TLS with the nsqds. Their certificates are verified, and the hosts' names in them.
    tls_root_ca_file, tls_cert, tls_key : str
        Files (PEM), on the driver and on every executor: the authorities to trust in place of the
        system's; a certificate of our own and its key.
    tls_min_version : str, default tls1.2
        The oldest version to speak.
    tls_insecure_skip_verify : bool, default false
        Take any certificate, of whomever.
    snappy, deflate : bool, default false
        Compress on the way, one or the other, where nsqd offers it.
    deflate_level : int, default 6
        From 1 to 9.
    auth_secret : str
        For nsqds that ask for AUTH. No log line, plan, progress or error shows it; but it is part
        of the options that Spark sends to the executors, so protect that way too.
    lookupd_authorization : bool, default true
        Send the secret to nsqlookupds, as ``Authorization: Bearer``.

    Reading:

    topic : str
        The topic to read. Either this or:
    topics : str
        Topics with commas between them; each row says in `topic` which one it is of.
    topicsPattern : str
        A regular expression (Python's) that the whole of a topic's name must match, over all topics
        that nsqlookupd lists; ephemeral topics have no log and are passed over. Topics that appear
        while the query runs join it. Needs lookupd_http_addresses.
    channel : str
        The channel whose cursor follows what the query has committed, in each topic: its depth is
        the query's lag, and what comes after it stays in the log. Needed by streams; a batch read
        has none. It cannot have consumers at the same time.
    queryName : str
        Shown by nsqd and nsqadmin as who reads the channel. Spark does not tell a source the name
        that a query gets by its writer's ``queryName()``.
    startingOffsets : str
        Where a query without a checkpoint begins: ``earliest``, ``latest``, ``committed`` (where
        the channel stands) or JSON with an index or a word for nsqds,
        ``{"127.0.0.1:4150": 12345}``, with several topics
        ``{"clicks": {"127.0.0.1:4150": 12345}, "views": "latest"}``; what is not named begins at
        the earliest. Default: ``committed`` for a stream, ``earliest`` for a batch. A channel
        whose consumers finished messages out of order stands at its first unfinished one: what
        they had finished after it comes again. An nsqd that joins later begins at the earliest,
        or with ``committed`` and ``latest`` where its channel stands; a topic that joins later,
        without that channel, begins at its first message.
    startingTimestamp : int
        Instead: at the first message published at or after this time, in ms since 1970.
    endingOffsets : str, default latest
        Where a batch read ends: ``latest`` or JSON as above.
    endingTimestamp : int
        Instead: before the first message published at or after this time, in ms since 1970.
    pushDownPredicate : bool, default false
        Whether a batch read leaves out what predicates on the column `timestamp` exclude, without
        reading it. Spark asks for its own setting, too:
        ``spark.sql.python.filterPushdown.enabled=true``. Call ``load`` for each query anew: Spark
        4.3 keeps what one query has pushed down for later queries of the same DataFrame that push
        nothing down, and they lack rows then. See docs/spark.md, also about clocks.
    maxOffsetsPerTrigger : int
        The most messages in one micro-batch, over all nsqds and topics. Default: no limit.
    maxBytesPerTrigger : size like ``64m``
        The most bytes in one micro-batch, as messages are stored: the bodies, 38 bytes for each,
        and headers. Counted by stretches of the log, 64 to 128 KiB or one larger MPUB; each log
        with unread messages gives one stretch at least. Default: no limit.
    minOffsetsPerTrigger : int
        A micro-batch waits until so many messages are there, or maxTriggerDelay is over, or
        maxBytesPerTrigger is reached. The first after a start does not wait, nor does availableNow.
    maxTriggerDelay : time like ``30s``, default 15m
        How long a micro-batch waits for minOffsetsPerTrigger, counted from the one before.
    minPartitions : int
        The number of partitions in a batch, about: set it to the number of the executors' cores
        (``spark.sparkContext.defaultParallelism``), which Spark does not tell a source. Default:
        one for each 50,000 messages, 64 at most. It is kept in the offset: a batch that runs again
        has the same partitions.
    maxRecordsPerPartition : int, default 1000000
        A longer range is cut.
    failOnDataLoss : bool, default true
        Whether the query fails when messages are lost that it has not read: deleted, damaged, or
        with a topic that was deleted. If false, it logs how many and goes on.

    Writing:

    topic : str
        The topic to write to; goes before a column `topic`.
    max_msg_size : int, default 1048576
        nsqd's limit of one message's body; a larger one is an error.
    max_body_size : int, default 5242880
        nsqd's limit of one MPUB.

    Raises
    ------
    OptionError
        An option is missing, wrong or misspelt; the text names it.
    WrongPeerError
        An address is not the port that the option takes; the text says what it is.
    UnreachableError
        An nsqd that is needed stayed out of reach.
    DataLossError
        Messages are gone (failOnDataLoss).
    SupersededError
        Another query reads the channel now.
    TlsError, AuthRequiredError
        An nsqd does not offer TLS or is not trusted, or asks for a secret.
    NoRangesError
        An nsqd cannot read ranges of its log (Go's cannot); the error names it.
    RowError
        A row to write has no body, an empty one, one that is too large, or no topic.

    Notes
    -----
    An offset is ``{"<nsqd>/<log id>": {"index": i, "ordinal": n}}``: place i, n messages into the
    log. A range of a log is the same messages each time, so a query with a checkpoint and an
    idempotent or transactional sink has each message exactly once.
    As a topic hands nothing out before it has a channel, and while it is paused, a read sees
    nothing then either: create a channel before a batch read of a topic that has none.
    Deferred messages are read at their place in the log, when they were published.
    Writing is at least once: an MPUB whose answer was lost is sent again, maybe to another nsqd.
    A task publishes nothing before all rows of its partition were checked. The save mode is
    ``append``, which must be given: Spark's default is another.

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
        """The name of the format."""
        return "nsq"

    def __init__(self, options: Mapping[str, str]) -> None:
        """Takes the options.

        Raises:
            OptionError: there is no such option.
        """
        super().__init__(options)
        check_names(options)

    def schema(self) -> str:
        """The columns of a read; Spark asks for them in `load()`, before any query runs.

        Raises:
            OptionError: an option is missing or wrong.
            WrongPeerError, NoRangesError, TlsError, AuthRequiredError: an address is not what the
                option takes. One that does not answer is left to the query.
        """
        options = SourceOptions.checked(self.options)
        check(options.cluster, next(iter(options.topics.names), ""))
        return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())

    def streamReader(self, schema: StructType) -> NsqStreamReader | RefusedStreamReader:
        """Reads topics' logs as they grow."""
        try:
            return NsqStreamReader(SourceOptions.of(self.options, stream=True), _columns(schema))
        except OptionError as error:
            return RefusedStreamReader(error)

    def reader(self, schema: StructType) -> NsqBatchReader:
        """Reads what topics' logs hold."""
        options = SourceOptions.of(self.options, stream=False)
        made = NsqFilteredReader if options.pushes_predicates else NsqBatchReader
        return made(options, _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """Publishes rows."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use mode('append')")
        return NsqWriter(self._sink_options(), body_column(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        """Publishes the rows of each micro-batch."""
        del overwrite  # a stream's output mode says nothing about a topic
        return NsqStreamWriter(self._sink_options(), body_column(schema))

    def _sink_options(self) -> SinkOptions:
        options = SinkOptions.of(self.options)
        check(options.cluster)
        return options


def _columns(schema: Any) -> list[str]:
    """The columns that a read has: all, or those of the user's own schema.

    Raises:
        OptionError: the schema has other columns, types, or columns that may not be null.
    """
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType.simpleString() or not field.nullable:
            expected = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise OptionError(f"the schema may have some of these columns, nullable: {expected}")
    return list(schema.fieldNames())
