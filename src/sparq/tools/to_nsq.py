"""The program `to_nsq`: publishes records from standard input as messages to every given nsqd.

1. A record ends at the delimiter; the last one needs none. Empty records are skipped.
2. Records that arrive together are published together, in order; the next ones are read when all
   nsqds have acknowledged these. Each nsqd gets each record; after a lost connection it may get
   some twice.
3. If an nsqd cannot be reached when the first record has been read, the tool exits, after
   `--wait-for-nsqd`. It also exits if an nsqd refuses a record or acknowledges nothing within
   `--producer-opt=publish_timeout,30s`: the records before it are published, and the error names
   the record that was not.
4. A signal stops reading: complete records that were read are published, regardless of `--rate`;
   an incomplete record is reported and not published.
5. Exit status: 0 if everything is published and after a signal, 1 if something is not published.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from sparq.client.arguments import parse_addresses
from sparq.client.errors import SparqClientError
from sparq.client.producer import Producer
from sparq.protocol.errors import RemoteError
from sparq.tools.commands import ToNsqOptions as Options
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import (
    TOGETHER_BYTES,
    client_config,
    progress_shown,
    publish_runs,
    reach,
    unless_stopped,
)
from sparq.tools.terminal import STDIN, Pipe

PROGRAM: Final = "to_nsq"

log = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 64 << 20
"""Far more than any nsqd accepts by default: 1 MiB."""

ROUNDING: Final = 1e-6
"""Rounding error of summed floats: a record may be this much short of being due."""


async def serve(options: Options, stop: asyncio.Event, source: Pipe = STDIN) -> int:
    """Publish records until the source ends or the event is set; return the exit status.

    Raises:
        UsageError: the options are not valid.
        ToolError: a record is not published, or cannot be read.
    """
    if not options.topic:
        raise UsageError("--topic required")
    if not options.nsqd_tcp_addresses:
        raise UsageError("--nsqd-tcp-address required")
    config = client_config(PROGRAM, options.producer_opt)
    addresses = parse_addresses(options.nsqd_tcp_addresses)
    producers = {address: Producer(address, config=config) for address in addresses}
    publisher = RecordPublisher(options, producers, stop)
    async with AsyncExitStack() as stack:
        for producer in producers.values():
            stack.push_async_callback(producer.close)
        if not source.is_terminal:
            shown = progress_shown(lambda: f"{publisher.published:,} published")
            await stack.enter_async_context(shown)
        await follow(source, RecordSplitter(os.fsencode(options.delimiter)), publisher, stop)
    return 0


async def follow(
    source: Pipe, records: RecordSplitter, publisher: RecordPublisher, stop: asyncio.Event
) -> None:
    """Publish the source's records until it ends or the event is set.

    Raises:
        ToolError: a record is not published, or cannot be read.
    """
    # Once the event is set, the thread goes on reading, and what it gets is lost.
    while data := await unless_stopped(source.read(), stop):
        try:
            whole = records.feed(data)
        except ValueError as error:
            which = f"record {publisher.published + 1} is too long"
            raise ToolError(f"{which}: {error}; check --delimiter") from None
        await publisher.publish(whole)
    if stop.is_set() and records.rest:
        size = len(records.rest)
        log.warning("stopped within a record: its first %d bytes are not published", size)
    elif records.rest:
        await publisher.publish([bytes(records.rest)])


class RecordPublisher:
    """Publishes records to several nsqds, at a rate.

    Attributes:
        published: records that every nsqd has acknowledged.
    """

    def __init__(
        self, options: Options, producers: Mapping[str, Producer], stop: asyncio.Event
    ) -> None:
        self.published = 0
        self._topic = options.topic
        self._reached = False
        self._wait_ns = options.wait_for_nsqd_ns
        self._producers = producers
        self._bytes_max = dict.fromkeys(producers, TOGETHER_BYTES)
        self._stop = stop
        self._clock = asyncio.get_running_loop().time
        self._pace = Pace(options.rate, self._clock()) if options.rate else None

    async def publish(self, records: Sequence[bytes]) -> None:
        """Publish records in order.

        Raises:
            ToolError: a record is not published; the text says which. Or an nsqd cannot be reached.
        """
        if records and not self._reached:
            await reach(self._producers.values(), self._wait_ns)
            self._reached = True
        for together in publish_runs(records):
            at = 0
            while at < len(together):
                some = together[at : at + await self._allowed(len(together) - at)]
                answers = [self._publish_to(each, some, self.published) for each in self._producers]
                # return_exceptions: wait for every nsqd before raising. The others' publishes would
                # otherwise go on while their producers are closed.
                for failure in await asyncio.gather(*answers, return_exceptions=True):
                    if isinstance(failure, BaseException):
                        raise failure
                self.published += len(some)
                at += len(some)

    async def _allowed(self, count: int) -> int:
        """Wait until the rate allows a record; return the allowed number (after the event: all)."""
        while self._pace is not None and not self._stop.is_set():
            if allowed := self._pace.take(count, self._clock()):
                return allowed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._pace.due_at):
                    await self._stop.wait()
        return count

    async def _publish_to(self, address: str, records: Sequence[bytes], before: int) -> None:
        """Publish records to one nsqd; ``before`` is the number of records already published.

        Raises:
            ToolError: a record is not published; the text says which.
        """
        # nsqd's limits are not known in advance: IDENTIFY reports none for MPUB. So its refusals
        # decide.
        producer = self._producers[address]
        for together in publish_runs(records, self._bytes_max[address]):
            count = len(together)
            try:
                if count == 1:
                    await producer.publish(self._topic, together[0])
                else:
                    await producer.multi_publish(self._topic, together)
            except (RemoteError, SparqClientError, OSError) as error:
                code = error.code if isinstance(error, RemoteError) else ""
                if count > 1 and code == "E_BAD_BODY":  # larger than nsqd accepts
                    self._bytes_max[address] = sum(map(len, together)) // 4
                    await self._publish_to(address, together, before)
                elif count > 1 and code == "E_BAD_MESSAGE":  # a message is too large
                    for number, record in enumerate(together, before):
                        await self._publish_to(address, [record], number)
                else:
                    which = f"record {before + 1} ({len(together[0])} bytes) is"
                    if count > 1:
                        which = f"records {before + 1} to {before + count} are"
                    reason = f"{which} not published to {address}: {error}"
                    raise ToolError(reason) from error
            before += count


class RecordSplitter:
    """Splits a stream of bytes into records.

    Empty records are skipped; the last one needs no delimiter. A record is held in memory until it
    is complete, so its size is limited.

    Attributes:
        rest: the bytes after the last delimiter.
    """

    def __init__(self, delimiter: bytes, bytes_max: int = RECORD_BYTES_MAX) -> None:
        self.rest = bytearray()  # not bytes: a long record grows by many reads
        self._delimiter = delimiter
        self._bytes_max = bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the records that are now complete.

        Raises:
            ValueError: the record that has begun is longer than the limit.
        """
        found: list[bytes] = []
        self.rest += data
        if self._delimiter in data:
            *found, rest = bytes(self.rest).split(self._delimiter)
            self.rest = bytearray(rest)
        if len(self.rest) > self._bytes_max:
            raise ValueError(f"no delimiter within {self._bytes_max} bytes")
        return [record for record in found if record]


class Pace:
    """Limits the number of records per second.

    The first record may pass at once, and then one each ``1 / rate`` seconds. After an idle time,
    at most one second's worth of records may pass together. Time is an argument, in seconds.

    Args:
        rate: records a second, 1 or more.
        now: the time at which it starts.

    Attributes:
        due_at: when the next record may pass.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self.due_at = now

    def take(self, count: int, now: float) -> int:
        """Return how many records may pass now, up to ``count``: they count as passed."""
        self.due_at = max(self.due_at, now - 1 + 1 / self._rate)
        due = int((now - self.due_at) * self._rate + 1 + ROUNDING)
        taken = max(0, min(count, due))
        self.due_at += taken / self._rate
        return taken
