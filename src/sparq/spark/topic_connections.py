"""The driver's connections of a query: they hold its channel in each topic at each nsqd.

There is one connection per topic and nsqd, since an attachment ends with its connection: a broken
connection affects one log only.

1. Unreachable nsqds are retried with growing pauses and never forgotten. Only `wait_to_begin` and
   `wait_for` wait for them.
2. A channel is held by an attachment, which ends with its connection: after a reconnect the fleet
   attaches again. If another query has attached in the meantime, our COMMIT is refused and the
   query ends: two queries that took the channel from each other would both lose their position.
3. Logs are identified by their id: an nsqd that comes back at another address is found by its log.
4. Without a channel (a batch read) nothing is held; only the logs' ends are requested.
5. An nsqd that does not answer for one topic is not asked about its other topics in the same
   refresh: a hundred topics would take a hundred times the timeout.
6. ATTACH creates a missing topic, ENDS does not: a topic that was found, by nsqlookupd or by a
   pattern, is checked with ENDS first. Otherwise a topic that is deleted while it is read would
   come back. Only at an nsqd given by address is a missing topic created.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from logging import getLogger
from typing import Final

from sparq.client.errors import WrongPeerError
from sparq.client.layer_options import LayerOptions
from sparq.client.range_reader import Attached, Ends, NoRangesError, Place, RangeReader
from sparq.protocol.errors import RemoteError
from sparq.spark.discovery import NsqdDiscovery, TopicAt
from sparq.spark.errors import RetryDeadline, SupersededError, may_pass
from sparq.spark.offsets import Key, LogPosition, parse_key
from sparq.spark.source_options import SourceOptions

USER_AGENT: Final = "sparq spark source"
RETRY_FIRST_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 3.0
DUPLICATE_REST_SECONDS: Final = 60.0

_LOG = getLogger("sparq.spark")


class TopicConnection:
    """One topic at one nsqd.

    Attributes:
        address: the nsqd's ``host:port``.
        topic: the topic.
        reader: the connection to the nsqd.
        attached: the attachment; None while the nsqd is unreachable or lacks the topic.
        ends: the log's ends at the last request.
        committed: the index of the channel's cursor.
        failure: why the nsqd is unreachable; None while it is reachable.
        log: the id of the log when the nsqd was last reachable; empty before that.
        given_up: the query does not wait for it until it is back.
    """

    def __init__(self, place: TopicAt, user_agent: str, layers: LayerOptions) -> None:
        self.address, self.topic = place
        self.reader = RangeReader(place.address, user_agent=user_agent, layers=layers)
        self.attached: Attached | None = None
        self.ends: Ends | None = None
        self.committed = 0
        self.failure: Exception | None = None
        self.log = ""
        self.given_up = False
        self._retry_at = float("-inf")
        self._pause = RETRY_FIRST_SECONDS

    @property
    def due(self) -> bool:
        """Whether the nsqd is not attached and its retry pause is over."""
        return self.attached is None and time.monotonic() >= self._retry_at

    def may_have(self, key: Key) -> bool:
        """Whether a log may be here, as far as the last contact tells."""
        return self.log == key.log or (not self.log and key.topic in ("", self.topic))

    def open(self, channel: str, *, creates: bool) -> str:
        """Attach, or without a channel only request the log's ends; returns the log's id.

        Args:
            channel: the channel; empty for none.
            creates: whether a missing topic may be created.
        """
        ends = None if channel and creates else self.reader.ends(self.topic)
        if ends is None or channel:
            self.attached = self.reader.attach(self.topic, channel)
        else:
            self.attached = Attached(0, ends, ends.first, ends.first_ordinal)
        self.ends, self.committed = self.attached.ends, self.attached.committed
        self.failure, self._pause, self.given_up = None, RETRY_FIRST_SECONDS, False
        self.log = self.attached.ends.log
        return self.log

    def down(self, error: Exception) -> None:
        """Mark the nsqd as unreachable and retry after a pause, which doubles with each failure."""
        if self.failure is None:
            _LOG.warning("nsqd %s is unreachable: %s", self.address, error)
        self.rest(self._pause)
        # Set after `rest`, which clears it: an nsqd that rests for another reason (a duplicate, a
        # missing topic) is not waited for.
        self.failure = error
        self._pause = min(2 * self._pause, RETRY_MAX_SECONDS)

    def rest(self, seconds: float) -> None:
        """Close the connection and do not reopen it for this long."""
        self.reader.close()
        self.attached, self.failure = None, None
        self._retry_at = time.monotonic() + seconds


class TopicConnections:
    """The connections of one query to all its nsqds, one per topic and nsqd."""

    def __init__(self, options: SourceOptions) -> None:
        self._topics, self._channel = options.topics, options.channel
        self._cluster = options.cluster
        name = options.query_name
        self._user_agent = f"{name} ({USER_AGENT})" if name else USER_AGENT
        self._discovery = NsqdDiscovery(options.cluster, options.topics)
        self._members: dict[TopicAt, TopicConnection] = {}
        self._found: frozenset[TopicAt] = frozenset()
        self._by_log: dict[str, TopicConnection] = {}
        self._undiscovered: OSError | None = None

    # Finding and connecting nsqds

    def refresh(self) -> None:
        """Find new nsqds and retry unreachable ones whose pause is over.

        Raises:
            RemoteError: an nsqd refused to attach the channel.
            NoRangesError, WrongPeerError: the peer at an address is not a sparq nsqd.
        """
        try:
            found = self._discovery.found()
            for place in found:
                self._remember(place)
            self._found = frozenset(found)
            self._undiscovered = None
        except OSError as error:
            self._undiscovered = error
        silent: dict[str, OSError] = {}
        # A copy: `_miss` removes members.
        for member in list(self._members.values()):
            if member.due and member.address in silent:
                member.down(silent[member.address])
            elif member.due:
                self._open(member)
                if isinstance(member.failure, OSError):
                    silent[member.address] = member.failure

    def remember(self, keys: Iterable[Key]) -> None:
        """Add logs named by a checkpoint, which nsqlookupd may no longer list."""
        for key in keys:
            for topic in self._topics.of_key(key):
                self._remember(TopicAt(key.address, topic))

    def _remember(self, place: TopicAt) -> None:
        if place not in self._members:
            self._members[place] = TopicConnection(place, self._user_agent, self._cluster.layers)

    def wait_to_begin(self) -> None:
        """Refresh until every nsqd is reachable, for a query without a checkpoint.

        Raises:
            UnreachableError: it took longer than `begin_timeout_ms`, which is short by default so
                that a mistyped address is reported soon.
        """
        self._wait(None, self._cluster.begin_timeout_ms or self._cluster.timeout_ms)

    def wait_for(self, keys: Collection[Key] | None = None) -> None:
        """Refresh until these logs are reachable (None: every nsqd).

        Raises:
            UnreachableError: it took longer than `timeout_ms`.
        """
        self._wait(keys, self._cluster.timeout_ms)

    def _wait(self, keys: Collection[Key] | None, timeout_ms: int) -> None:
        patience = RetryDeadline("an nsqd or nsqlookupd of this query", timeout_ms)
        while True:
            self.refresh()
            # A missing log at nsqds that all answer is not waited for: waiting would not bring it
            # back.
            if not self.out_of_reach:
                return
            attached = self.attached
            if keys is not None and not self._expects([k for k in keys if k.log not in attached]):
                return
            patience.wait("; ".join(self.out_of_reach))

    def _expects(self, keys: Collection[Key]) -> bool:
        """Whether one of these logs may be at an nsqd that is not read.

        That is one that is unreachable and still waited for, or not discovered yet.
        """
        return bool(keys) and (
            self._undiscovered is not None
            or any(member.may_have(key) for member in self._out_of_reach for key in keys)
        )

    def may_have(self, key: Key) -> bool:
        """Whether a log may be at an nsqd that is unreachable or not yet discovered."""
        return self._undiscovered is not None or any(
            member.failure is not None and member.may_have(key) for member in self._members.values()
        )

    def give_up(self) -> bool:
        """Stop waiting for unreachable nsqds; False if discovery itself is still failing."""
        for member in self._out_of_reach:
            member.given_up = True
        return self._undiscovered is None

    @property
    def _out_of_reach(self) -> list[TopicConnection]:
        members = self._members.values()
        return [each for each in members if each.failure is not None and not each.given_up]

    @property
    def out_of_reach(self) -> list[str]:
        """Unreachable nsqds with reasons, and the nsqlookupds' failure until one has answered."""
        failures = [f"nsqd {member.address}: {member.failure}" for member in self._out_of_reach]
        nsqds = list(dict.fromkeys(failures))
        return nsqds if self._undiscovered is None else [*nsqds, str(self._undiscovered)]

    @property
    def attached(self) -> dict[str, TopicConnection]:
        """The reachable nsqds that have the topic, by their log's id."""
        return {
            member.attached.ends.log: member
            for member in self._members.values()
            if member.attached is not None
        }

    def _open(self, member: TopicConnection) -> None:
        before = self.attached
        try:
            is_given = member.address in self._cluster.nsqd_tcp_addresses
            log = member.open(self._channel, creates=is_given and not self._topics.pattern)
        except OSError as error:
            member.down(error)
        except (WrongPeerError, NoRangesError) as error:
            # An address of the options or of nsqlookupd that never was a sparq nsqd: a mistake to
            # report.
            if TopicAt(member.address, member.topic) in self._found and not member.log:
                raise
            # It was an nsqd before, or only a checkpoint names it: another program has its port.
            member.down(error)
        except RemoteError as refusal:
            if member.log and may_pass(refusal):
                member.down(refusal)
                return
            # nsqd has no code of its own for a missing topic: the text tells it from other
            # refusals.
            if refusal.code != "E_RANGE_FAILED" or "not found" not in refusal.text:
                raise
            self._miss(member)
        else:
            self._by_log[log] = member
            if log in before:
                # One nsqd under two addresses: the newest attachment is the valid one.
                before[log].rest(DUPLICATE_REST_SECONDS)

    def _miss(self, member: TopicConnection) -> None:
        """Handle an nsqd that lacks the topic when the topic must not be created there."""
        member.rest(RETRY_MAX_SECONDS)
        if self._topics.pattern:
            place = TopicAt(member.address, member.topic)
            self._discovery.forget(place)
            del self._members[place]

    # Requests to reachable nsqds

    def ends(self) -> dict[str, Ends]:
        """The ends of every reachable log, by log id."""
        found = {}
        silent: dict[str, OSError] = {}
        for member in self.attached.values():
            if member.address in silent:
                member.down(silent[member.address])
                continue
            try:
                member.ends = ends = member.reader.ends(member.topic)
            except (OSError, RemoteError) as error:
                # A refusal means that the topic was deleted; the next refresh finds that out.
                member.down(error)
                # Only a timeout takes long; a refused connection fails at once, also for other
                # topics.
                if isinstance(error, TimeoutError):
                    silent[member.address] = error
            else:
                if ends.log == member.log:
                    found[ends.log] = ends
                else:
                    # The topic was deleted and created again: nsqd no longer has our attachment,
                    # and the next refresh attaches to the new log.
                    member.rest(0)
        return found

    def place_after(self, log: str, index: int, count: int) -> Place | None:
        """The place `count` messages after `index`; None if the log is unreachable."""
        return self._ask(log, lambda reader, topic: reader.place_after(topic, index, count))

    def place_within(self, log: str, index: int, max_bytes: int) -> Place | None:
        """How far `max_bytes` of a log reach from `index`; None if the log is unreachable."""
        return self._ask(log, lambda reader, topic: reader.place_within(topic, index, max_bytes))

    def place_at_time(self, log: str, wall_ns: int) -> Place | None:
        """The first message published at or after a time; None if the log is unreachable."""
        return self._ask(log, lambda reader, topic: reader.place_at_time(topic, wall_ns))

    def member(self, log: str) -> TopicConnection | None:
        """The member that has a log; None if the log is unreachable."""
        member = self._by_log.get(log)
        # `_by_log` keeps every log that was ever attached: its nsqd may be unreachable now, or have
        # another log.
        if member is None or member.attached is None or member.attached.ends.log != log:
            return None
        return member

    def _ask(self, log: str, question: Callable[[RangeReader, str], Place]) -> Place | None:
        member = self.member(log)
        if member is None:
            return None
        try:
            return question(member.reader, member.topic)
        except OSError as error:
            member.down(error)
        except RemoteError as refusal:
            if not may_pass(refusal):
                raise
            member.down(refusal)
        return None

    def commit(self, positions: Mapping[str, LogPosition]) -> None:
        """Move the channels' cursors to these positions, where they differ.

        Raises:
            SupersededError: another query has attached to the channel.
        """
        for key, position in positions.items():
            index = position.index
            member = self.member(parse_key(key).log)
            if member is None or member.attached is None or member.ends is None:
                continue
            # Skip indexes outside the log: right after a restart nsqd holds the log's end back for
            # a while, and a cursor cannot go back before the log's first message.
            if member.ends.first <= index <= member.ends.end and index != member.committed:
                self._commit(member, member.attached.epoch, index)

    def _commit(self, member: TopicConnection, epoch: int, index: int) -> None:
        try:
            member.reader.commit(member.topic, self._channel, epoch, index)
        except OSError as error:
            member.down(error)
        except RemoteError as refusal:
            if may_pass(refusal):
                member.down(refusal)
                return
            # As above, the text tells a lost channel from other refusals.
            if "superseded" not in refusal.text:
                raise
            raise SupersededError(
                f"another query has taken over channel {self._channel} of topic {member.topic} "
                f"at nsqd {member.address}; give each query its own channel: {refusal}"
            ) from refusal
        else:
            member.committed = index

    def close(self) -> None:
        """Close all connections, which releases every channel."""
        for member in self._members.values():
            member.reader.close()
