"""Pages of messages are merged from all nodes, without any effect on the messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from sparq.nsqadmin.messages import (
    DisplayLimits,
    MessagePage,
    SearchCriteria,
    log_page,
    peek,
    search,
)
from sparq.protocol.commands import rdy, sub
from tests.nsqadmin.messages.conftest import Cluster
from tests.nsqadmin.nsqds import fill
from tests.nsqd.daemon import Consumer


async def all_pages(
    ask: Callable[..., Awaitable[MessagePage]], after: str | None = ""
) -> AsyncIterator[MessagePage]:
    """Request pages until the last one."""
    while after is not None:
        page = await ask(after=after)
        yield page
        after = page.next


async def test_pages_of_a_channel_are_ordered_by_time(cluster: Cluster) -> None:
    """Pages of any size list each message once, by time, and change nothing at the nodes."""
    bodies = await fill(cluster, 25)
    for _ in range(10):
        await cluster.two.post("/pub?topic=t", b"late")
    before = [await each.channel("t", "c") for each in (cluster.one, cluster.two)]

    for limit in (1, 7, 50):
        show = DisplayLimits(limit)
        ask = partial(peek, cluster.fleet, "t", "c", show=show)
        shown = []
        async for page in all_pages(ask):
            assert len(page.messages) <= limit
            assert page.total == 35
            shown += page.messages
        assert [*bodies, *["late"] * 10] == [message["body"] for message in shown]
        assert set(cluster.addresses) == {message["node"] for message in shown}

    after = [await each.channel("t", "c") for each in (cluster.one, cluster.two)]
    for name in ("depth", "in_flight_count", "message_count", "cursor"):
        assert [each[name] for each in before] == [each[name] for each in after]


async def test_finished_messages_do_not_hide_others(cluster: Cluster) -> None:
    """Messages finished between two pages do not make later pages skip others."""
    await fill(cluster, 20)
    first = await peek(cluster.fleet, "t", "c", show=DisplayLimits(4))
    consumer = await Consumer.identified(cluster.one, sub("t", "c"))
    await consumer.messages(5)
    await consumer.close()
    assert first.next is not None

    shown = [m["body"] for m in first.messages]
    ask = partial(peek, cluster.fleet, "t", "c", show=DisplayLimits(4))
    async for page in all_pages(ask, first.next):
        shown += [message["body"] for message in page.messages]

    gone = {4, 6, 8}
    expected = [number for number in range(20) if number not in gone]
    assert [f'{{"n": {number}}}' for number in expected] == shown


async def test_messages_in_flight_have_a_client(cluster: Cluster) -> None:
    """Messages in flight have a client; deferred ones are in the order of their due times."""
    await fill(cluster, 4)
    consumer = await Consumer.identified(cluster.two, sub("t", "c"))
    consumer.send(rdy(1))
    assert (await consumer.frame())[0] == 2
    await cluster.one.post("/pub?topic=t&defer=60000", b"later")
    await cluster.two.post("/pub?topic=t&defer=30000", b"sooner")

    held = await peek(cluster.fleet, "t", "c", state="in_flight")
    deferred = await peek(cluster.fleet, "t", "c", state="deferred", show=DisplayLimits(1))
    rest = await peek(
        cluster.fleet, "t", "c", state="deferred", after=str(deferred.next), show=DisplayLimits(1)
    )

    (message,) = held.messages
    assert ('{"n": 1}', "me", 1) == (
        *(message["body"], message["client"]["client_id"], message["attempts"]),
    )
    assert ["sooner", "later"] == [page.messages[0]["body"] for page in (deferred, rest)]
    assert rest.next is not None
    end = await peek(cluster.fleet, "t", "c", state="deferred", after=rest.next)
    assert ([], None, 2) == (end.messages, end.next, end.total)
    await consumer.close()


async def test_the_log_is_listed_and_followed(cluster: Cluster) -> None:
    """A page has the last messages, `next` the later ones; bodies can be left out."""
    bodies = await fill(cluster, 10)

    page = await log_page(cluster.fleet, "t", place="last:2", show=DisplayLimits(bodies=False))
    assert 4 == len(page.messages)
    assert not any("body" in message for message in page.messages)
    assert set(cluster.addresses) == set(page.reach)
    assert page.next is not None
    await cluster.one.post("/pub?topic=t", b"new")
    later = await log_page(cluster.fleet, "t", after=page.next, channel="c")
    assert [("new", "waiting")] == [(m["body"], m["state"]) for m in later.messages]
    whole = await log_page(cluster.fleet, "t")
    assert [*bodies, "new"] == [message["body"] for message in whole.messages]
    alone = await log_page(cluster.fleet, "t", show=DisplayLimits(nodes=(cluster.addresses[1],)))
    assert bodies[1::2] == [message["body"] for message in alone.messages]


async def test_a_search_covers_all_nodes(cluster: Cluster) -> None:
    """A search with criteria finds the messages of all nodes, in bounded steps."""
    await fill(cluster, 40)

    page = await search(cluster.fleet, "t", SearchCriteria(json="n >= 38"))
    assert (['{"n": 38}', '{"n": 39}'], True, 1.0) == (
        *([message["body"] for message in page.messages], page.done, page.progress),
    )
    page = await search(
        cluster.fleet, "t", SearchCriteria(regex="[89]9?}$", state="waiting", channel="c")
    )
    assert 8 == len(page.messages)
    found, after = [], ""
    while len(found) < 5:
        page = await search(
            cluster.fleet, "t", SearchCriteria(text="1"), after=after, show=DisplayLimits(5)
        )
        found += page.messages
        after = str(page.next)
    assert 5 <= len(found) <= 6
    rest = await search(cluster.fleet, "t", SearchCriteria(text="1"), after=after)
    numbers = {message["body"] for message in [*found, *rest.messages]}
    assert {f'{{"n": {n}}}' for n in range(40) if "1" in str(n)} == numbers
