"""The broker's statistics, one row for each topic, channel and client, in NSQ's JSON and text.

`rows` is also what `/metrics` and statsd are made from.

1. The JSON form has the fields of `broker/stats.py` as keys, in the same order; fields that Go
   omits when they are empty are omitted.
2. The text form has only NSQ's lines, with the same columns, because scripts cut it by column.
3. Every form is generated in pieces, so that `encoded` can yield to the event loop in between:
   thousands of topics take long. Each row has the values of the moment when it is generated.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparq.broker import stats
from sparq.broker.stats import ChannelStats, ClientStats, TopicStats
from sparq.options.units import MICROSECOND, MILLISECOND, SECOND, format_duration
from sparq.program.stdout import version_line
from sparq.protocol import NSQ_VERSION, SPARQ_VERSION, go_json

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.latency import Latency
    from sparq.broker.session import V2Session
    from sparq.broker.topic import Topic
    from sparq.protocol.instant import Instant

SLICE_SECONDS = 0.002
"""How long the loop is blocked at a time; a single piece takes about ten microseconds."""

_STATM = Path("/proc/self/statm")

Row = TopicStats | ChannelStats | ClientStats


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
        all_producers: False: list only clients that have published to the topic.
        client: list only the client with this remote address; None: all.
    """

    topic: str | None = None
    channel: str | None = None
    clients: bool = False
    memory: bool = False
    all_producers: bool = True
    client: str | None = None


async def encoded(pieces: Iterable[str]) -> list[bytes]:
    """Encode all pieces; the event loop runs in between."""
    found: list[bytes] = []
    until = time.perf_counter() + SLICE_SECONDS
    for piece in pieces:
        # One by one: encoding all of them at once would block the loop for milliseconds.
        found.append(piece.encode())
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS
    return found


def remaining(broker: Broker, topics: Iterable[Topic]) -> Iterator[Topic]:
    """Yield the topics, except those deleted while others were processed."""
    return (topic for topic in topics if broker.topics.get(topic.name) is topic)


def rows(broker: Broker, wanted: StatsRequest, now: Instant) -> Iterator[Row]:
    """Yield each selected topic, then each of its channels, each followed by its clients.

    A topic without the named channel is skipped.
    """
    for topic in remaining(broker, stats.selected(broker, wanted.topic) or ()):
        channels = stats.channels_of(topic, wanted.channel)
        if wanted.channel is not None and not channels:
            continue
        yield stats.of_topic(topic, now)
        for channel in channels:
            figures = stats.of_channel(channel, topic.options.mem_queue_size, now)
            figures.clients = [] if wanted.clients else None
            yield figures
            for session in _chosen(channel.sessions.values(), wanted):
                yield stats.of_client(session, wanted.topic)


def producers(broker: Broker, wanted: StatsRequest) -> Iterator[ClientStats]:
    """Yield the clients that have published; as in NSQ, also to other topics than the wanted."""
    if wanted.topic is not None and wanted.topic not in broker.topics:
        return
    for session in _chosen(broker.sessions.values(), wanted):
        if session.pub_counts if wanted.all_producers else wanted.topic in session.pub_counts:
            yield stats.of_client(session, wanted.topic)


def _chosen(sessions: Iterable[V2Session], wanted: StatsRequest) -> list[V2Session]:
    """Return the sessions to list: a copy, since sessions come and go between two pieces."""
    if not wanted.clients:
        return []
    return [one for one in sessions if wanted.client in (None, one.remote_address)]


# JSON

_OMITTED_WHEN_EMPTY = (
    *("zone_local_msg_count", "region_local_msg_count", "global_msg_count"),
    *("authed", "auth_identity", "auth_identity_url", "pub_counts", "tls_common_name"),
)
_NESTED: Final = {TopicStats: "channels", ChannelStats: "clients", ClientStats: ""}
"""The list in an object that holds the rows after it; in the order of nesting."""


def json_pieces(broker: Broker, wanted: StatsRequest, start_ns: int, now: Instant) -> Iterator[str]:
    """Yield the JSON form of `/stats`; `start_ns`: when nsqd started (ns since 1970)."""
    head = {"version": NSQ_VERSION, "health": broker.health(), "start_time": start_ns // SECOND}
    yield f'{_encode(head)[:-1]},"topics":'
    if stats.selected(broker, wanted.topic) is None:
        yield "null"
    else:
        yield "["
        yield from _nested_objects(rows(broker, wanted, now))
        yield "]"
    if wanted.memory:
        yield f',"memory":{_encode(memory_figures())}'
    yield ',"producers":'
    before = "["
    for client in producers(broker, wanted):
        yield f"{before}{_encode(_members(client))}"
        before = ","
    yield "null" if before == "[" else "]"
    reserve = broker.fin_reserve()
    last: dict[str, Any] = {"reserve": None, "sparq_version": SPARQ_VERSION}
    if reserve is not None:
        last["reserve"] = {
            "bytes": reserve.reserve_bytes,
            "target_bytes": reserve.target_bytes,
            "finishes": reserve.finishes,
            "is_short": reserve.is_short,
        }
    if broker.drains.now.node is not None:
        last["draining"] = True
    yield f",{_encode(last)[1:]}"


def _nested_objects(found: Iterable[Row]) -> Iterator[str]:
    """Yield each row as an object within the one that it belongs to."""
    levels = list(_NESTED)
    ends: list[str] = []  # of the objects that are not complete yet
    for figures in found:
        level = levels.index(type(figures))
        comma = "," if len(ends) > level else ""
        while len(ends) > level:
            yield ends.pop()
        text, nested = _encode(_members(figures)), _NESTED[type(figures)]
        # No other member can contain this text: quotes within a value are escaped.
        before, opening, end = text.partition(f'"{nested}":[') if nested else (text, "", "")
        yield f"{comma}{before}{opening}"
        ends.append(end)
    yield from reversed(ends)


def _members(figures: Row) -> dict[str, Any]:
    """Return the members of a JSON object, without empty ones that Go omits."""
    found = _as_dictionary(figures)
    return {name: found[name] for name in found if found[name] or name not in _OMITTED_WHEN_EMPTY}


def _as_dictionary(figures: Any) -> dict[str, Any]:
    """Return a dataclass's fields as a dictionary, in their order."""
    # Not `dataclasses.asdict`: it copies nested values, which the encoder converts anyway.
    return {name: getattr(figures, name) for name in figures.__dataclass_fields__}


_encode = partial(go_json.to_text, default=_as_dictionary)


# Text


def text_pieces(broker: Broker, wanted: StatsRequest, start_ns: int, now: Instant) -> Iterator[str]:
    """Yield the text form of `/stats`; `start_ns`: when nsqd started (ns since 1970)."""
    began = datetime.fromtimestamp(start_ns // SECOND).astimezone().isoformat()
    yield f"{version_line('nsqd')}\n"
    yield f"start_time {began.replace('+00:00', 'Z')}\n"
    yield f"uptime {format_duration(now.wall_ns - start_ns)}\n\nHealth: {broker.health()}\n"
    if wanted.memory:
        yield "\nMemory:\n"
        yield from (f"   {key:<25}\t{value}\n" for key, value in memory_figures().items())
    heading = "\nTopics:\n"
    for figures in rows(broker, wanted, now):
        if isinstance(figures, TopicStats):
            yield f"{heading}{_topic_line(figures)}\n"
            heading = "\n"
        elif isinstance(figures, ChannelStats):
            yield f"{_channel_line(figures)}\n"
        else:
            yield f"        {client_line(figures, now.wall_ns)}\n"
    if heading != "\n":
        yield "\nTopics: None\n"
    heading = "\nProducers:\n"
    for client in producers(broker, wanted):
        yield f"{heading}   {client_line(client, now.wall_ns)}\n"
        heading = ""
    if heading:
        yield "\nProducers: None\n"


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
