"""The broker's snapshot in NSQ's two forms: JSON and text (reference: http.md 1.1 and 1.2).

1. The JSON form has the snapshot's fields as keys, in their order; a client that has published
   nothing has no `pub_counts`.
2. The text form has NSQ's lines only, column by column: scripts cut it. No latency percentiles are
   configured, so `e2e%` has none.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparq.daemon.durations import SECOND, format_duration
from sparq.daemon.lifecycle import version_line

if TYPE_CHECKING:
    from sparq.broker.stats import (
        BrokerStats,
        ChannelStats,
        ClientStats,
        TopicStats,
    )

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """This process's memory now; where the system does not tell, at its highest."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_figures() -> dict[str, int]:
    """NSQ's memory figures, as far as Python has them: objects, bytes in use, collector runs."""
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


_keys_of: dict[type, tuple[str, ...]] = {}


def _keys(kind: type) -> tuple[str, ...]:
    """A dataclass's fields; nothing for any other type."""
    keys = _keys_of.get(kind)
    if keys is None:
        keys = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        _keys_of[kind] = keys
    return keys


def plain(value: Any) -> Any:
    """A snapshot's dataclasses as dictionaries, all the way down."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    keys = _keys(type(value))
    if not keys:
        return value
    found = {key: plain(getattr(value, key)) for key in keys}
    if not found.get("pub_counts", True):
        del found["pub_counts"]
    return found


def as_json(
    stats: BrokerStats, version: str, start_time: int, memory: dict[str, int] | None
) -> dict[str, Any]:
    """The JSON form of `/stats`."""
    found = {
        "version": version,
        "health": stats.health,
        "start_time": start_time,
        "topics": plain(stats.topics),
        "memory": memory,
        "producers": plain(stats.producers),
    }
    if memory is None:
        del found["memory"]
    return found


def as_text(stats: BrokerStats, start_ns: int, now_ns: int, memory: dict[str, int] | None) -> str:
    """The text form of `/stats`; both times are of the wall clock."""
    began = datetime.fromtimestamp(start_ns // SECOND).astimezone().isoformat()
    lines = [
        version_line("nsqd"),
        f"start_time {began.replace('+00:00', 'Z')}",
        f"uptime {format_duration(now_ns - start_ns)}",
        "",
        f"Health: {stats.health}",
    ]
    if memory is not None:
        lines += ["", "Memory:", *(f"   {key:<25}\t{value}" for key, value in memory.items())]
    blocks = ["\n".join(_topic_lines(topic, now_ns)) for topic in stats.topics or ()]
    lines += ["", "Topics:", "\n\n".join(blocks)] if blocks else ["", "Topics: None"]
    lines += ["", "Producers:" if stats.producers else "Producers: None"]
    lines += [f"   {client_line(client, now_ns)}" for client in stats.producers or ()]
    return "\n".join(lines) + "\n"


def _topic_lines(topic: TopicStats, now_ns: int) -> list[str]:
    lines = [
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}]"
        f" depth: {topic.depth:<5d} be-depth: {topic.backend_depth:<5d}"
        f" msgs: {topic.message_count:<8d} e2e%: "
    ]
    for channel in topic.channels:
        lines.append(_channel_line(channel))
        lines += [f"        {client_line(client, now_ns)}" for client in channel.clients or ()]
    return lines


def _channel_line(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.channel_name:<25}]"
        f" depth: {channel.depth:<5d} be-depth: {channel.backend_depth:<5d}"
        f" inflt: {channel.in_flight_count:<4d} def: {channel.deferred_count:<4d}"
        f" re-q: {channel.requeue_count:<5d} timeout: {channel.timeout_count:<5d}"
        f" msgs: {channel.message_count:<8d} e2e%: "
    )


def client_line(client: ClientStats, now_ns: int) -> str:
    """A connection: what it has published, or else how it consumes."""
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
