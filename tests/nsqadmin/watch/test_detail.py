"""Details of many channels: the number of requests that a node gets for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin
from sparq.nsqadmin.watch import detail
from sparq.nsqadmin.watch.watch import ClusterWatch
from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.watch.figures import channel, stats, topic
from tests.nsqadmin.watch.watching import running_watch, snapshot_where
from tests.support.waiting import until

CHANNELS = [f"c{number:02}" for number in range(50)]


def requests_by_channel(fake: FakeNode) -> Counter[str]:
    """The number of requests to a node for each channel."""
    found = (each.partition("channel=")[2].partition("&")[0] for each in fake.requests)
    return Counter(name for name in found if name)


@contextmanager
def viewing(watch: ClusterWatch, *channels: str) -> Iterator[None]:
    """View each of these channels as pages do: again with every snapshot."""

    async def view(name: str) -> None:
        number = 0
        while True:
            number = (await watch.changed(number)).number
            await watch.detail("t", name)

    tasks = [asyncio.create_task(view(name)) for name in channels]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def test_fifty_streams_share_the_requests_of_a_round() -> None:
    """50 browsers on 50 pages cause no more requests than 8, and each channel has its turn."""
    async with FakeNode() as fake, aiohttp.ClientSession() as session:
        fake.answer = stats(topic("t", *(channel(name, depth=1) for name in CHANNELS)))
        options = NsqadminOptions(http_address="127.0.0.1:0", nsqd_http_addresses=(fake.http,))
        admin = Nsqadmin(options)
        await admin.start()
        url = f"http://127.0.0.1:{admin.http_port}/live?view=/topics/t/"
        shown: Counter[str] = Counter()

        async def follow(name: str) -> None:
            cookie = {"Cookie": f"nsqadmin_tabs={name}"}
            async with session.get(url + name, headers=cookie) as answer:
                async for line in answer.content:
                    shown[name] += line.startswith(b"id: ")

        tasks = [asyncio.create_task(follow(name)) for name in CHANNELS]
        await until(lambda: len(+shown) == 50)
        watch = admin.services.watch
        await watch.changed(watch.rounds + 1)
        fake.requests.clear()
        rounds = watch.rounds
        await until(lambda: watch.rounds >= rounds + 12, seconds=40)
        asked, rounds = requests_by_channel(fake), watch.rounds - rounds
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await admin.stop()

    assert 0 < asked.total() <= detail.AT_ONCE * (rounds + 1)
    assert set(asked) == set(CHANNELS)


async def test_a_hanging_node_does_not_delay_repeated_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second view gets the known figures within 1 s; new ones follow when the node answers."""
    monkeypatch.setattr(detail, "EVERY_SECONDS", 0.0)
    async with FakeNode() as fake:
        fake.answer = stats(topic("t", channel("c", depth=1)))
        async with running_watch(nsqds=(fake.http,)) as watch:
            await snapshot_where(watch, lambda p: len(p.channels) == 1)
            await watch.detail("t", "c")
            fake.may_answer.clear()
            began = time.monotonic()
            known = await watch.detail("t", "c")
            assert time.monotonic() - began < 1.0
            assert known.stats is not None
            assert known.stats["depth"] == 1
            fake.answer = stats(topic("t", channel("c", depth=2)))
            fake.may_answer.set()

            async def is_news() -> bool:
                found = (await watch.detail("t", "c")).stats
                return found is not None and found["depth"] == 2

            await until(is_news)


async def test_details_without_viewers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Details that were not viewed for KEPT_SECONDS are dropped with a later snapshot."""
    monkeypatch.setattr(detail, "KEPT_SECONDS", 0.0)
    async with FakeNode() as fake:
        fake.answer = stats(topic("t", channel("c"), channel("d")))
        async with running_watch(nsqds=(fake.http,)) as watch:
            await snapshot_where(watch, lambda p: len(p.channels) == 2)
            await watch.detail("t", "c")
            await watch.changed(watch.rounds)
            await watch.detail("t", "d")

            assert list(watch._details._kept) == [("t", "d")]
