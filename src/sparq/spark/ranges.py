"""Ranges of logs as Spark partitions: planned in the driver, read in the executors.

1. The rows of a range are counted against the log's ordinals: a range gives every message exactly
   once, or fails, or (without failOnDataLoss) reports how many are missing.
2. An interrupted read continues where the last whole piece ended. Rows that Spark already has are
   never returned again.
"""

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from logging import getLogger
from typing import Any, NamedTuple

from pyspark import TaskContext

from sparq.client.layer_options import PLAIN, LayerOptions
from sparq.client.range_reader import RangeData, RangeReader
from sparq.protocol.errors import RemoteError
from sparq.spark.errors import DataLossError, RetryDeadline, may_pass

_LOG = getLogger("sparq.spark")


class Range(NamedTuple):
    """Messages [first, end) of one log.

    Attributes:
        topic: the topic.
        nsqd: the value of the column nsqd.
        address: the nsqd to read from.
        log: the log's id.
        first: the first index.
        end: the index after the last one.
        ordinal: messages in the log before `first`.
        messages: number of messages in the range.
    """

    topic: str
    nsqd: str
    address: str
    log: str
    first: int
    end: int
    ordinal: int
    messages: int

    def __str__(self) -> str:
        return f"[{self.first}, {self.end}) of topic {self.topic} at nsqd {self.address}"


class Loss:
    """Handles lost messages: raises an error if `fail` is set, else logs a warning."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str) -> None:
        """Report lost messages. Raises DataLossError: `fail` is set."""
        if self._fail:
            raise DataLossError(
                f"{what}. To continue without them, set the option failOnDataLoss to false"
            )
        _LOG.warning("%s. The query continues without them (failOnDataLoss is false)", what)


@cache
def freeze_loaded_objects() -> None:
    """Exclude all objects loaded so far from garbage collection (`gc.freeze`), in a task only.

    Spark's worker collects garbage after each task. With the modules of Spark, Arrow and numpy
    loaded, this took some 60 ms: a third of the time of a task of 500,000 rows, and most of the
    time of a small one.
    """
    # Cached: once per worker process, which Spark uses for many tasks.
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


def read_range(
    wanted: Range,
    columns: Sequence[str],
    timeout_ms: int,
    loss: Loss,
    *,
    layers: LayerOptions = PLAIN,
) -> Iterator[Any]:
    """The range's messages as Arrow record batches.

    Raises:
        UnreachableError: nsqd stayed unreachable for longer than the timeout.
        DataLossError: messages are lost, and `loss` is set to fail.
        RemoteError, NoRangesError, WrongPeerError, TlsError, AuthRequiredError, BatchError:
            unexpected refusals and damaged data; they are not retried.
    """
    # Only executors need Arrow, and importing it takes a while.
    from sparq.spark.decode import Decoder  # noqa: PLC0415 - executors only

    freeze_loaded_objects()
    decoder = Decoder(wanted.topic, wanted.nsqd, columns)
    reader = RangeReader(wanted.address, user_agent="sparq spark task", layers=layers)
    reading = _Reading(wanted, reader, timeout_ms, loss)
    try:
        for first, data in reading.pieces():
            for rows in decoder.decode(data.batches, first, data.next):
                reading.rows += rows.num_rows
                yield rows
        reading.check_count()
    finally:
        reader.close()


class _Reading:
    """One pass over a range, which continues after connection failures.

    Attributes:
        rows: number of messages decoded so far.
    """

    def __init__(self, wanted: Range, reader: RangeReader, timeout_ms: int, loss: Loss) -> None:
        self.rows = 0
        self._wanted = wanted
        self._loss = loss
        self._lost = 0
        self._at = wanted.first
        self._reader = reader
        self._patience = RetryDeadline(f"nsqd {wanted.address}", timeout_ms)

    def pieces(self) -> Iterator[tuple[int, RangeData]]:
        """Each piece of the range, with the index of the first message to take from it."""
        while self._at < self._wanted.end:
            try:
                yield from self._pieces_of_one_connection()
            except OSError as error:
                self._patience.wait(error)
            except RemoteError as refusal:
                if may_pass(refusal):
                    self._patience.wait(refusal)
                elif refusal.code == "E_RANGE_FAILED":
                    self._refused(refusal)
                else:
                    raise

    def _pieces_of_one_connection(self) -> Iterator[tuple[int, RangeData]]:
        wanted = self._wanted
        for data in self._reader.read(wanted.topic, wanted.log, self._at, wanted.end):
            if data.lost:
                self._missing(data.lost, f"their data before index {data.next} is damaged")
            yield self._at, data
            # After the `yield`: Spark has all rows of the piece by now, so a reconnect continues
            # after it.
            self._at = data.next
            self._patience.reset()

    def _refused(self, refusal: RemoteError) -> None:
        """Find out why nsqd refused the range; skip a gap, report lost messages, or wait."""
        wanted = self._wanted
        try:
            ends = self._reader.ends(wanted.topic)
        except OSError as error:
            self._patience.wait(error)
            return
        except RemoteError as error:
            if may_pass(error):
                return  # the next READ gets the same refusal and waits
            ends = None
        left = wanted.messages - self.rows - self._lost
        if ends is None or ends.log != wanted.log:
            self._missing(left, f"their log no longer exists ({refusal})")
            self._at = wanted.end
            return
        # nsqd has the first message that is missing here: the range ends too late, or (if nsqd has
        # its end, too) the refusal has another reason, which no retry removes.
        if self._at >= ends.first:
            if ends.end >= wanted.end:
                raise refusal
            # Right after a restart nsqd holds the log's end back until it knows all channels.
            self._patience.wait(refusal)
            return
        # Some indexes before the log's first message may never have had a message.
        gone = ends.first_ordinal - (wanted.ordinal + self.rows + self._lost)
        # The log may now begin after this range: then `gone` also counts messages that are not of
        # this range, hence `min`.
        if gone > 0:
            self._missing(
                min(gone, left), f"they were deleted before this query read them ({refusal})"
            )
        self._at = min(ends.first, wanted.end)

    def _missing(self, count: int, why: str) -> None:
        self._lost += count
        wanted = self._wanted
        place = f"topic {wanted.topic} at nsqd {wanted.address}"
        self._loss.report(f"{count:,} messages of {place} are lost: {why}")

    def check_count(self) -> None:
        """Check that the range had every message exactly once.

        Raises:
            DataLossError: it had more or fewer than the log's ordinals say, and `loss` is set to
                fail.
        """
        if self.rows + self._lost != self._wanted.messages:
            self._loss.report(
                f"{self._wanted} has {self.rows + self._lost} messages "
                f"instead of {self._wanted.messages}"
            )
