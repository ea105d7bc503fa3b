"""Real processes: a discovered nsqd is only tried again by an answer asked after its loss.

SUB creates a topic: a consumer that connected by an older answer would bring back what was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import pytest

from sparq.client import Consumer
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import stays, until, until_seen

CHANNELS = 5
AWAY_SECONDS = 0.6
"""Consumers brought a topic back after 0.1 s, the first of five sooner."""

Daemons = tuple[Server, NsqdServer]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """An nsqlookupd and an nsqd; each test uses a topic of its own."""
    folder = tmp_path_factory.mktemp("stays_away")
    with ExitStack() as stack:
        lookupd = stack.enter_context(spawn_nsqlookupd(folder))
        yield lookupd, stack.enter_context(spawn_nsqd(folder, lookupds=(lookupd,)))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of connection losses that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def is_listed(lookupd: Server, topic: str) -> bool:
    """Whether the nsqlookupd lists an nsqd for the topic."""
    return lookupd.request("GET", f"/lookup?topic={topic}")[0] == 200


def has_topic(nsqd: NsqdServer, topic: str) -> bool:
    """Whether the nsqd has the topic."""
    found: Any = nsqd.get_json(f"/stats?format=json&topic={topic}")
    return bool(found["topics"])


@pytest.mark.parametrize("first", ["nsqlookupd_delete", "nsqlookupd_tombstone", "nothing"])
async def test_a_topic_deleted_under_consumers_stays_away(daemons: Daemons, first: str) -> None:
    """A topic that is deleted while consumers are attached is not created again by them.

    nsqadmin deletes or tombstones it at the nsqlookupds first; nsqd alone reports its deletion.
    """
    lookupd, nsqd = daemons
    node = f"127.0.0.1:{nsqd.http_port}"
    nsqd.post(f"/topic/create?topic={first}")
    await until_seen(lambda: is_listed(lookupd, first))
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                Consumer(first, f"c{number}", lookupd_http_addresses=lookupd.http)
            )
            for number in range(CHANNELS)
        ]
        await until(lambda: all(each.connections for each in consumers))
        if first != "nothing":
            action = first.removeprefix("nsqlookupd_")
            await asyncio.to_thread(lookupd.post, f"/topic/{action}?topic={first}&node={node}")
        await asyncio.to_thread(nsqd.post, f"/topic/delete?topic={first}")

        await stays(partial(asyncio.to_thread, lambda: not has_topic(nsqd, first)), AWAY_SECONDS)
        await until(lambda: not any(each.errors for each in consumers))


async def test_without_an_nsqlookupd_the_old_answer_serves(daemons: Daemons) -> None:
    """While no nsqlookupd answers, a restarted nsqd is connected again by the last answer."""
    lookupd, nsqd = daemons
    nsqd.post("/topic/create?topic=again")
    await until_seen(lambda: is_listed(lookupd, "again"))
    async with Consumer("again", "c", lookupd_http_addresses=lookupd.http) as consumer:
        await until(lambda: consumer.connections)
        await asyncio.to_thread(lookupd.kill9)
        await asyncio.to_thread(nsqd.restart)
        await until(lambda: consumer.connections, 10)
    await asyncio.to_thread(lookupd.start)
