"""Reports to a statsd over UDP (docs/monitoring.md, "statsd").

1. In every interval each counter is reported as its increase since the last report (also 0), each
   gauge as its value. The first report comes one interval after the start. A counter that began
   again at 0 (a topic was deleted and created again) is reported with its present value.
2. A packet has whole lines only and is no larger than `--statsd-udp-packet-size`, unless a single
   line is. The packets of a report are spread over the interval, less a second.
3. Reports are generated in slices, like `/stats`; a report that cannot be sent is logged as a
   warning.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sparq.broker import stats
from sparq.nsqd.stats_format import SLICE_SECONDS, memory_figures, remaining
from sparq.nsqd.turns import instant
from sparq.options.units import SECOND
from sparq.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from sparq.broker.latency import Latency
    from sparq.nsqd.server import Nsqd

INTERVAL_SECONDS_MIN = 0.01

_TOPIC = (
    ("message_count", "c", "message_count"),
    ("message_bytes", "c", "message_bytes"),
    ("depth", "g", "depth"),
    ("backend_depth", "g", "backend_depth"),
)
_CHANNEL = (
    ("message_count", "c", "message_count"),
    ("depth", "g", "depth"),
    ("backend_depth", "g", "backend_depth"),
    ("in_flight_count", "g", "in_flight_count"),
    ("deferred_count", "g", "deferred_count"),
    ("requeue_count", "c", "requeue_count"),
    ("timeout_count", "c", "timeout_count"),
    ("clients", "g", "client_count"),
)

logger = logging.getLogger(__name__)


def prefix_of(template: str, host: str, port: int) -> str:
    """Return the prefix of all names: `%s` becomes host and port, with `_` for `.` and `:`."""
    if not template:
        return ""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    key = address.replace(".", "_").replace(":", "_")
    prefix = template.replace("%s", key)
    return prefix if prefix.endswith(".") else f"{prefix}."


def packets_of(lines: Iterable[str], size_max: int) -> list[bytes]:
    """Pack the lines into packets of at most `size_max` bytes; each packet ends with a newline."""
    packets: list[bytes] = []
    packet = b""
    for line in lines:
        data = f"{line}\n".encode()
        if packet and len(packet) + len(data) > size_max:
            packets.append(packet)
            packet = b""
        packet += data
    return [*packets, packet] if packet else packets


class Statsd:
    """Send the reports of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._last: dict[str, int] = {}
        self._counters: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to report, if an address is configured."""
        if self._nsqd.options.statsd.address:
            self._task = asyncio.create_task(self._report_for_ever())

    async def stop(self) -> None:
        """Stop reporting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _report_for_ever(self) -> None:
        interval = self._nsqd.options.statsd.interval_ns / SECOND
        interval = max(INTERVAL_SECONDS_MIN, interval)
        due = time.monotonic() + interval
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            # After a standstill there is no report for each interval missed.
            due = max(due + interval, time.monotonic())
            try:
                await self._report(max(0.0, interval - 1))
            except (OSError, UnicodeError) as error:  # UnicodeError: for a name such as `a..b`
                address = self._nsqd.options.statsd.address
                logger.warning("STATSD: could not report to %s: %s", address, error)

    async def _report(self, spread_seconds: float) -> None:
        options = self._nsqd.options
        packets = packets_of(await self._collect(), options.statsd.udp_packet_size)
        host, _, port = options.statsd.address.rpartition(":")
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sender:
            sender.setblocking(False)
            # Connected, a UDP socket reports at the next `send` that nothing listens there.
            sender.connect(address)
            for packet in packets:
                sender.send(packet)
                await asyncio.sleep(spread_seconds / len(packets))

    async def _collect(self) -> list[str]:
        """Return the lines of a report; the event loop runs in between."""
        found: list[str] = []
        until = time.perf_counter() + SLICE_SECONDS
        for line in self._lines():
            found.append(line)
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_SECONDS
        return found

    def _lines(self) -> Iterator[str]:
        """Yield the lines of a report; counters' values are stored for the next report."""
        nsqd, options = self._nsqd, self._nsqd.options
        port = options.lookupd.broadcast_http_port or nsqd.http_port
        prefix = prefix_of(options.statsd.prefix, options.lookupd.broadcast_address, port)
        now = instant()
        self._last, self._counters = self._counters, {}
        for topic in remaining(nsqd.broker, stats.selected(nsqd.broker, None) or ()):
            if options.statsd.exclude_ephemeral and is_ephemeral(topic.name):
                continue
            name = f"{prefix}topic.{topic.name}"
            yield from self._thing(name, _TOPIC, stats.of_topic(topic, now))
            for channel in stats.channels_of(topic, None):
                if options.statsd.exclude_ephemeral and is_ephemeral(channel.name):
                    continue
                figures = stats.of_channel(channel, topic.options.mem_queue_size, now)
                yield from self._thing(f"{name}.channel.{channel.name}", _CHANNEL, figures)
        if options.statsd.mem_stats:
            yield from self._memory(f"{prefix}mem.")

    def _thing(
        self, name: str, table: tuple[tuple[str, str, str], ...], figures: Any
    ) -> Iterator[str]:
        for last_name, kind, figure in table:
            value = getattr(figures, figure)
            full = f"{name}.{last_name}"
            yield f"{full}:{self._since_last(full, value) if kind == 'c' else value}|{kind}"
        latency: Latency = figures.e2e_processing_latency
        for item in latency.percentiles or ():
            value = int(item["value"])
            yield f"{name}.e2e_processing_latency_{item['quantile'] * 100:.0f}:{value}|g"

    def _memory(self, prefix: str) -> Iterator[str]:
        for figure, value in memory_figures().items():
            if figure == "gc_total_runs":
                full = f"{prefix}gc_runs"
                yield f"{full}:{self._since_last(full, value)}|c"
            else:
                yield f"{prefix}{figure}:{value}|g"

    def _since_last(self, name: str, value: int) -> int:
        self._counters[name] = value
        last = self._last.get(name, 0)
        return value - last if value >= last else value
