"""The figures of an nsqd, parsed within bounds, and what the figures of a channel mean.

1. A node's answer is data. A field of another type, or a number that no nsqd can have, makes the
   answer unreadable: the node is named as faulty, and the others are shown. Fields that a node
   omits are 0, empty or unknown; entries whose names NSQ does not allow are left out.
2. Every program that shows a cluster uses the words of this module, and docs/glossary.md explains
   them: nsqadmin, `sparq top`, `sparq admin list`, `nsq_stat`.
3. Texts are as the node sent them: code that shows one must cut it to one line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar

import msgspec

from sparq.protocol.names import is_valid_name, one_line

T = TypeVar("T")

is_name = lru_cache(maxsize=1 << 16)(is_valid_name)
"""Whether NSQ allows a name; cached, since the same names are checked every two seconds."""

STATES: Final = ("ok", "paused", "behind", "no consumers", "stuck")
"""The states of a channel, the most serious last."""

BEHIND_SECONDS: Final = 60.0
"""A channel is behind if its lag is longer than this."""

STUCK_SECONDS: Final = 60.0
"""A channel is stuck if its consumers finish nothing for this long while messages are unfinished.

This is the default of `--msg-timeout`: by then nsqd has taken every message back from its consumer.
A shorter time would call a handler stuck that NSQ allows.
"""

READER_STUCK_SECONDS: Final = 120.0
"""The same for a range reader: a Spark query finishes nothing between its batches, a minute long.
"""

SECONDS_MAX: Final = 253_402_300_799
"""The last second that has a four-digit year, since 1970; also the maximum of an age."""

DELIVERY: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")

Count = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of 64 bits, as all of NSQ's are."""

Name = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[.a-zA-Z0-9_-]+(#ephemeral)?\Z")]
"""A name that NSQ allows (`protocol.names`)."""

Line = Annotated[str, msgspec.Meta(max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
"""A text of one line, without control characters."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Age = Annotated[float, msgspec.Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)]


# gc=False: these structs cannot form cycles, and an answer has 10,000 of them or more, which the
# garbage collector would visit for nothing.
class Percentile(msgspec.Struct, gc=False):
    """A quantile of the time from publish to FIN, in ns."""

    quantile: float = 0.0
    value: float = 0.0


class LatencyFigures(msgspec.Struct, gc=False):
    """The times from publish to FIN, as NSQ reports them."""

    count: Count = 0
    percentiles: list[Percentile] | None = None


class PublishCount(msgspec.Struct, gc=False):
    """How many messages a client has published to a topic."""

    topic: str = ""
    count: Count = 0


class Client(msgspec.Struct, gc=False):
    """One client connection; counts are since it was opened at `connect_ts`, seconds since 1970.

    Its texts are reported by the client: they may contain control characters.
    """

    remote_address: str = ""
    version: str = ""
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    connect_ts: Count = 0
    in_flight_count: Count = 0
    ready_count: Count = 0
    finish_count: Count = 0
    requeue_count: Count = 0
    message_count: Count = 0
    sample_rate: Count = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    pub_counts: list[PublishCount] | None = None
    state: Count = 0
    tls_common_name: str = ""


class _Queue(msgspec.Struct, gc=False, kw_only=True):
    """What topics and channels have in common; counters count since the nsqd's start.

    Attributes:
        finish_count: -1: not reported, as by Go's nsqd (`finished`).
    """

    depth: Count = 0
    backend_depth: Count = 0
    in_flight_count: Count = 0
    deferred_count: Count = 0
    message_count: Count = 0
    message_bytes: Count = 0
    requeue_count: Count = 0
    timeout_count: Count = 0
    finish_count: Count = -1
    client_count: Count = 0
    ready_count: Count = 0
    zone_local_msg_count: Count = 0
    region_local_msg_count: Count = 0
    global_msg_count: Count = 0
    paused: bool = False
    e2e_processing_latency: LatencyFigures | None = None

    @property
    def finished(self) -> int:
        """Messages finished; at Go's nsqd those received that are not there any more."""
        if self.finish_count >= 0:
            return self.finish_count
        return max(0, self.message_count - max(0, self.left))

    @property
    def left(self) -> int:
        """Messages waiting, in flight or deferred."""
        return self.depth + self.in_flight_count + self.deferred_count


class ChannelFigures(_Queue, gc=False, kw_only=True):
    """A channel at one nsqd.

    Attributes:
        oldest_waiting_seconds: age of the oldest waiting message; None: not reported, as by Go's
            nsqd.
        range_reader: address of the range reader that holds it; it is no client.
    """

    channel_name: str
    clients: list[Client] | None = None
    oldest_waiting_seconds: Age | None = None
    range_reader: str | None = None
    range_query: str | None = None
    range_commit_seconds: Age | None = None


class TopicFigures(_Queue, gc=False, kw_only=True):
    """A topic at one nsqd; its `depth` is the number of messages that no channel has yet."""

    topic_name: str
    listed: list[ChannelFigures] | None = msgspec.field(default=None, name="channels")

    @property
    def channels(self) -> list[ChannelFigures]:
        """Its channels."""
        return self.listed or []

    @property
    def waiting(self) -> int:
        """Messages waiting in the topic and all of its channels."""
        return self.depth + sum(channel.depth for channel in self.channels)


class _Reserve(msgspec.Struct, gc=False):
    is_short: bool = False


class NsqdFigures(msgspec.Struct, gc=False):
    """An nsqd's figures.

    Attributes:
        health: `OK`, or what is wrong with its disk.
        start_time: when it was started, seconds since 1970.
        sparq_version: None: it is Go's nsqd.
        producers: the clients that have published.
        draining: whether it refuses publishes because it is draining.
        data: the figures in the form before NSQ 1.0.
    """

    version: str = ""
    health: str = ""
    start_time: Moment = 0
    listed: list[TopicFigures] | None = msgspec.field(default=None, name="topics")
    sparq_version: str | None = None
    producers: list[Client] | None = None
    reserve: _Reserve | None = None
    draining: bool = False
    data: NsqdFigures | None = None

    @property
    def topics(self) -> list[TopicFigures]:
        """Its topics."""
        return self.listed or []

    @property
    def is_short(self) -> bool:
        """Whether it refuses publishes because it is short of disk space."""
        return self.reserve is not None and self.reserve.is_short

    @property
    def state(self) -> str:
        """The state of a node that answers: `up`, `draining`, `disk full` or `disk error`."""
        if self.is_short:
            return "disk full"
        if self.health not in ("", "OK"):
            return "disk error"
        return "draining" if self.draining else "up"

    def topic(self, name: str) -> TopicFigures | None:
        """The topic of this name; None: the node does not have it."""
        return next((topic for topic in self.topics if topic.topic_name == name), None)

    def channel(self, topic: str, name: str) -> ChannelFigures | None:
        """The channel of this name; None: the node does not have it."""
        found = self.topic(topic)
        channels = found.channels if found else ()
        return next((channel for channel in channels if channel.channel_name == name), None)

    def clients(self) -> Iterator[tuple[str, str, Client]]:
        """The topic, the channel and the client of each connection of a consumer."""
        for topic in self.topics:
            for channel in topic.channels:
                for client in channel.clients or ():
                    yield topic.topic_name, channel.channel_name, client


_stats = msgspec.json.Decoder(NsqdFigures)


def read(answer: bytes | bytearray) -> NsqdFigures:
    """Parse an answer of `/stats`, without topics and channels whose names NSQ does not allow.

    Raises:
        ValueError: it is unreadable (rule 1).
    """
    try:
        found = _stats.decode(answer)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ValueError(f"unreadable statistics: {one_line(str(error))}") from None
    found = found.data or found
    if not found.version:
        raise ValueError("unreadable statistics: they have no version")
    found.listed = [topic for topic in found.topics if is_name(topic.topic_name)]
    for topic in found.listed:
        topic.listed = [one for one in topic.channels if is_name(one.channel_name)]
        for channel in topic.listed:
            age = channel.oldest_waiting_seconds
            if age is not None or found.sparq_version is not None:  # null: no message waits
                channel.oldest_waiting_seconds = max(0.0, age or 0.0)
    return found


class SeekResult(msgspec.Struct, gc=False):
    """Where a channel has landed, or would land, at one nsqd, and what that means for messages."""

    again: Amount
    waiting: Amount
    skipped: Amount
    index: str = ""
    time: str | None = None
    oldest_index: str | None = None
    oldest_time: str | None = None
    older_are_gone: bool = False


class PolicyChange(msgspec.Struct):
    """A setting of a topic or channel that changes at one nsqd."""

    topic: str
    channel: str | None = None
    setting: str = ""
    before: int | str = ""
    after: int | str = ""


class PoliciesResult(msgspec.Struct):
    """How many settings of topics and channels change at one nsqd, and the first changes."""

    changed: Amount = 0
    changes: list[PolicyChange] = []


class Refusal(msgspec.Struct):
    """A selected message on which an nsqd did not act, and why."""

    id: str = ""
    why: str = ""


class SelectionResult(msgspec.Struct):
    """What an nsqd did with selected messages; `next`: where it continues with those that wait."""

    done: list[str] = []
    refused: list[Refusal] = []
    next: str | None = None


def checked(answer: Any, form: type[T]) -> T:
    """Read a parsed answer as a value of this form. Raises ValueError: it is unreadable."""
    try:
        return msgspec.convert(answer, form)
    except msgspec.ValidationError as error:
        raise ValueError(f"unreadable answer: {one_line(str(error))}") from None


def channel_state(
    *,
    paused: bool,
    clients: int,
    has_reader: bool,
    unfinished: int,
    idle_seconds: float,
    lag_seconds: float,
) -> str:
    """A channel's state; the arguments are figures over all nodes that answer.

    Args:
        paused: whether it is paused at any node.
        clients: number of its consumers' connections.
        has_reader: whether a range reader holds it.
        unfinished: messages waiting or in flight.
        idle_seconds: how long messages have been unfinished without one being finished.
        lag_seconds: its lag; nan: unknown.
    """
    if paused:
        return "paused"
    if not clients and not has_reader:
        return "no consumers"
    if unfinished and idle_seconds >= (READER_STUCK_SECONDS if has_reader else STUCK_SECONDS):
        return "stuck"
    return "behind" if unfinished and lag_seconds > BEHIND_SECONDS else "ok"


def state_of(state: str, *, topic_paused: bool = False, gone: bool = False) -> str:
    """A state in words, such as `stuck, topic paused`.

    Args:
        state: a state of `channel_state`.
        topic_paused: whether its topic is paused: no new messages come to the channel.
        gone: whether it has another node, which does not answer.
    """
    more = [*(["topic paused"] if topic_paused else []), *(["nsqd gone"] if gone else [])]
    return ", ".join(more if state == "ok" and more else [state, *more])


def lag_of(age: float | None, unfinished: int, finish_rate: float | None) -> float:
    """The lag of a channel in seconds: the age of its oldest waiting message; nan: unknown.

    Args:
        age: the age; None: a node does not report it, as Go's nsqd. Then the lag is estimated by
            Little's law.
        unfinished: messages waiting or in flight.
        finish_rate: messages finished per second.
    """
    if age is not None:
        return age
    if not unfinished:
        return 0.0
    return unfinished / finish_rate if finish_rate else math.nan
