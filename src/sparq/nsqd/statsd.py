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
from typing import TYPE_CHECKING, Final

from sparq.broker.stats import ChannelStats, TopicStats
from sparq.daemon import address
from sparq.nsqd.stats_format import StatsRequest, encoded, memory_figures, rows
from sparq.nsqd.turns import instant
from sparq.options.units import SECOND
from sparq.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from sparq.nsqd.server import Nsqd

INTERVAL_SECONDS_MIN = 0.01

_TOPIC: Final = {
    **{"message_count": "c", "message_bytes": "c"},
    **{"depth": "g", "backend_depth": "g"},
}
_CHANNEL: Final = {
    **{"message_count": "c", "depth": "g", "backend_depth": "g", "in_flight_count": "g"},
    **{"deferred_count": "g", "requeue_count": "c", "timeout_count": "c", "client_count": "g"},
}
"""The fields of `broker/stats.py` that are reported: c as a counter, g as a gauge."""

logger = logging.getLogger(__name__)


def prefix_of(template: str, host: str, port: int) -> str:
    """Return the prefix of all names: `%s` becomes host and port, with `_` for `.` and `:`."""
    if not template:
        return ""
    key = address.join(host, port).replace(".", "_").replace(":", "_")
    prefix = template.replace("%s", key)
    return prefix if prefix.endswith(".") else f"{prefix}."


def packets_of(lines: Iterable[bytes], size_max: int) -> list[bytes]:
    """Pack whole lines into packets of at most `size_max` bytes."""
    packets: list[bytes] = []
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > size_max:
            packets.append(packet)
            packet = b""
        packet += line
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
                to = self._nsqd.options.statsd.address
                logger.warning("STATSD: could not report to %s: %s", to, error)

    async def _report(self, spread_seconds: float) -> None:
        options = self._nsqd.options
        packets = packets_of(await encoded(self.lines()), options.statsd.udp_packet_size)
        host, _, port = options.statsd.address.rpartition(":")
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as sender:
            sender.setblocking(False)
            # Connected, a UDP socket reports at the next `send` that nothing listens there.
            sender.connect(place)
            for packet in packets:
                sender.send(packet)
                await asyncio.sleep(spread_seconds / len(packets))

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report; counters' values are stored for the next report."""
        nsqd, options = self._nsqd, self._nsqd.options
        port = options.lookupd.broadcast_http_port or nsqd.http_port
        prefix = prefix_of(options.statsd.prefix, options.lookupd.broadcast_address, port)
        self._last, self._counters = self._counters, {}
        topic = ""
        for figures in rows(nsqd.broker, StatsRequest(), instant()):
            if isinstance(figures, TopicStats):
                topic, name, shown = figures.topic_name, "", _TOPIC
            elif isinstance(figures, ChannelStats):
                name, shown = f".channel.{figures.channel_name}", _CHANNEL
            else:
                continue
            if options.statsd.exclude_ephemeral and (is_ephemeral(topic) or is_ephemeral(name)):
                continue
            full = f"{prefix}topic.{topic}{name}"
            for figure, kind in shown.items():
                key = "clients" if figure == "client_count" else figure
                yield self._line(f"{full}.{key}", kind, getattr(figures, figure))
            for item in figures.e2e_processing_latency.percentiles or ():
                quantile = f"e2e_processing_latency_{item['quantile'] * 100:.0f}"
                yield self._line(f"{full}.{quantile}", "g", int(item["value"]))
        if options.statsd.mem_stats:
            for key, value in memory_figures().items():
                is_runs = key == "gc_total_runs"
                shown_key, kind = ("gc_runs", "c") if is_runs else (key, "g")
                yield self._line(f"{prefix}mem.{shown_key}", kind, value)

    def _line(self, name: str, kind: str, value: int) -> str:
        if kind == "c":
            last, self._counters[name] = self._last.get(name, 0), value
            value = value - last if value >= last else value
        return f"{name}:{value}|{kind}\n"
