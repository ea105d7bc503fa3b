"""Searches of messages by text, JSON, pattern, state, attempts and time, in limited steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqd import inspection
from sparq.protocol.commands import fin, rdy, req, sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.nsqd.test_inspection import bodies, channel, get, pages
from tests.support.waiting import until


async def found(nsqd: Daemon, **query: Any) -> list[str]:
    """Return the bodies of all messages that a search finds, in as many requests as it needs."""
    return [
        body
        async for page in pages(nsqd, "/topic/search", topic="t", **query)
        for body in bodies(page)
    ]


async def test_a_search_by_state_and_attempts(nsqd: Daemon) -> None:
    """A channel's messages are found by state and attempts, with or without text.

    A match contains its state: here, the client that has it in flight.
    """
    await channel(nsqd, b"a1", b"a2", b"a3", b"a4", b"b5")
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    consumer.send(rdy(3))
    taken = [(await consumer.frame())[1][10:26] for _ in range(3)]
    consumer.send(rdy(0) + fin(taken[0]) + req(taken[1], 600_000))
    await nsqd.post("/pub?topic=t&defer=60000", b"a6")

    async def is_settled() -> bool:
        figures = await nsqd.channel("t", "c")
        return (figures["in_flight_count"], figures["deferred_count"]) == (1, 2)

    await until(is_settled)
    for query, expected in (
        ({"state": "finished"}, ["a1"]),
        ({"state": "deferred"}, ["a2", "a6"]),
        ({"state": "in_flight"}, ["a3"]),
        ({"state": "waiting"}, ["a4", "b5"]),
        ({"state": "waiting", "text": "a"}, ["a4"]),
        ({"state": "deferred", "text": "6"}, ["a6"]),
        ({"attempts": "1"}, ["a2", "a3"]),
        ({"attempts": ">=1"}, ["a2", "a3"]),
        ({"attempts": ">1"}, []),
        ({"attempts": "0"}, ["a4", "b5", "a6"]),
        ({"attempts": "<=0", "state": "deferred"}, ["a6"]),
        ({"attempts": "!=1"}, ["a4", "b5", "a6"]),
    ):
        for limit in (1, 50):
            assert await found(nsqd, channel="c", limit=limit, **query) == expected, query
    answer = await get(nsqd, "/topic/search", topic="t", channel="c", text="a3")
    assert answer["messages"][0]["client"]["client_id"] == "me"
    await consumer.close()


async def test_the_number_of_concurrent_searches_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most SEARCHES_MAX searches run at a time, since each holds data in memory; others wait."""
    monkeypatch.setattr(inspection, "SEARCHES_MAX", 2)
    nsqd = await start(tmp_path)
    await channel(nsqd, *[b"%d" % number for number in range(100)])
    under_way = most = 0
    search_for = inspection.Inspection._search_for

    async def counted(*arguments: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await search_for(*arguments)
        under_way -= 1

    monkeypatch.setattr(inspection.Inspection, "_search_for", counted)
    asked = (get(nsqd, "/topic/search", topic="t", text=str(number)) for number in range(20))
    answers = await asyncio.gather(*asked)
    await stop(nsqd)

    assert [bodies(answer)[0] for answer in answers] == [str(number) for number in range(20)]
    assert most == 2
