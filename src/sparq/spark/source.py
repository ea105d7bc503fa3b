"""The source `nsq` as a stream.

What Spark calls, in its order: `initialOffset` (of a query without a checkpoint), `latestOffset`
and `partitions` in one process of the driver that lives as long as the query; `read` in the
executors, on a copy of the reader that has never been connected.

1. What `latestOffset` is given as the start, Spark has committed: the channels' cursors follow it
   there already, since `commit` comes only with the next batch that has data.
2. An nsqd out of reach keeps its last offset, and the others go on. Only a drained run
   (availableNow) waits for it: it must not end without what it was to read.
3. A topic that has left the options keeps its place in the offset, unread; a batch that was planned
   with it is still run again as it was.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sparq.client.range_reader import Ends
from sparq.spark.admission import Reach, admit
from sparq.spark.errors import UnreachableError
from sparq.spark.offsets import Cut, Key, LogPosition, Offset, parse_key
from sparq.spark.options import OptionError
from sparq.spark.reader import NsqReader
from sparq.spark.source_options import Limits, SourceOptions

NEWS_WAIT_SECONDS: Final = 0.3
"""How long an idle query waits in `latestOffset` for news; Spark would ask again at once."""

NEWS_POLL_SECONDS: Final = 0.02

MOVING_SECONDS: Final = 5.0
"""How long a log may be nowhere while its nsqd moves to another address, as nsqlookupd tells."""

_LOG = getLogger("sparq.spark")

Found = dict[str, LogPosition]
"""By key, how far each log has been or may be read."""


class NsqStreamReader(
    NsqReader,
    DataSourceStreamReader,  # type: ignore[misc] # mypy does not follow pyspark
    SupportsTriggerAvailableNow,  # type: ignore[misc] # likewise
):
    """Reads topics' logs as they grow; holds one channel in each meanwhile."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._initial: Found | None = None
        self._is_resumed = False
        self._reported: dict[str, object] | None = None
        self._is_drained = False
        self._targets: dict[str, Ends] | None = None
        self._missing_since: dict[str, float] = {}
        self._last_batch_at = float("-inf")

    # What Spark calls

    def prepareForTriggerAvailableNow(self) -> None:
        """Remembers where the logs end: the query is to read up to there.

        While an nsqd is out of reach that has to wait for the next call, which knows for how long.
        """
        self._is_drained = True
        self._fleet.refresh()
        if not self._fleet.out_of_reach:
            self._aim()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limits of the options; as Spark knows one limit only, it hears of the messages'."""
        limits = self._options.limits
        return ReadAllAvailable() if limits == Limits() else ReadMaxRows(limits.messages_max)

    def initialOffset(self) -> dict[str, object]:
        """Where a query without a checkpoint begins; Spark asks twice."""
        if self._initial is None:
            self._wait(self._fleet.wait_to_begin)
            self._aim()
            self._initial = self._bounds.starts()
            self._fleet.commit(self._initial)
        return Offset(self._initial).as_json()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """How far the next batch goes; the start itself when there is nothing new."""
        begin = Offset.parse(start).positions
        self._resume(begin)
        if self._is_drained and self._targets is None:
            self._wait(self._fleet.wait_for)
            self._aim()
        idle_until = time.monotonic() + NEWS_WAIT_SECONDS
        while True:
            asked_at = time.monotonic()
            latest = self._step(begin, self._limits(limit))
            if latest != begin:
                return Offset(latest, self._cut(begin, latest)).as_json()
            # A log that may be on its way to another address is waited for, lest a run that reads
            # what is there and ends (availableNow) takes it for one without messages.
            answered_at = time.monotonic()
            drained = self._targets is not None or answered_at >= idle_until
            if drained and not self._missing_since:
                return start
            # Many logs take long to ask: the driver and the nsqds get as long to rest.
            time.sleep(max(NEWS_POLL_SECONDS, answered_at - asked_at))

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Where the logs end, for the query's progress."""
        return self._reported

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The ranges of one batch, for the executors."""
        return self._plan(Offset.parse(start), Offset.parse(end))

    def commit(self, end: dict[str, object]) -> None:
        """Everything before `end` is done with."""
        self._fleet.commit(Offset.parse(end).positions)

    def stop(self) -> None:
        """The query has ended: lets go of the channels."""
        if self._connected is not None:
            self._connected.close()

    # One look at the logs

    def _resume(self, begin: Found) -> None:
        """Learns from a checkpoint what nsqlookupd may have forgotten, and what is read no more."""
        if self._is_resumed:
            return
        self._is_resumed = True
        keys = {key: parse_key(key) for key in begin}
        topics = self._options.topics
        self._fleet.remember(
            parts for key, parts in keys.items() if topics.reads(parts) and not begin[key].gone
        )
        left = sorted({parts.topic for parts in keys.values() if not topics.reads(parts)})
        if left:
            _LOG.warning(
                "the options of this query name topic %s no more: it is not read, and keeps its "
                "place in the checkpoint. Its channel %s still holds what comes after that place: "
                "delete the channel if the topic will not be read again",
                ", ".join(left),
                self._options.channel,
            )

    def _limits(self, limit: ReadLimit) -> Limits:
        """The limits of the next batch."""
        if isinstance(limit, ReadAllAvailable):
            return Limits()  # the trigger `once`, which is to read all, whatever the options say
        limits = self._options.limits
        if isinstance(limit, ReadMaxRows):
            limits = limits._replace(messages_max=limit.max_rows)
        # What a drained run is to read is there already: it would wait for nothing.
        return limits if self._targets is None else limits._replace(messages_min=0)

    def _step(self, start: Found, limits: Limits) -> Found:
        topics = self._options.topics
        keys = {key: parts for key in start if topics.reads(parts := parse_key(key))}
        if self._targets is None:
            self._fleet.refresh()
        else:
            wanted = [parts for key, parts in keys.items() if not start[key].gone]
            self._wait(lambda: self._fleet.wait_for(wanted))
        ends = self._fleet.ends()
        self._fleet.commit({key: start[key] for key in keys})
        found = {key: self._found(key, start[key], ends.get(keys[key].log)) for key in keys}
        joining = self._joining(found, ends)
        self._fleet.commit(joining)
        self._reported = {
            key: LogPosition(log.end, log.end_ordinal).as_json()
            for key in (*found, *joining)
            if (log := ends.get(parse_key(key).log))
        }
        return start | found | self._admitted(found, ends, limits) | joining

    def _found(self, key: str, position: LogPosition, ends: Ends | None) -> LogPosition:
        """A log's position by what there is of the log now."""
        if ends is None:
            return replace(position, gone=not self._awaited(key, position))
        self._missing_since.pop(key, None)
        if position.ordinal is None:
            place = self._fleet.place_after(ends.log, position.index, 0)
            if place is None:
                return position
            position = self._planner.known(key, position, place)
        return self._bounds.kept(key, replace(position, gone=False), ends)

    def _awaited(self, key: str, position: LogPosition) -> bool:
        """Whether a log that is nowhere may still be found; reports it as lost if not."""
        if position.gone:
            return False
        now = time.monotonic()
        if self._fleet.may_have(parse_key(key)):
            self._missing_since.pop(key, None)
            return True
        grace = MOVING_SECONDS if self._options.cluster.lookupd_http_addresses else 0.0
        if now - self._missing_since.setdefault(key, now) < grace:
            return True
        del self._missing_since[key]
        self._losses.gone(key, position)
        return False

    def _aim(self) -> None:
        """Sets the ends of a drained run."""
        if self._is_drained and self._targets is None:
            self._targets = self._fleet.ends()
            self._warn_of_silence()

    def _wait(self, wait_for: Callable[[], None]) -> None:
        """Waits for nsqds; a drained run must not end without what it is to read.

        Raises:
            UnreachableError: one stayed out of reach, and the query is to fail then.
        """
        try:
            wait_for()
        except UnreachableError as error:
            if not self._is_drained:
                raise
            hint = "if it has left for good, the option failOnDataLoss=false goes on without it"
            if self._options.fail_on_data_loss or not self._fleet.give_up():
                raise UnreachableError(f"{error}; {hint}") from error
            _LOG.warning("%s. The query goes on without it (failOnDataLoss is false)", error)

    def _joining(self, found: Found, ends: dict[str, Ends]) -> Found:
        """Logs that are new, each with its first place; not in place of one that is awaited."""
        logs = {parse_key(key).log for key in found}
        living = {key: parse_key(key) for key in found if not found[key].gone}
        awaited = {
            (parts.address, self._topic(parts))
            for parts in living.values()
            if parts.log not in ends
        }
        read = {self._topic(parts) for parts in living.values()}
        joining = {}
        for log, member in self._fleet.attached.items():
            is_new = log in ends and log not in logs and self._options.topics.has(member.topic)
            is_due = self._targets is None or log in self._targets
            replaces = {(member.address, member.topic), (member.address, "")} & awaited
            if is_new and is_due and not replaces:
                # An nsqd that goes away just now joins when it is back.
                with contextlib.suppress(ConnectionError):
                    place = self._bounds.joined(member, is_topic_read=member.topic in read)
                    joining[str(self._bounds.key(member))] = place
        return joining

    def _topic(self, key: Key) -> str:
        """A log's topic; empty where it is not known while the log is out of reach."""
        names = self._options.topics.of_key(key)
        if len(names) == 1:
            return names[0]
        member = self._fleet.member(key.log)
        return "" if member is None else member.topic

    def _admitted(self, found: Found, ends: dict[str, Ends], limits: Limits) -> Found:
        """How far the next batch goes in the logs that it reads; none while it is held back."""
        logs = [log for key in found if (log := parse_key(key).log) in ends]
        reach = Reach(self._fleet, found, {log: self._stop(log, ends[log]) for log in logs})
        waited = time.monotonic() - self._last_batch_at
        counts = admit(reach.backlogs(limits.bytes_max), limits, waited)
        if counts:
            self._last_batch_at = time.monotonic()
        return {key: reach.after(key, count) for key, count in counts.items()}

    def _stop(self, log: str, found: Ends) -> Ends:
        """How far a log may be read now."""
        if self._targets is None:
            return found
        target = self._targets.setdefault(log, found)
        return min(found, target, key=lambda each: each.end)

    def _cut(self, begin: Found, latest: Found) -> Cut:
        """How the batch from `begin` to `latest` is cut."""
        messages = 0
        for key, position in begin.items():
            end = latest[key].ordinal
            if position.ordinal is not None and end is not None:
                messages += end - position.ordinal
        return self._planner.cut(messages)

    def _warn_of_silence(self) -> None:
        """Says when no nsqd has had a message of the topics: their names may be wrong."""
        if any(ends.end_ordinal for ends in (self._targets or {}).values()):
            return
        members = self._fleet.attached.values()
        nsqds = ", ".join(dict.fromkeys(member.address for member in members))
        lookupds = ", ".join(self._options.cluster.lookupd_http_addresses)
        _LOG.warning(
            "%s has never had a message at %s: there is nothing to read. "
            "Check the option if you expected messages",
            self._options.topics,
            f"nsqd {nsqds}" if nsqds else f"any nsqd that nsqlookupd {lookupds} knows",
        )


class RefusedStreamReader(DataSourceStreamReader):  # type: ignore[misc] # mypy skips pyspark
    """Says what is wrong with a stream's options when Spark first asks something.

    Where making the reader itself raises, Spark 4.3 shows an UnboundLocalError in its place.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        """Raises the error, whatever Spark asks of a query that begins, goes on or is run again."""
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse
