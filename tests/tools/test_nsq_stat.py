"""nsq_stat with real nsqds: its exact columns, the effect of each flag, and its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Consumer
from sparq.cluster.figures import ChannelFigures, NsqdFigures, TopicFigures
from sparq.cluster.rows import NodeStats, tables
from sparq.tools.commands import ToolError
from sparq.tools.nsq_stat import Options, line
from sparq.tools.nsq_stat import serve as stat
from sparq.tools.terminal import Pipe
from tests.support.servers import NsqdServer, Server, free_port
from tests.support.tool_options import parse
from tests.support.waiting import until

HEADING = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
"""


def make(topic: str, *nsqds: NsqdServer) -> None:
    """Create the topic and its channel `c`."""
    for nsqd in nsqds:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")


def publish(nsqd: NsqdServer, topic: str, count: int) -> None:
    nsqd.post(f"/mpub?topic={topic}&binary=false", b"\n".join([b"x"] * count))


class Stat:
    """A running nsq_stat that writes to a file."""

    def __init__(self, path: Path, *words: str) -> None:
        self.path = path / "lines"
        self.stop = asyncio.Event()
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT)
        options = parse(Options, "nsq_stat", ["--channel=c", *words])
        self.task = asyncio.create_task(stat(options, self.stop, Pipe(self._descriptor)))
        self.task.add_done_callback(lambda _: os.close(self._descriptor))

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def rows(self) -> list[list[int]]:
        """The numbers in each row."""
        lines = [line for line in self.text.splitlines() if line not in HEADING.splitlines()]
        return [[int(word) for word in line.replace("|", "").split()] for line in lines]


async def test_figures_are_summed_over_nsqds(
    nsqds: tuple[NsqdServer, NsqdServer], tmp_path: Path
) -> None:
    """Each column is the sum over the nsqds, at NSQ's position."""
    make("two", *nsqds)
    make("other", nsqds[0])
    publish(nsqds[0], "other", 50)
    publish(nsqds[0], "two", 20)
    publish(nsqds[1], "two", 7)
    addresses = [nsqd.tcp for nsqd in nsqds]
    options = {"max_in_flight": 6, "max_backoff_duration": 0.0}
    async with Consumer("two", "c", nsqd_tcp_addresses=addresses, **options) as consumer:
        held = [await anext(consumer) for _ in range(4)]
        await held[0].finish()
        await held[1].requeue(60)
        await until(lambda: sum(nsqd.channel("two", "c")["deferred_count"] for nsqd in nsqds))
        consumer.max_in_flight = 0
        words = ["--topic=two", "--interval=20ms", "--count=1"]
        words += [f"--nsqd-http-address={nsqd.http}" for nsqd in nsqds]

        def in_flight() -> int:
            return sum(nsqd.channel("two", "c")["in_flight_count"] for nsqd in nsqds)

        await until(lambda: in_flight() == consumer.in_flight)
        running = Stat(tmp_path, *words)
        assert 0 == await running.task
        channels = [nsqd.channel("two", "c") for nsqd in nsqds]

    def total(name: str) -> int:
        return sum(channel[name] for channel in channels)

    expected = "{:7d} {:7d} | {:7d} {:7d} {:7d} {:5d} {:5d} | {:7d} {:7d} {:12d} {:7d}\n".format(
        *(0, 0),
        *(total("depth"), total("depth") - total("backend_depth"), total("backend_depth")),
        *(total("in_flight_count"), 1, 1, 0, 27, 2),
    )
    assert HEADING + expected == running.text
    assert total("backend_depth") > 0


async def test_rates_are_per_second(nsqds: tuple[NsqdServer, NsqdServer], tmp_path: Path) -> None:
    """Ingress and egress are messages per second between two polls."""
    make("rates", nsqds[0])
    words = ["--topic=rates", "--interval=125ms", f"--nsqd-http-address={nsqds[0].http}"]
    running = Stat(tmp_path, *words)
    await until(lambda: running.path.stat().st_size)
    publish(nsqds[0], "rates", 20)
    await until(lambda: running.rows and running.rows[-1][9] == 20)
    nsqds[0].post("/channel/empty?topic=rates&channel=c")
    await until(lambda: running.rows[-1][2] == 0)
    running.stop.set()

    assert 0 == await running.task
    assert [[160, 0]] == [row[:2] for row in running.rows if row[0]]
    assert [[0, 160]] == [row[:2] for row in running.rows if row[1]]


async def test_a_heading_each_25_rows(nsqds: tuple[NsqdServer, NsqdServer], tmp_path: Path) -> None:
    """As in NSQ, the first poll, which prints no row, is one of the 25."""
    make("rows", nsqds[0])
    words = ["--topic=rows", "--interval=1ms", "--count=26"]
    running = Stat(tmp_path, *words, f"--nsqd-http-address={nsqds[0].http}")

    assert 0 == await running.task
    headings = [at for at, line in enumerate(running.text.splitlines()) if line.startswith("--")]
    assert [0, 26] == headings
    assert 26 == len(running.rows)


async def test_an_unknown_topic_or_channel_is_an_error(
    nsqds: tuple[NsqdServer, NsqdServer], lookupd: Server, tmp_path: Path
) -> None:
    """A topic or channel that no nsqd has is an error."""
    make("there", nsqds[0])
    source = f"--nsqd-http-address={nsqds[0].http}"
    reason = r"ERROR: failed to find channel\(%s\) in stats metadata for topic\(%s\)"

    with pytest.raises(ToolError, match=reason % ("c", "nowhere")):
        await Stat(tmp_path, "--topic=nowhere", source).task
    with pytest.raises(ToolError, match=reason % ("d", "there")):
        await Stat(tmp_path, "--topic=there", "--channel=d", source).task
    with pytest.raises(ToolError, match=reason % ("c", "nowhere")):
        await Stat(tmp_path, "--topic=nowhere", f"--lookupd-http-address={lookupd.http}").task


async def test_an_nsqd_that_is_gone_ends_nsq_stat(
    nsqds: tuple[NsqdServer, NsqdServer], tmp_path: Path
) -> None:
    """A sum without it would be wrong, so nsq_stat ends with an error."""
    make("gone", nsqds[0])
    words = [f"--nsqd-http-address={nsqds[0].http}", f"--nsqd-http-address=127.0.0.1:{free_port()}"]

    with pytest.raises(ToolError, match=r"failed to get nsqd stats - 127\S+: connection refused"):
        await Stat(tmp_path, "--topic=gone", *words).task


def test_rates_are_truncated_as_in_go() -> None:
    """Rates are cut towards zero, also negative ones: counters restart with their nsqd."""

    def sample(count: int) -> Any:
        channel = ChannelFigures(channel_name="c", depth=7, message_count=count)
        figures = NsqdFigures(listed=[TopicFigures(topic_name="t", listed=[channel])])
        return tables([(NodeStats(figures, 0.0), None)])[1].find("t", "c")

    before, now = sample(100), sample(93)

    assert "     -3      -3 | " == line(now, before, 2.0)[:18]
    assert "      3       3 | " == line(before, now, 2.0)[:18]
