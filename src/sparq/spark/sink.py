"""The sink `nsq`: publishes a DataFrame's rows, as a batch or in a stream's micro-batches.

1. Delivery is at-least-once: a task that Spark runs again publishes its rows again.
2. A task checks that all rows of its partition can become messages before it publishes the first:
   a row that cannot leaves its whole partition unpublished. Other partitions may already be
   published by then.
3. A piece of rows is done when an nsqd has replied OK to all of it. Without a reply it is sent
   again, so its messages may be published twice; none is lost.
4. If an nsqd refuses a piece for a reason of its own (its disk, its shutdown, an unreachable
   authd), the piece goes to another nsqd. A refusal because of the message or the secret is an
   error.
5. Commands are encoded by Arrow, without a Python loop over rows: joining each row's parts gives
   one array whose data are the rows in wire format, and whose offsets tell where it can be split.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol.errors import RemoteError
from sparq.protocol.names import is_valid_name, quote
from sparq.spark.connections import NsqdDiscovery
from sparq.spark.errors import RetryDeadline, RowError, may_pass
from sparq.spark.options import ClusterOptions, OptionError, SinkOptions
from sparq.spark.ranges import freeze_loaded_objects

PIECE_BYTES: Final = 1 << 20
"""Maximum bytes per MPUB, even if nsqd's limit is larger: a lost reply repeats this much."""

DEFERRED_MAX: Final = 2_000
"""Maximum DPUBs per piece: nsqd answers each, and the answers must fit the socket's buffer."""

ARROW_BYTES_MAX: Final = 1 << 30
"""Maximum bytes joined at once: Arrow's offsets have 31 bits."""

MEMORY_BYTES_MAX: Final = 64 << 20
"""Bytes of checked rows that a task keeps in memory; Spark's own tasks use a few hundred MiB."""

COUNT_BYTES: Final = 4
"""Bytes of a size and of a number of messages in a command."""

_REFUSED_BY_ITSELF: Final = frozenset({"E_MPUB_FAILED", "E_PUB_FAILED", "E_DPUB_FAILED"})


# The columns of a DataFrame

BODY: Final = ("body", "value")
COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "defer_ms": (LongType, IntegerType, ShortType),
}
"""The columns that a sink publishes, with their types."""


def published_columns(schema: StructType) -> dict[str, int]:
    """Positions of the columns `body`, `topic` and `defer_ms`; other columns are ignored.

    Raises:
        OptionError: there is no body column, or a column has a type that cannot be published.
    """
    places = {field.name.lower(): at for at, field in enumerate(schema.fields)}
    body = next((name for name in BODY if name in places), None)
    if body is None:
        raise OptionError(
            f"the DataFrame needs a column body or value; its columns are {', '.join(places)}"
        )
    found = {}
    for name in (body, "topic", "defer_ms"):
        if name not in places:
            continue
        kind = schema.fields[places[name]].dataType
        if not isinstance(kind, COLUMNS[name]):
            wanted = " or ".join(each().simpleString() for each in COLUMNS[name][:2])
            raise OptionError(f"column {name} is {kind.simpleString()}: cast it to {wanted}")
        found["body" if name in BODY else name] = places[name]
    return found


class RowPosition(NamedTuple):
    """The partition of a record batch, in words, and the number of its first row there."""

    where: str
    first: int

    def refuse(self, at: Any, why: str) -> RowError:
        """The error of row `at` of the batch."""
        return RowError(f"row {self.first + int(at)} of {self.where} (counted from 0) {why}")


def check_rows(rows: Any, options: SinkOptions, place: RowPosition) -> None:
    """Check that every row can become a message; columns are body, and maybe topic and defer_ms.

    Raises:
        RowError: a row cannot; the text names it.
    """
    for name, what in (("body", "body"), ("topic", "topic")):
        if name in rows.schema.names and (column := rows.column(name)).null_count:
            row = pc.index(column.is_null(), pa.scalar(value=True)).as_py()
            raise place.refuse(row, f"has no {what} (null)")
    if not rows.num_rows:
        return
    sizes = np.asarray(pc.binary_length(rows.column("body")))
    # Every row is sent in an MPUB, even alone: its body begins with the number of messages, and
    # each message with its size.
    size_max = min(options.max_msg_size, options.max_body_size - 2 * COUNT_BYTES)
    if not sizes.min():
        raise place.refuse(sizes.argmin(), "has an empty body: a message needs at least one byte")
    if sizes.max() > size_max:
        raise place.refuse(
            sizes.argmax(),
            f"has a body of {sizes.max()} bytes, over the limit of {size_max} "
            "(options max_msg_size, max_body_size)",
        )
    if "topic" in rows.schema.names:
        for topic in pc.unique(rows.column("topic")):
            if not is_valid_name(topic.as_py()):
                row = pc.index(rows.column("topic"), topic).as_py()
                raise place.refuse(row, f"has an invalid topic name: {quote(topic.as_py())}")
    if "defer_ms" in rows.schema.names:
        delays = np.asarray(rows.column("defer_ms"))
        wrong = (delays < 0) | (delays > options.max_defer_ms)
        if wrong.any():
            row = wrong.argmax()
            raise place.refuse(
                row,
                f"has a defer_ms of {delays[row]}, not from 0 to {options.max_defer_ms} "
                "(option max_req_timeout)",
            )


# Commands


class CommandRun(NamedTuple):
    """Whole commands, to be sent together.

    Attributes:
        messages: number of messages.
        head: the first bytes.
        data: the other bytes, a view of Arrow's memory: a plain connection sends it uncopied.
        answers: number of responses that nsqd gives.
    """

    messages: int
    head: bytes
    data: memoryview
    answers: int


def pieces(rows: Any, options: SinkOptions) -> Iterator[CommandRun]:
    """Encode checked rows, in order within each topic: as MPUBs, and as DPUBs if deferred."""
    if rows.num_rows > 1 and rows.nbytes > ARROW_BYTES_MAX:
        half = rows.num_rows // 2
        yield from pieces(rows.slice(0, half), options)
        yield from pieces(rows.slice(half), options)
        return
    by_topic = [(options.topic, rows)]
    if not options.topic:
        topics = rows.column("topic")
        each = [(topic.as_py(), pc.equal(topics, topic)) for topic in pc.unique(topics)]
        by_topic = [(topic, rows.filter(chosen)) for topic, chosen in each]
    for topic, chosen in by_topic:
        prompt = chosen
        if "defer_ms" in chosen.schema.names:
            is_deferred = pc.greater(chosen.column("defer_ms"), 0)
            yield from _deferred(topic, chosen.filter(is_deferred))
            prompt = chosen.filter(pc.invert(is_deferred))
        yield from _prompt(topic, prompt.column("body"), options.max_body_size)


def _prompt(topic: str, bodies: Any, max_body_size: int) -> Iterator[CommandRun]:
    room = min(max_body_size, PIECE_BYTES) - COUNT_BYTES
    for count, data in _joined([_sizes(bodies), bodies], room, len(bodies)):
        size = (COUNT_BYTES + len(data)).to_bytes(COUNT_BYTES, "big")
        head = b"MPUB %b\n%b%b" % (topic.encode(), size, count.to_bytes(COUNT_BYTES, "big"))
        yield CommandRun(count, head, data, 1)


def _deferred(topic: str, rows: Any) -> Iterator[CommandRun]:
    bodies, delays = rows.column("body"), rows.column("defer_ms").cast(pa.string())
    line, end = pa.scalar(b"DPUB %b " % topic.encode()), pa.scalar(b"\n")
    columns = [line, delays, end, _sizes(bodies), bodies]
    for count, data in _joined(columns, PIECE_BYTES, DEFERRED_MAX):
        yield CommandRun(count, b"", data, count)


def _sizes(bodies: Any) -> Any:
    """The size of each body as it is in a command, four bytes."""
    sizes = np.asarray(pc.binary_length(bodies)).astype(">i4")
    kind = pa.binary(COUNT_BYTES)
    return pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(sizes)])


def _joined(columns: list[Any], room: int, count_max: int) -> Iterator[tuple[int, memoryview]]:
    """Join the columns of each row; returns (count, bytes) of up to `room` bytes of whole rows."""
    if not len(columns[-1]):
        return
    parts = [each.cast(pa.binary()) for each in columns]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    data = memoryview(joined.buffers()[2] or b"")
    ends = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1)[1:]
    first, begin = 0, 0
    while first < len(ends):
        # A row larger than `room` is a piece of its own; nsqd's limit was checked before.
        last = max(int(np.searchsorted(ends, begin + room, side="right")), first + 1)
        last = min(last, first + count_max)
        end = int(ends[last - 1])
        yield last - first, data[begin:end]
        first, begin = last, end


# Publishing


class Publisher:
    """Sends pieces, each to the next nsqd in turn, with fail-over.

    Args:
        cluster: addresses and connection options.
        turn: index of the first nsqd; tasks use different ones, to spread over the nsqds.
    """

    def __init__(self, cluster: ClusterOptions, turn: int = 0) -> None:
        self._discovery = NsqdDiscovery(cluster, None)
        self._layers = cluster.layers
        self._connections: dict[str, BlockingConnection] = {}
        self._turn = turn
        self._accepted = False
        self._patience = RetryDeadline("every nsqd", cluster.timeout_ms)

    def publish(self, piece: CommandRun) -> None:
        """Publish a piece; tries nsqds until one has replied OK.

        Raises:
            UnreachableError: no nsqd accepted it within the timeout.
            RemoteError: nsqd refused the message, the topic or the secret.
            WrongPeerError, TlsError, AuthRequiredError: the nsqd at an address is none, does not
                offer TLS, or requires AUTH.
        """
        self._patience.reset()
        while True:
            failures = []
            try:
                addresses = [found.address for found in self._discovery.found()]
            except OSError as error:
                addresses, failures = [], [str(error)]
            for step in range(len(addresses)):
                address = addresses[(self._turn + step) % len(addresses)]
                failure = self._attempt(address, piece)
                if failure is None:
                    self._turn += step + 1
                    return
                failures.append(f"nsqd {address}: {failure}")
            self._patience.wait("; ".join(failures) or "no nsqd is registered with nsqlookupd")

    def _attempt(self, address: str, piece: CommandRun) -> Exception | None:
        """Send a piece to one nsqd; returns the error if another one may succeed, else None."""
        try:
            if (connection := self._connections.get(address)) is None:
                connection = self._connections[address] = BlockingConnection(
                    address, user_agent="sparq spark sink", layers=self._layers
                )
            connection.ask(piece.head, piece.data)
            for _ in range(piece.answers - 1):
                connection.receive()
        except OSError as error:
            self._drop(address)
            return error
        except RemoteError as refusal:
            # Further answers to DPUBs would be taken for those of the next piece.
            if refusal.fatal or piece.answers > 1:
                self._drop(address)
            # A secret that was never accepted is most likely wrong: report it, do not wait for an
            # authd.
            if refusal.code not in _REFUSED_BY_ITSELF and not (
                self._accepted and may_pass(refusal)
            ):
                raise
            return refusal
        self._accepted = True
        return None

    def _drop(self, address: str) -> None:
        if connection := self._connections.pop(address, None):
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self._drop(address)


# Spark's writers


class _Writer:
    """Common base of the batch and stream writers; `columns` are positions by name."""

    def __init__(self, options: SinkOptions, columns: dict[str, int]) -> None:
        if not options.topic and "topic" not in columns:
            raise OptionError("set the option topic, or add a column topic")
        self._options = options
        # The option takes precedence: the column is not even checked.
        self._columns = {
            name: at for name, at in columns.items() if name != "topic" or not options.topic
        }

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the record batches of one task.

        Raises:
            RowError: a row cannot become a message; no row of the partition was published.
        """
        freeze_loaded_objects()
        context = TaskContext.get()
        # Not a documented interface of Spark: only the text of errors depends on it.
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        number = context.partitionId() if context else 0
        where = f"partition {number}{f' of batch {batch}' if batch else ''}"
        # Spark's executors have their own directories for data that does not fit into memory.
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        folder_or_default = folder if os.path.isdir(folder) else None
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX, dir=folder_or_default) as kept:
            # All rows are kept before the first is published: Spark passes them once, and a row
            # that cannot become a message may be the last.
            writer, first = None, 0
            for rows in iterator:
                columns = [rows.column(at) for at in self._columns.values()]
                chosen = pa.RecordBatch.from_arrays(columns, list(self._columns))
                if "defer_ms" in self._columns:
                    at = chosen.schema.get_field_index("defer_ms")
                    delays = chosen.column(at).cast(pa.int64()).fill_null(0)
                    chosen = chosen.set_column(at, "defer_ms", delays)
                check_rows(chosen, self._options, RowPosition(where, first))
                writer = writer or pa.ipc.new_stream(kept, chosen.schema)
                writer.write_batch(chosen)
                first += rows.num_rows
            if writer is None:
                return WriterCommitMessage()
            writer.close()
            kept.seek(0)
            with closing(Publisher(self._options.cluster, number)) as publisher:
                for rows in pa.ipc.open_stream(kept):
                    for piece in pieces(rows, self._options):
                        publisher.publish(piece)
        return WriterCommitMessage()


class NsqWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc] # mypy skips pyspark
    """Publishes a DataFrame."""


class NsqStreamWriter(
    _Writer,
    DataSourceStreamArrowWriter,  # type: ignore[misc] # mypy does not follow pyspark
):
    """Publishes the rows of each micro-batch."""
