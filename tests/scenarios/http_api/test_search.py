"""Searches of messages by text, JSON, pattern, state, attempts and time, in limited steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sparq.inspection import search
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


async def test_a_search_by_pattern(nsqd: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns use Go's syntax, in linear time; characters are characters, not bytes.

    A body that is too large for a large pattern is counted in `unsearched`.
    """
    await channel(nsqd, b"order 17 done", b"order x done", b"a" * 90)
    assert await found(nsqd, regex=r"order \d+ done$") == ["order 17 done"]
    assert await found(nsqd, regex=r"^order \w", text="x") == ["order x done"]
    assert await found(nsqd, regex=r"^(a+)+b") == []
    assert await found(nsqd, regex="(a?){1000}(a?){900}b") == []
    await nsqd.post("/pub?topic=t", "eins\nprét".encode())
    for regex in ("é", "(?m)^pr", r"(?s)eins.pr", r"\x{e9}"):
        assert await found(nsqd, regex=regex) == ["eins\nprét"], regex
    for regex in ("Ã", "^pr", "eins.pr"):
        assert await found(nsqd, regex=regex) == [], regex
    monkeypatch.setattr(search, "PATTERN_STEPS_MAX", 700)
    answer = await get(nsqd, "/topic/search", topic="t", regex="^(a+)+b")
    assert (answer["messages"], answer["unsearched"]) == ([], 1)


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


async def test_a_search_advances_through_data_without_a_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request advances, even through data without a match, until the search is complete."""
    nsqd = await start(tmp_path)
    await nsqd.post("/topic/create?topic=t")
    for _ in range(3):
        await nsqd.post("/mpub?topic=t", b"\n".join([b"x" * 100] * 400))
    cache = nsqd.nsqd.broker.topics["t"].stream.log.inspection._cache
    cache.limit_bytes = 1
    await nsqd.post("/pub?topic=t", b"pushes them out of memory")
    monkeypatch.setattr(inspection, "STEP_SECONDS", 0)
    monkeypatch.setattr(search, "WINDOW_BYTES", 500)
    tokens: list[str] = []
    scanned = 0
    async for page in pages(nsqd, "/topic/search", topic="t", text="nothing", budget_ms=1):
        assert page["next"] not in tokens
        tokens.append(page["next"])
        scanned += page["scanned"]

    await stop(nsqd)
    assert scanned == 1201
    assert tokens[-1] is None


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
