"""The broker's statistics in NSQ's two forms: JSON and text (docs/http.md, "/stats as NSQ has it").

1. The JSON form has the fields of `broker/stats.py` as keys, in the same order; fields that Go
   omits when they are empty are omitted.
2. The text form has only NSQ's lines, with the same columns, because scripts cut it by column.
3. Both forms are generated in pieces, one per topic, channel or client, so that `gathered` can
   yield to the event loop in between: thousands of topics take long. Each piece has the values of
   the moment when it is generated.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparq.broker import stats
from sparq.broker.latency import OFF
from sparq.options.units import MICROSECOND, MILLISECOND, SECOND, format_duration
from sparq.program.stdout import version_line
from sparq.protocol import NSQ_VERSION, SPARQ_VERSION, go_json

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.channel import Channel
    from sparq.broker.latency import Latency
    from sparq.broker.session import V2Session
    from sparq.broker.stats import ChannelStats, ClientStats, TopicStats
    from sparq.broker.topic import Topic
    from sparq.protocol.instant import Instant

SLICE_SECONDS = 0.002
"""How long the loop is blocked at a time; a single piece takes about ten microseconds."""

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return this process's resident memory; its peak if the system does not report the present."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_figures() -> dict[str, int]:
    """Return NSQ's memory figures: objects, bytes in use, collector runs; all others are 0."""
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": resident_bytes(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


class StatsRequest(NamedTuple):
    """The selection that a `/stats` request makes.

    Attributes:
        topic, channel: only the one with this name; None: all.
        clients: whether to list the clients.
        memory: whether to include the memory figures.
        start_ns: when nsqd started (ns since 1970).
        all_producers: False: list only clients that have published to the topic.
        client: list only the client with this remote address; None: all.
    """

    topic: str | None
    channel: str | None
    clients: bool
    memory: bool
    start_ns: int
    all_producers: bool = True
    client: str | None = None


async def gathered(pieces: Iterable[str]) -> bytes:
    """Join all pieces into one text; the event loop runs in between."""
    return b"".join(await encoded(pieces))


async def encoded(pieces: Iterable[str | bytes]) -> list[bytes]:
    """Encode all pieces; the event loop runs in between."""
    found: list[bytes] = []
    until = time.perf_counter() + SLICE_SECONDS
    for piece in pieces:
        # One by one: encoding all of them at once would block the loop for milliseconds.
        found.append(piece if isinstance(piece, bytes) else piece.encode())
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS
    return found


def remaining(broker: Broker, topics: Iterable[Topic]) -> Iterator[Topic]:
    """Yield the topics, except those deleted while others were processed."""
    return (topic for topic in topics if broker.topics.get(topic.name) is topic)


# JSON

_OMITTED_WHEN_EMPTY = (
    *("zone_local_msg_count", "region_local_msg_count", "global_msg_count"),
    *("authed", "auth_identity", "auth_identity_url", "pub_counts", "tls_common_name"),
)


def _as_dictionary(figures: Any) -> dict[str, Any]:
    """Return a dataclass's fields as a dictionary, in their order."""
    # Not `dataclasses.asdict`: it copies nested values, which the encoder converts anyway.
    return {name: getattr(figures, name) for name in figures.__dataclass_fields__}


_encode = partial(go_json.to_text, default=_as_dictionary)


def _members(figures: Any) -> dict[str, Any]:
    """Return the members of a JSON object, without empty ones that Go omits."""
    found = _as_dictionary(figures)
    for name in _OMITTED_WHEN_EMPTY:
        if name in found and not found[name]:
            del found[name]
    return found


def _around(figures: Any, nested: str) -> tuple[str, str]:
    """Return an object's JSON before the value of the member `nested`, and the JSON after it."""
    # No other member can contain this text: quotes within a value are escaped.
    before, member, behind = _encode({**_members(figures), nested: []}).partition(f'"{nested}":[]')
    return before + member[:-2], behind


def _list(items: Iterable[Iterator[str]]) -> Iterator[str]:
    """Yield a JSON list of items, each of which comes in pieces."""
    comma = "["
    for item in items:
        yield comma
        yield from item
        comma = ","
    yield "[]" if comma == "[" else "]"


def json_pieces(broker: Broker, wanted: StatsRequest, now: Instant) -> Iterator[str]:
    """Yield the JSON form of `/stats`."""
    topics = stats.selected(broker, wanted.topic)
    began = wanted.start_ns // SECOND
    head = {"version": NSQ_VERSION, "health": broker.health(), "start_time": began}
    yield f'{_encode(head)[:-1]},"topics":'
    if topics is None:
        yield "null"
    else:
        chosen = _with_channels(broker, topics, wanted)
        yield from _list(_topic_json(topic, found, wanted, now) for topic, found in chosen)
    if wanted.memory:
        yield f',"memory":{_encode(memory_figures())}'
    yield ',"producers":'
    sessions = _producers(broker, wanted) if topics is not None else []
    if sessions:
        yield from _list(_client_json(session, wanted.topic) for session in sessions)
    else:
        yield "null"
    behind: dict[str, Any] = {
        "reserve": _reserve_figures(broker),
        "sparq_version": SPARQ_VERSION,
        **({} if broker.drains.now.node is None else {"draining": True}),
    }
    yield f",{_encode(behind)[1:]}"


def _reserve_figures(broker: Broker) -> dict[str, Any] | None:
    """Return the space reserved for FINs on a full disk; None before the broker has loaded."""
    reserve = broker.fin_reserve()
    if reserve is None:
        return None
    return {
        "bytes": reserve.reserve_bytes,
        "target_bytes": reserve.target_bytes,
        "finishes": reserve.finishes,
        "is_short": reserve.is_short,
    }


def _producers(broker: Broker, wanted: StatsRequest) -> list[V2Session]:
    """Return the sessions that have published; as in NSQ, also to other topics than the wanted."""
    return [
        session
        for session in _chosen(broker.sessions.values(), wanted)
        if (session.pub_counts if wanted.all_producers else wanted.topic in session.pub_counts)
    ]


def _chosen(sessions: Iterable[V2Session], wanted: StatsRequest) -> list[V2Session]:
    """Return the sessions to list: a copy, since sessions come and go between two pieces."""
    if not wanted.clients:
        return []
    return [one for one in sessions if wanted.client in (None, one.remote_address)]


def _with_channels(
    broker: Broker, topics: Iterable[Topic], wanted: StatsRequest
) -> Iterator[tuple[Topic, list[Channel]]]:
    """Yield each topic with its selected channels; skip a topic without the named channel."""
    for topic in remaining(broker, topics):
        channels = stats.channels_of(topic, wanted.channel)
        if channels or wanted.channel is None:
            yield topic, channels


def _topic_stats(topic: Topic, now: Instant) -> TopicStats:
    """Return a topic's figures; it has percentiles only if it has channels, as in Go."""
    figures = stats.of_topic(topic, now)
    return figures if topic.channels else replace(figures, e2e_processing_latency=OFF)


def _topic_json(
    topic: Topic, channels: list[Channel], wanted: StatsRequest, now: Instant
) -> Iterator[str]:
    before, behind = _around(_topic_stats(topic, now), "channels")
    queue = topic.options.mem_queue_size
    yield before
    yield from _list(_channel_json(channel, queue, wanted, now) for channel in channels)
    yield behind


def _channel_json(
    channel: Channel, queue: int, wanted: StatsRequest, now: Instant
) -> Iterator[str]:
    figures = stats.of_channel(channel, queue, now)
    if not wanted.clients:
        yield _encode(_members(figures))
        return
    before, behind = _around(figures, "clients")
    sessions = _chosen(channel.sessions.values(), wanted)
    yield before
    yield from _list(_client_json(session, wanted.topic) for session in sessions)
    yield behind


def _client_json(session: V2Session, topic_name: str | None) -> Iterator[str]:
    yield _encode(_members(stats.of_client(session, topic_name)))


# Text


def text_pieces(broker: Broker, wanted: StatsRequest, now: Instant) -> Iterator[str]:
    """Yield the text form of `/stats`."""
    began = datetime.fromtimestamp(wanted.start_ns // SECOND).astimezone().isoformat()
    yield f"{version_line('nsqd')}\n"
    yield f"start_time {began.replace('+00:00', 'Z')}\n"
    yield f"uptime {format_duration(now.wall_ns - wanted.start_ns)}\n\nHealth: {broker.health()}\n"
    if wanted.memory:
        yield "\nMemory:\n"
        yield from (f"   {key:<25}\t{value}\n" for key, value in memory_figures().items())
    topics = stats.selected(broker, wanted.topic)
    heading = "\nTopics:\n"
    for topic, channels in _with_channels(broker, topics or (), wanted):
        yield heading
        yield from _topic_text(topic, channels, wanted, now)
        heading = "\n"
    if heading != "\n":
        yield "\nTopics: None\n"
    sessions = _producers(broker, wanted) if topics is not None else []
    yield "\nProducers:\n" if sessions else "\nProducers: None\n"
    for session in sessions:
        yield f"   {client_line(stats.of_client(session, wanted.topic), now.wall_ns)}\n"


def _topic_text(
    topic: Topic, channels: list[Channel], wanted: StatsRequest, now: Instant
) -> Iterator[str]:
    yield f"{_topic_line(_topic_stats(topic, now))}\n"
    for channel in channels:
        yield f"{_channel_line(stats.of_channel(channel, topic.options.mem_queue_size, now))}\n"
        for session in _chosen(channel.sessions.values(), wanted):
            yield f"        {client_line(stats.of_client(session, wanted.topic), now.wall_ns)}\n"


def _topic_line(topic: TopicStats) -> str:
    return (
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}]"
        f" depth: {topic.depth:<5d} be-depth: {topic.backend_depth:<5d}"
        f" msgs: {topic.message_count:<8d} e2e%: {_latency_text(topic.e2e_processing_latency)}"
    )


def _channel_line(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.channel_name:<25}]"
        f" depth: {channel.depth:<5d} be-depth: {channel.backend_depth:<5d}"
        f" inflt: {channel.in_flight_count:<4d} def: {channel.deferred_count:<4d}"
        f" re-q: {channel.requeue_count:<5d} timeout: {channel.timeout_count:<5d}"
        f" msgs: {channel.message_count:<8d}"
        f" e2e%: {_latency_text(channel.e2e_processing_latency)}"
    )


def _latency_text(latency: Latency) -> str:
    return ", ".join(human(item["value"]) for item in latency.percentiles or ())


def human(nanoseconds: float) -> str:
    """Format a latency as in NSQ's text form; exactly one unit is shown in the smaller unit."""
    for unit, name in ((SECOND, "s"), (MILLISECOND, "ms"), (MICROSECOND, "us")):
        if nanoseconds > unit:
            return f"{nanoseconds / unit:.1f}{name}"
    return f"{nanoseconds:.1f}ns"


def client_line(client: ClientStats, now_ns: int) -> str:
    """Format a client's line: its publishes if there are any, or its consumer figures."""
    connected = format_duration(max(0, now_ns // SECOND - client.connect_ts) * SECOND)
    port = client.remote_address.rpartition(":")[2]
    name = f"{client.hostname}:{port} {client.user_agent}"
    begin = f"[{client.version} {name:<21}]"
    if client.pub_counts:
        total = sum(item.count for item in client.pub_counts)
        topics = ",".join(f"{item.topic}={item.count}" for item in client.pub_counts)
        return f"{begin} msgs: {total:<8d} topics: {topics} connected: {connected}"
    return (
        f"{begin} state: {client.state} inflt: {client.in_flight_count:<4d}"
        f" rdy: {client.ready_count:<4d} fin: {client.finish_count:<8d}"
        f" re-q: {client.requeue_count:<8d} msgs: {client.message_count:<8d}"
        f" connected: {connected}"
    )
