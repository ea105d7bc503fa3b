"""statsd: the exact packets that a real nsqd sends to a UDP socket."""

import asyncio
import itertools
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.nsqd.statsd import Statsd, packets_of, prefix_of
from sparq.protocol.commands import sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.waiting import until

MEMORY = (
    *("heap_objects|g", "heap_idle_bytes|g", "heap_in_use_bytes|g", "heap_released_bytes|g"),
    *("gc_pause_usec_100|g", "gc_pause_usec_99|g", "gc_pause_usec_95|g"),
    *("next_gc_bytes|g", "gc_runs|c"),
)


class FakeStatsd:
    """A statsd that only receives."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    async def packet(self) -> str:
        async with asyncio.timeout(30):
            data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
        return data.decode()


async def start_with_statsd(folder: Path, fake_statsd: FakeStatsd, **changes: Any) -> Daemon:
    options = {
        "statsd_address": fake_statsd.address,
        "statsd_interval": 150_000_000,
        "statsd_prefix": "nsq.%s",
        "statsd_udp_packet_size": 65_000,
        "statsd_mem_stats": False,
    }
    return await start(folder, **{**options, **changes})


@pytest.mark.behaviour("more.statsd-packets")
async def test_a_report_is_exact(tmp_path: Path) -> None:
    """Counters are deltas, gauges values, with NSQ's names and order, a newline after each."""
    fake_statsd = FakeStatsd()
    nsqd = await start_with_statsd(tmp_path, fake_statsd)
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await nsqd.post("/mpub?topic=t", b"one\ntwo\nthree")
    await nsqd.post("/topic/create?topic=u.v")
    reports = Statsd(nsqd.nsqd)
    reports.start()
    first, second = await fake_statsd.packet(), await fake_statsd.packet()
    await nsqd.post("/pub?topic=t", b"four")
    while (third := await fake_statsd.packet()) == second:
        continue
    await reports.stop()
    await consumer.close()
    await stop(nsqd)
    fake_statsd.socket.close()

    host = f"nsq.here_{nsqd.nsqd.http_port}."

    def report(messages: int, size: int, depth: int) -> str:
        lines = (
            f"topic.t.message_count:{messages}|c",
            f"topic.t.message_bytes:{size}|c",
            "topic.t.depth:0|g",
            "topic.t.backend_depth:0|g",
            f"topic.t.channel.c.message_count:{messages}|c",
            f"topic.t.channel.c.depth:{depth}|g",
            "topic.t.channel.c.backend_depth:0|g",
            "topic.t.channel.c.in_flight_count:0|g",
            "topic.t.channel.c.deferred_count:0|g",
            "topic.t.channel.c.requeue_count:0|c",
            "topic.t.channel.c.timeout_count:0|c",
            "topic.t.channel.c.clients:1|g",
            "topic.u.v.message_count:0|c",
            "topic.u.v.message_bytes:0|c",
            "topic.u.v.depth:0|g",
            "topic.u.v.backend_depth:0|g",
        )
        return "".join(f"{host}{line}\n" for line in lines)

    assert first == report(3, 11, 3)
    assert second == report(0, 0, 3)
    assert third == report(1, 4, 4)


async def lines_of_a_report(nsqd: Daemon) -> list[str]:
    return list(Statsd(nsqd.nsqd).lines())


async def test_memory_and_percentiles(tmp_path: Path) -> None:
    """A report ends with nine memory figures; each quantile is a gauge, named without decimals."""
    nsqd = await start(
        tmp_path, e2e_processing_latency_percentiles=(1.0, 0.995, 0.5), statsd_prefix=""
    )
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    lines = await lines_of_a_report(nsqd)
    await stop(nsqd)

    names = [line.split(":")[0] + "|" + line.rstrip().split("|")[1] for line in lines]
    assert names[-9:] == [f"mem.{name}" for name in MEMORY]
    # Like Go's %.0f: 99.5 is rounded to even.
    percentiles = [f"topic.t.e2e_processing_latency_{p}:0|g\n" for p in ("100", "100", "50")]
    assert lines[4:7] == percentiles


async def test_ephemeral_topics_and_channels_can_be_left_out(tmp_path: Path) -> None:
    """Ephemeral topics are left out with their channels, ephemeral channels alone."""
    nsqd = await start(tmp_path, statsd_exclude_ephemeral=True, statsd_mem_stats=False)
    for path in ("topic=a%23ephemeral", "topic=b"):
        await nsqd.post(f"/topic/create?{path}")
    for channel in ("c", "d%23ephemeral"):
        await nsqd.post(f"/channel/create?topic=b&channel={channel}")
    lines = await lines_of_a_report(nsqd)
    await stop(nsqd)

    assert len(lines) == 4 + 8
    assert not [line for line in lines if "ephemeral" in line]


async def test_a_restarted_counter_gives_no_negative_delta(tmp_path: Path) -> None:
    """A topic that was deleted and created again gives no negative delta."""
    nsqd = await start(tmp_path, statsd_mem_stats=False, statsd_prefix="p")
    reports = Statsd(nsqd.nsqd)
    await nsqd.post("/mpub?topic=t", b"1\n2\n3")
    assert next(reports.lines()) == "p.topic.t.message_count:3|c\n"
    await nsqd.post("/topic/delete?topic=t")
    await nsqd.post("/mpub?topic=t", b"1\n2")

    assert next(reports.lines()) == "p.topic.t.message_count:2|c\n"
    await stop(nsqd)


@given(st.lists(st.text("ab", max_size=40)), st.integers(1, 60))
def test_packets_have_whole_lines(lines: list[str], size_max: int) -> None:
    """No line is lost or cut; a packet exceeds the limit only if it is a single line."""
    whole = [f"{line}\n".encode() for line in lines]
    packets = packets_of(whole, size_max)

    assert b"".join(packets) == b"".join(whole)
    assert all(len(packet) <= size_max or packet.count(b"\n") == 1 for packet in packets)
    for packet, following in itertools.pairwise(packets):
        assert len(packet) + following.index(b"\n") + 1 > size_max


def test_prefixes() -> None:
    """%s is host and port, with _ for dots and colons; non-empty prefixes end with a dot."""
    assert prefix_of("nsq.%s", "a.b", 4151) == "nsq.a_b_4151."
    assert prefix_of("x.", "h", 1) == "x."
    assert prefix_of("%s.%s", "::1", 2) == "[__1]_2.[__1]_2."
    assert prefix_of("", "h", 1) == ""


@pytest.mark.parametrize("address", ["127.0.0.1:no-such-port", "statsd..example:8125"])
async def test_an_unreachable_statsd_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    """nsqd logs a warning, tries again at the next interval, and continues to serve."""
    nsqd = await start(tmp_path, statsd_interval=1, statsd_address=address)
    reports = Statsd(nsqd.nsqd)
    reports.start()

    async def has_warned_twice() -> bool:
        return caplog.text.count("STATSD: could not report to") >= 2

    await until(has_warned_twice)
    await reports.stop()
    assert await nsqd.ask("GET", "/ping") == (200, b"OK")
    await stop(nsqd)
