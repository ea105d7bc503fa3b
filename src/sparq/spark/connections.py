"""Nsqds and the driver's connections to them: how they are found, checked, held and asked.

Finding (`NsqdDiscovery`, also for the sink):

1. An nsqd that was found once is kept: when it is down it disappears from nsqlookupd, but its
   unread messages still have to be read. A topic is forgotten only when its nsqd reports that it
   does not have it.
2. One nsqlookupd that answers is enough, since each nsqd registers with all of them.
3. One request finds everything: ``/lookup`` for one topic; for several topics ``/nodes``, which
   lists the topics of each nsqd. Both leave out a topic that is tombstoned at an nsqd.

Holding (`TopicConnections`): there is one connection per topic and nsqd, since an attachment ends
with its connection; a broken connection affects one log only.

4. Unreachable nsqds are retried with growing pauses and never forgotten, except those that the
   option `lostNsqds` gives up. Only `wait_for` waits for them.
5. A channel is held by an attachment, which ends with its connection: after a reconnect the query
   attaches again. If another query has attached in the meantime, our COMMIT is refused and the
   query ends: two queries that took the channel from each other would both lose their position.
6. Logs are identified by their id: an nsqd that comes back at another address is found by its log.
7. Without a channel (a batch read) nothing is held; only the logs' ends are requested.
8. An nsqd that does not answer for one topic is not asked about its other topics in the same
   refresh: a hundred topics would take a hundred times the timeout.
9. ATTACH creates a missing topic, ENDS does not: a topic that was found, by nsqlookupd or by a
   pattern, is checked with ENDS first. Otherwise a topic that is deleted while it is read would
   come back. Only at an nsqd given by address is a missing topic created.
"""

import contextlib
import http.client
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from logging import getLogger
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sparq.client.blocking.connection import BlockingConnection
from sparq.client.errors import WrongPeerError
from sparq.client.range_reader import Attached, Ends, NoRangesError, Place, RangeReader
from sparq.protocol import lookup
from sparq.protocol.bounded import check_size
from sparq.protocol.errors import RemoteError
from sparq.spark.errors import RetryDeadline, SupersededError, may_pass
from sparq.spark.offsets import Key, LogPosition, TopicSelection
from sparq.spark.options import ClusterOptions, SourceOptions
from sparq.wire.layer_options import LayerOptions, check_lookupd_status

INTERVAL_SECONDS: Final = 2.0
"""How often nsqlookupd is asked; `LOOKUP_RETRY_SECONDS` until the first answer."""

LOOKUP_RETRY_SECONDS: Final = 0.2
LOOKUP_TIMEOUT_SECONDS: Final = 5.0

CHECK_SECONDS: Final = 3.0
"""Time limit of `check_peers`: an nsqd that is down at the moment is not a mistake."""

USER_AGENT: Final = "sparq spark source"
RETRY_FIRST_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 3.0
DUPLICATE_REST_SECONDS: Final = 60.0

_LOG = getLogger("sparq.spark")


class TopicAt(NamedTuple):
    """A topic at an nsqd; with an empty topic the nsqd itself."""

    address: str
    topic: str


class NsqdDiscovery:
    """Finds nsqds; without topics all of them. Asks nsqlookupds again every `INTERVAL_SECONDS`."""

    def __init__(self, cluster: ClusterOptions, topics: TopicSelection | None) -> None:
        self._lookupds = cluster.lookupd_http_addresses
        self._layers = cluster.layers
        self._topics = topics
        names = ("",) if topics is None else topics.names
        # A dictionary serves as a set that keeps the order.
        self._found = {
            TopicAt(address, name): None for address in cluster.nsqd_tcp_addresses for name in names
        }
        self._ask_at = float("-inf")
        # Why no nsqlookupd has answered yet; empty from the first answer on: then a failure only
        # means that no new nsqds are found, and those known so far can still be read.
        self._silence = "not asked yet" if self._lookupds else ""

    def forget(self, gone: TopicAt) -> None:
        """Forget a topic that an nsqd does not have; nsqlookupd may list it again later."""
        self._found.pop(gone, None)

    def found(self) -> tuple[TopicAt, ...]:
        """All nsqds and topics found so far, in the order in which they were found.

        Raises:
            OSError: no nsqlookupd has answered yet.
        """
        now = time.monotonic()
        if self._lookupds and now >= self._ask_at:
            failures = self._ask_all()
            if len(failures) < len(self._lookupds):
                self._silence = ""
            elif self._silence:
                self._silence = "; ".join(failures)
            self._ask_at = now + (LOOKUP_RETRY_SECONDS if self._silence else INTERVAL_SECONDS)
        if self._silence:
            raise ConnectionError(self._silence)
        return tuple(self._found)

    def _ask_all(self) -> list[str]:
        """Ask every nsqlookupd; returns why some did not answer."""
        failures = []
        for address in self._lookupds:
            try:
                self._found |= dict.fromkeys(self._listed(self._ask(address)))
            except OSError as error:
                failures.append(f"nsqlookupd {address}: {error or type(error).__name__}")
            except (http.client.BadStatusLine, lookup.NotLookupdError) as error:
                # A mistake in the options, which is reported at once.
                is_http = isinstance(error, lookup.NotLookupdError)
                reason = error if is_http else "it does not speak HTTP (port 4161 by default)"
                raise WrongPeerError(
                    f"option lookupd_http_addresses: {address} is not an nsqlookupd's HTTP port: "
                    f"{reason}"
                ) from None
            except (http.client.HTTPException, ValueError) as error:
                failures.append(f"nsqlookupd {address}: {error or type(error).__name__}")
        return failures

    def _ask(self, address: str) -> Any:
        """Ask one nsqlookupd; returns its parsed answer. Raises what `_ask_all` catches."""
        if (one := self._one_topic) is None:
            url = urlsplit(lookup.question(address, "nodes"))
        else:
            url = urlsplit(lookup.question(address, "lookup", topic=one))
        host, port, timeout = url.hostname or "", url.port, LOOKUP_TIMEOUT_SECONDS
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
        if url.scheme != "http":
            context = self._layers.tls_context()
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        headers = {**lookup.HEADERS, **self._layers.lookupd_headers(url.geturl())}
        # As bytes: http.client encodes text as Latin-1, and raises for a secret with other
        # characters.
        sent = {name: value.encode() for name, value in headers.items()}
        try:
            target = url._replace(scheme="", netloc="").geturl()
            connection.request("GET", target, headers=sent)
            response = connection.getresponse()
            body = response.read(lookup.ANSWER_BYTES_MAX + 1)
        finally:
            connection.close()
        check_lookupd_status(self._layers, url.geturl(), response.status)
        check_size(len(body), lookup.ANSWER_BYTES_MAX)
        return lookup.answer(response.status, body)

    @property
    def _one_topic(self) -> str | None:
        """The topic's name, if exactly one topic is looked for by name; else None."""
        names = () if self._topics is None else self._topics.names
        return names[0] if len(names) == 1 else None

    def _listed(self, answer: Any) -> Iterator[TopicAt]:
        """The wanted nsqds and topics among those that an nsqlookupd lists."""
        for producer in lookup.producers(answer).found:
            if self._topics is None:
                yield TopicAt(producer.address, "")
            elif (one := self._one_topic) is not None:
                yield TopicAt(producer.address, one)
            else:
                for name, is_hidden in producer.topics:
                    if not is_hidden and self._topics.has(name):
                        yield TopicAt(producer.address, name)


def check_peers(cluster: ClusterOptions, topics: TopicSelection | None) -> None:
    """Find mistakes in the addresses before a source (or, without topics, a sink) runs.

    Nothing is created. Daemons that do not answer are not reported: the query waits for them.

    Raises:
        WrongPeerError, NoRangesError, RemoteError, TlsError, AuthRequiredError: as the
            documentation of `NsqDataSource` says.
    """
    with contextlib.suppress(OSError):
        NsqdDiscovery(cluster, topics).found()
    give_up_at = time.monotonic() + CHECK_SECONDS
    for address in cluster.nsqd_tcp_addresses:
        if time.monotonic() >= give_up_at:
            return
        with contextlib.suppress(OSError):
            if topics is None:
                BlockingConnection(address, user_agent=USER_AGENT, layers=cluster.layers).close()
                continue
            reader = RangeReader(address, user_agent=USER_AGENT, layers=cluster.layers)
            with contextlib.closing(reader), contextlib.suppress(RemoteError):
                # A refusal means that the topic does not exist yet, or that permission is missing:
                # the query reports it.
                reader.ends(topics.names[0])


class TopicConnection:
    """One topic at one nsqd.

    Attributes:
        address, topic, reader: the nsqd's ``host:port``, the topic, the connection to the nsqd.
        attached: the attachment, with the log's ends at the last request and the channel's cursor;
            None while the nsqd is unreachable or lacks the topic.
        failure: why the nsqd is unreachable; None while it is reachable.
        log: the id of the log when the nsqd was last reachable; empty before that.
        retry_at: when it is tried again, in seconds of the monotonic clock.
        given_up: the query does not wait for it until it is back.
    """

    def __init__(self, place: TopicAt, user_agent: str, layers: LayerOptions) -> None:
        self.address, self.topic = place
        self.reader = RangeReader(place.address, user_agent=user_agent, layers=layers)
        self.attached: Attached | None = None
        self.failure: Exception | None = None
        self.log = ""
        self.given_up = False
        self.retry_at = float("-inf")
        self._pause = RETRY_FIRST_SECONDS

    def may_have(self, key: Key) -> bool:
        """Whether a log may be here, as far as the last contact tells."""
        return self.log == key.log or (not self.log and key.topic in ("", self.topic))

    def open(self, channel: str, *, creates: bool) -> str:
        """Attach, or without a channel only request the log's ends; returns the log's id.

        A missing topic is created if `creates` is set.
        """
        ends = None if channel and creates else self.reader.ends(self.topic)
        if ends is None or channel:
            self.attached = self.reader.attach(self.topic, channel)
        else:
            self.attached = Attached(0, ends, ends.first, ends.first_ordinal)
        self.failure, self._pause, self.given_up = None, RETRY_FIRST_SECONDS, False
        self.log = self.attached.ends.log
        return self.log

    @contextlib.contextmanager
    def contact(self) -> Iterator[None]:
        """Mark the nsqd as unreachable if a request fails for a reason that may pass."""
        try:
            yield
        except OSError as error:
            self.down(error)
        except RemoteError as refusal:
            if not may_pass(refusal):
                raise
            self.down(refusal)

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
        self.retry_at = time.monotonic() + seconds


class TopicConnections:
    """The connections of one query to all its nsqds, one per topic and nsqd."""

    def __init__(self, options: SourceOptions) -> None:
        self._topics, self._channel = options.topics, options.channel
        self._cluster, self._lost = options.cluster, options.lost_nsqds
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
            if member.attached is not None or time.monotonic() < member.retry_at:
                continue
            if member.address in silent:
                member.down(silent[member.address])
            else:
                self._open(member)
                if isinstance(member.failure, OSError):
                    silent[member.address] = member.failure

    def remember(self, keys: Iterable[Key]) -> None:
        """Add logs named by a checkpoint, which nsqlookupd may no longer list."""
        for key in keys:
            for topic in self._topics.of_key(key):
                self._remember(TopicAt(key.address, topic))

    def _remember(self, place: TopicAt) -> None:
        if place not in self._members and place.address not in self._lost:
            self._members[place] = TopicConnection(place, self._user_agent, self._cluster.layers)

    def wait_for(self, keys: Collection[Key] | None = None, *, begins: bool = False) -> None:
        """Refresh until these logs are reachable (None: every nsqd).

        Raises:
            UnreachableError: it took longer than `timeout_ms`, or (`begins`: a query without a
                checkpoint) `begin_timeout_ms`.
        """
        cluster = self._cluster
        timeout_ms = (begins and cluster.begin_timeout_ms) or cluster.timeout_ms
        patience = RetryDeadline("an nsqd or nsqlookupd of this query", timeout_ms)
        while True:
            self.refresh()
            # A missing log at nsqds that all answer is not waited for: waiting would not bring it
            # back.
            if not self.out_of_reach:
                return
            attached, silent = self.attached, self._out_of_reach
            missing = [key for key in keys or () if key.log not in attached]
            may_come = self._undiscovered or any(m.may_have(k) for m in silent for k in missing)
            if keys is not None and not (missing and may_come):
                return
            patience.wait("; ".join(self.out_of_reach))

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
            # An address given or found that never was a sparq nsqd: a mistake to report.
            if TopicAt(member.address, member.topic) in self._found and not member.log:
                raise
            # It was an nsqd before, or only a checkpoint names it: another program has its port.
            member.down(error)
        except RemoteError as refusal:
            if member.log and may_pass(refusal):
                member.down(refusal)
                return
            # nsqd has no code of its own for a missing topic: the text tells.
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
                ends = member.reader.ends(member.topic)
            except (OSError, RemoteError) as error:
                # A refusal means that the topic was deleted; the next refresh finds that out.
                member.down(error)
                # Only a timeout takes long; a refused connection fails at once.
                if isinstance(error, TimeoutError):
                    silent[member.address] = error
            else:
                if ends.log == member.log and member.attached is not None:
                    member.attached = member.attached._replace(ends=ends)
                    found[ends.log] = ends
                else:
                    # The topic was deleted and created again: nsqd no longer has our attachment,
                    # and the next refresh attaches to the new log.
                    member.rest(0)
        return found

    def member(self, log: str) -> TopicConnection | None:
        """The member that has a log; None if the log is unreachable."""
        member = self._by_log.get(log)
        # `_by_log` keeps every log that was ever attached: its nsqd may be unreachable now, or have
        # another log.
        if member is None or member.attached is None or member.attached.ends.log != log:
            return None
        return member

    def place(self, log: str, find: Callable[..., Place], *where: int) -> Place | None:
        """A place in a log, found by a method of `RangeReader`; None if the log is unreachable."""
        member = self.member(log)
        if member is not None:
            with member.contact():
                return find(member.reader, member.topic, *where)
        return None

    def commit(self, positions: Mapping[Key, LogPosition], *, only_back: bool = False) -> None:
        """Move the channels' cursors to these positions; with `only_back` only those after them.

        Raises:
            SupersededError: another query has attached to the channel.
        """
        for key, position in positions.items():
            index = position.index
            member = self.member(key.log)
            if member is None or member.attached is None:
                continue
            held = member.attached
            # Skip indexes outside the log: right after a restart nsqd holds the log's end back for
            # a while, and a cursor cannot go back before the log's first message.
            is_moved = index < held.committed if only_back else index != held.committed
            if not held.ends.first <= index <= held.ends.end or not is_moved:
                continue
            try:
                with member.contact():
                    member.reader.commit(member.topic, self._channel, held.epoch, index)
                    member.attached = held._replace(
                        committed=index, committed_ordinal=position.ordinal
                    )
            except RemoteError as refusal:
                # As above, the text tells a lost channel from other refusals.
                if "superseded" not in refusal.text:
                    raise
                raise SupersededError(
                    f"a query, maybe this one started elsewhere, has taken over channel"
                    f" {self._channel} of {member.topic} at {member.address}: stop it, or give it"
                    f" its own channel: {refusal}"
                ) from refusal

    def close(self) -> None:
        """Close all connections, which releases every channel."""
        for member in self._members.values():
            member.reader.close()
