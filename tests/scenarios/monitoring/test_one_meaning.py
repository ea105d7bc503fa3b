"""One meaning of each word and figure: all programs show the same of one nsqd, and docs define it.

The programs run in the test's process, with shorter times for `behind` and `stuck`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sparq.cluster import figures
from sparq.program.verbs import read
from sparq.protocol.commands import rdy, sub
from sparq.tools.admin.job import serve as work
from sparq.tools.admin.verbs import PROGRAM, VERBS, AdminOptions
from sparq.tools.nsq_stat import Options as StatOptions
from sparq.tools.nsq_stat import serve as stat
from sparq.tools.terminal import Pipe
from sparq.tools.top import Options as TopOptions
from sparq.tools.top import serve as watch
from tests.nsqadmin.cluster import Admin, admin
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.tool_options import parse
from tests.support.v2_client import OK, AsyncV2Client
from tests.support.waiting import until, until_seen

STUCK_SECONDS = 1.0
BEHIND_SECONDS = 0.1
COUNTS = ("depth", "in_flight", "deferred", "clients")
EXPECTED = {
    ("orders", "alone"): ("no consumers", 5, 0, 0, 0),
    ("orders", "emptied"): ("ok", 0, 0, 0, 1),
    ("orders", "held"): ("stuck", 2, 3, 0, 1),
    ("orders", "paused"): ("paused", 5, 0, 0, 1),
    ("quiet", "c"): ("topic paused", 0, 0, 0, 1),
}
"""State, depth, in flight, deferred and clients by topic and channel."""

Shown = dict[tuple[str, str], tuple[Any, ...]]


class Screens:
    """Every program that shows the cluster of one nsqd."""

    def __init__(self, nsqd: NsqdServer, nsqadmin: Admin, folder: Path) -> None:
        self._nsqd = nsqd
        self._nsqadmin = nsqadmin
        self._file = folder / "output"
        self.lags: dict[str, float] = {}

    async def nsqadmin(self) -> Shown:
        await self._nsqadmin.daemon.services.watch.fresh()
        _, document = await self._nsqadmin.ask("GET", "/api/v2/channels")
        found = {}
        for row in document["rows"]:
            # The page shows two marks, of which `ok` says nothing.
            words = [row["state"], *(["topic paused"] if row["topic_paused"] else [])]
            row["state"] = ", ".join(words[1:] if words[0] == "ok" and words[1:] else words)
            found[row["topic"], row["channel"]] = shown(row)
            self._lag("nsqadmin", row)
        return found

    async def top(self) -> Shown:
        words = ["--json", "--count=1", "--interval=1.5s", f"--nsqd-http-address={self._nsqd.http}"]
        options = parse(TopOptions, "sparq top", words)
        text = await self._written(lambda output: watch(options, asyncio.Event(), output))
        rows = [row for row in json.loads(text)["rows"] if row["channel"]]
        for row in rows:
            self._lag("top", row)
        return {(row["topic"], row["channel"]): shown(row) for row in rows}

    async def listed(self, *words: str) -> list[dict[str, Any]]:
        flags = ["--json", f"--nsqd-http-address={self._nsqd.http}"]
        request = read(PROGRAM, VERBS, ["list", *words, *flags], AdminOptions, "")
        text = await self._written(lambda output: work(request, asyncio.Event(), output))
        rows: list[dict[str, Any]] = json.loads(text)["rows"]
        return rows

    async def admin(self) -> Shown:
        found = {}
        for topic in [row["topic"] for row in await self.listed()]:
            for row in await self.listed(topic):
                found[topic, row["channel"]] = shown(row)
                (part,) = await self.listed(topic, row["channel"])
                assert found[topic, row["channel"]] == shown(part)
                self._lag("list", {"topic": topic, **row})
        return found

    async def nsq_stat(self, topic: str, channel: str) -> dict[str, int]:
        words = [f"--topic={topic}", f"--channel={channel}", "--count=1", "--interval=10ms"]
        words.append(f"--nsqd-http-address={self._nsqd.http}")
        options = parse(StatOptions, "nsq_stat", words)
        text = await self._written(lambda output: stat(options, asyncio.Event(), output))
        names = "ingress egress depth mem disk in_flight deferred req t-o messages clients"
        row = text.splitlines()[-1].replace("|", " ").split()
        return dict(zip(names.split(), map(int, row), strict=True))

    def metric(self, name: str, **labels: str) -> float:
        wanted = ",".join(f'{label}="{value}"' for label, value in labels.items())
        text = self._nsqd.request("GET", "/metrics")[1].decode()
        (value,) = re.findall(rf"^{name}{{{wanted}}} (\S+)$", text, re.MULTILINE)
        return float(value)

    async def _written(self, run: Any) -> str:
        with self._file.open("wb") as file:
            assert 0 == await run(Pipe(file.fileno()))
        return self._file.read_text()

    def _lag(self, program: str, row: dict[str, Any]) -> None:
        if (row["topic"], row["channel"]) == ("orders", "alone"):
            self.lags[program] = row["lag_seconds"]


def shown(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["state"], *(row[name] for name in COUNTS))


@pytest.fixture
async def screens(tmp_path: Path) -> AsyncIterator[Screens]:
    """The programs, and an nsqd whose channels are in every state."""
    async with AsyncExitStack() as stack:
        nsqd = stack.enter_context(await asyncio.to_thread(spawn_nsqd, tmp_path))

        def furnish() -> None:
            for topic, channel in EXPECTED:
                nsqd.request("POST", f"/topic/create?topic={topic}")
                nsqd.post(f"/channel/create?topic={topic}&channel={channel}")

        await asyncio.to_thread(furnish)
        for (topic, channel), (*_, clients) in EXPECTED.items():
            if clients:
                client = await AsyncV2Client.connect(nsqd.tcp)
                stack.push_async_callback(client.close)
                assert OK == await client.ask(sub(topic, channel))
                if channel == "held":
                    client.send(rdy(3))

        def fill() -> None:
            nsqd.post("/channel/pause?topic=orders&channel=paused")
            nsqd.post("/topic/pause?topic=quiet")
            nsqd.post("/mpub?topic=orders", b"1\n2\n3\n4\n5")
            nsqd.post("/channel/empty?topic=orders&channel=emptied")

        await asyncio.to_thread(fill)
        await until_seen(lambda: nsqd.channel("orders", "held")["in_flight_count"] == 3)
        nsqadmin = await stack.enter_async_context(admin(nsqd_http_addresses=(nsqd.http,)))
        yield Screens(nsqd, nsqadmin, tmp_path)


async def test_all_programs_show_the_same(
    screens: Screens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqadmin, `sparq top` and `sparq admin list` have one state and one figure of each kind.

    `stuck` needs time, which `list` does not take: it says `behind`.
    """
    monkeypatch.setattr(figures, "BEHIND_SECONDS", BEHIND_SECONDS)
    behind = {**EXPECTED, ("orders", "held"): ("behind", *EXPECTED["orders", "held"][1:])}

    async def are_behind() -> bool:
        return behind == await screens.nsqadmin() == await screens.admin()

    await until(are_behind)
    monkeypatch.setattr(figures, "STUCK_SECONDS", STUCK_SECONDS)

    async def are_stuck() -> bool:
        return EXPECTED == await screens.nsqadmin()

    await until(are_stuck)
    assert EXPECTED == await screens.top()
    assert behind == await screens.admin()
    figure = await screens.nsq_stat("orders", "held")
    assert [*EXPECTED["orders", "held"][1:]] == [figure[name] for name in COUNTS]
    for name in COUNTS:
        labels = {"topic": "orders", "channel": "held"}
        assert figure[name] == screens.metric(f"nsqd_channel_{name}", **labels)


async def test_lag_and_messages_are_the_same_everywhere(screens: Screens) -> None:
    """Lag is an age in seconds, and messages are a counter since the start."""
    await screens.admin()
    await screens.nsqadmin()
    await screens.top()
    lag = screens.metric("nsqd_channel_oldest_waiting_seconds", topic="orders", channel="alone")

    seen = [screens.lags[program] for program in ("list", "nsqadmin", "top")]
    assert [*seen, lag] == sorted([*seen, lag])  # in the order of the questions
    assert 0 < seen[0]
    assert lag - seen[0] < 30
    topics = {row["topic"]: row for row in await screens.listed()}
    (node,) = await screens.listed("--nodes")
    _, document = await screens._nsqadmin.ask("GET", "/api/v2/topics/orders")
    for name in ("messages", "waiting"):
        assert topics["orders"][name] == document["topic"][name]
    assert (5, 12) == (topics["orders"]["messages"], topics["orders"]["waiting"])
    assert (12, "up") == (node["waiting"], node["state"])
    assert 5 == (await screens.nsq_stat("orders", "emptied"))["messages"]
    assert 5 == screens.metric("nsqd_topic_messages_total", topic="orders")
