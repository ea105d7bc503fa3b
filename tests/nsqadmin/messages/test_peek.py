"""Pages of messages are merged from all nodes, and take nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from sparq.cluster.fleet import Fleet
from sparq.nsqadmin.messages.asking import Refused
from sparq.nsqadmin.messages.peek import (
    MessagePage,
    Show,
    Sought,
    by_node,
    find,
    log_page,
    peek,
    search,
    whole_body,
)
from sparq.nsqadmin.messages.places import ListPosition, places_in, token_of
from sparq.nsqadmin.messages.times import ns_of, seek_preview, spread, text_of, times
from sparq.protocol.commands import rdy, sub
from tests.nsqadmin.fake import Fake
from tests.nsqadmin.messages.conftest import Cluster
from tests.nsqd.daemon import Consumer


async def fill(cluster: Cluster, count: int, topic: str = "t") -> list[str]:
    """Publish in turns at both nodes; the bodies in the order of time."""
    bodies = [f'{{"n": {number}}}' for number in range(count)]
    for number, body in enumerate(bodies):
        nsqd = (cluster.one, cluster.two)[number % 2]
        await nsqd.post(f"/pub?topic={topic}", body.encode())
    return bodies


async def all_pages(
    ask: Callable[..., Awaitable[MessagePage]], after: str | None = ""
) -> AsyncIterator[MessagePage]:
    """Pages until there are no more."""
    while after is not None:
        page = await ask(after=after)
        yield page
        after = page.next


async def test_a_channel_is_shown_by_time(cluster: Cluster) -> None:
    """Every message once, in pages of any size, however they lie on the nodes."""
    bodies = await fill(cluster, 25)
    for _ in range(10):
        await cluster.two.post("/pub?topic=t", b"late")
    before = [await each.channel("t", "c") for each in (cluster.one, cluster.two)]

    for limit in (1, 7, 50):
        show = Show(limit)
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


async def test_messages_that_go_hide_no_others(cluster: Cluster) -> None:
    """Between two pages consumers finish what was shown and what was not."""
    await fill(cluster, 20)
    first = await peek(cluster.fleet, "t", "c", show=Show(4))
    consumer = await Consumer.introduced(cluster.one, sub("t", "c"))
    await consumer.messages(5)
    await consumer.close()
    assert first.next is not None

    shown = [m["body"] for m in first.messages]
    ask = partial(peek, cluster.fleet, "t", "c", show=Show(4))
    async for page in all_pages(ask, first.next):
        shown += [message["body"] for message in page.messages]

    gone = {4, 6, 8}
    expected = [number for number in range(20) if number not in gone]
    assert [f'{{"n": {number}}}' for number in expected] == shown


async def test_messages_in_flight_have_an_owner(cluster: Cluster) -> None:
    """And a deadline; deferred ones are due."""
    await fill(cluster, 4)
    consumer = await Consumer.introduced(cluster.two, sub("t", "c"))
    consumer.send(rdy(1))
    assert (await consumer.frame())[0] == 2
    await cluster.one.post("/pub?topic=t&defer=60000", b"later")
    await cluster.two.post("/pub?topic=t&defer=30000", b"sooner")

    held = await peek(cluster.fleet, "t", "c", state="in_flight")
    deferred = await peek(cluster.fleet, "t", "c", state="deferred", show=Show(1))
    rest = await peek(
        cluster.fleet, "t", "c", state="deferred", after=str(deferred.next), show=Show(1)
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


async def test_the_log_is_shown_and_followed(cluster: Cluster) -> None:
    """The last messages, and what comes after them; bodies only if they are wanted."""
    bodies = await fill(cluster, 10)

    page = await log_page(cluster.fleet, "t", place="last:2", show=Show(bodies=False))
    assert 4 == len(page.messages)
    assert not any("body" in message for message in page.messages)
    assert set(cluster.addresses) == set(page.reach)
    assert page.next is not None
    await cluster.one.post("/pub?topic=t", b"new")
    later = await log_page(cluster.fleet, "t", after=page.next, channel="c")
    assert [("new", "waiting")] == [(m["body"], m["state"]) for m in later.messages]
    whole = await log_page(cluster.fleet, "t")
    assert [*bodies, "new"] == [message["body"] for message in whole.messages]
    alone = await log_page(cluster.fleet, "t", show=Show(nodes=(cluster.addresses[1],)))
    assert bodies[1::2] == [message["body"] for message in alone.messages]


async def test_search_goes_over_all_nodes(cluster: Cluster) -> None:
    """In bounded steps with progress, until all was looked at."""
    await fill(cluster, 40)

    page = await search(cluster.fleet, "t", Sought(json="n >= 38"))
    assert (['{"n": 38}', '{"n": 39}'], True, 1.0) == (
        *([message["body"] for message in page.messages], page.done, page.progress),
    )
    page = await search(cluster.fleet, "t", Sought(regex="[89]9?}$", state="waiting", channel="c"))
    assert 8 == len(page.messages)
    found, after = [], ""
    while len(found) < 5:
        page = await search(cluster.fleet, "t", Sought(text="1"), after=after, show=Show(5))
        found += page.messages
        after = str(page.next)
    assert 5 <= len(found) <= 6
    rest = await search(cluster.fleet, "t", Sought(text="1"), after=after)
    numbers = {message["body"] for message in [*found, *rest.messages]}
    assert {f'{{"n": {n}}}' for n in range(40) if "1" in str(n)} == numbers


async def test_one_message_is_found_by_its_id(cluster: Cluster) -> None:
    """At the node that has it, with all of its body."""
    await cluster.two.post("/pub?topic=t", b"x" * 100_000)
    (message,) = (await peek(cluster.fleet, "t", "c")).messages
    assert message["cut"]

    found, _ = await find(cluster.fleet, "t", message["id"], "c")

    assert [(cluster.addresses[1], "waiting")] == [(m["node"], m["state"]) for m in found]
    body = await whole_body(cluster.fleet, "t", message["id"], cluster.addresses[1])
    assert b"x" * 100_000 == body
    chosen = by_node([{"node": "a:1", "id": message["id"]}, f"[::1]:2/{message['id']}"])
    assert {"a:1": [message["id"]], "[::1]:2": [message["id"]]} == chosen


@pytest.mark.parametrize("named", [5, "no id", "a:1/xyz", {"node": "a:1"}, {"id": "0" * 16}])
def test_messages_that_are_named_badly(named: object) -> None:
    """A message has a node and an id."""
    with pytest.raises(ValueError, match=r"hexadecimal|node"):
        by_node([named])


async def test_a_seek_is_shown_before_it_is_done(cluster: Cluster) -> None:
    """How many messages would come again, at which node; nothing moves."""
    await fill(cluster, 10)
    consumer = await Consumer.introduced(cluster.one, sub("t", "c"))
    await consumer.messages(5)
    await consumer.close()

    preview = await seek_preview(cluster.fleet, "t", "c", "earliest")

    assert (5, 10, False) == (preview.again, preview.waiting, preview.older_are_gone)
    again = {each["node"]: each["again"] for each in preview.document()["nodes"]}
    assert dict(zip(cluster.addresses, (5, 0), strict=True)) == again
    assert 0 == (await cluster.one.channel("t", "c"))["depth"]
    with pytest.raises(Refused, match="choose a node"):
        await seek_preview(cluster.fleet, "t", "c", "12345")
    with pytest.raises(Refused, match="INVALID_ARG_TO"):
        await seek_preview(cluster.fleet, "t", "c", "yesterday")


async def test_times_are_those_of_all_nodes(cluster: Cluster) -> None:
    """The buckets' counts add up to all messages."""
    await fill(cluster, 30)

    found = await times(cluster.fleet, "t", "c", buckets=10)

    assert (30, 10) == (sum(found.counts), len(found.counts))
    assert set(cluster.addresses) == set(found.cursors)
    document = found.document()
    assert 10 == len(document["buckets"])
    assert document["from"] < document["to"]
    none = await times(cluster.fleet, "t", buckets=10, nodes=())
    assert {} == none.cursors


@pytest.mark.parametrize(
    ("topic", "channel", "code", "status"),
    [("none", "c", "TOPIC_NOT_FOUND", 404), ("t", "none", "CHANNEL_NOT_FOUND", 404)],
)
async def test_what_is_not_there(
    cluster: Cluster, topic: str, channel: str, code: str, status: int
) -> None:
    """Is told with NSQ's codes."""
    with pytest.raises(Refused, match=code) as caught:
        await peek(cluster.fleet, topic, channel)
    assert status == caught.value.status


async def test_wrong_questions_are_refused(cluster: Cluster) -> None:
    """With the node's own words, or ours."""
    await fill(cluster, 1)
    for ask in (
        lambda: peek(cluster.fleet, "t", "c", state="gone"),
        lambda: peek(cluster.fleet, "t", "c", after="nonsense"),
        lambda: log_page(cluster.fleet, "t", place="yesterday"),
        lambda: search(cluster.fleet, "t", Sought(json="a b c")),
        lambda: peek(cluster.fleet, "t", "c", show=Show(nodes=("a:1",))),
        lambda: find(cluster.fleet, "t", "xyz"),
        lambda: find(cluster.fleet, "t", "0" * 16),
        lambda: whole_body(cluster.fleet, "t", "0" * 16, "a:1"),
        lambda: whole_body(cluster.fleet, "t", "0" * 16, cluster.addresses[0]),
    ):
        with pytest.raises(Refused, match=r"INVALID|NOT_FOUND"):
            await ask()


async def test_go_nodes_are_told_apart(cluster: Cluster) -> None:
    """What only sparq's nodes serve is shown of these; of Go's alone it is refused."""
    await fill(cluster, 4)
    async with Fake() as go:
        go.missing = {"/channel/messages", "/channel/seek"}
        go.answer = {"version": "1.3.0", "health": "OK", "topics": [{"topic_name": "t"}]}
        both = Fleet(cluster.fleet.upstream, nsqds=[*cluster.fleet.nsqds, go.http])
        page = await peek(both, "t", "c")
        assert (4, [go.http], None) == (len(page.messages), page.answers.unable, page.next)
        preview = await seek_preview(both, "t", "c", "earliest")
        assert (4, [go.http]) == (preview.waiting, preview.answers.unable)
        assert not [each for each in go.requests if "seek" in each]
        alone = Fleet(cluster.fleet.upstream, nsqds=[go.http])
        with pytest.raises(Refused, match="NOT_SUPPORTED") as caught:
            await peek(alone, "t", "c")
        assert caught.value.status == 501


async def test_a_dead_node_costs_its_own_messages_only(cluster: Cluster) -> None:
    """What it would have shown is asked for again with the next page."""
    await fill(cluster, 4)
    async with Fake() as hung:
        hung.answer = {"version": "1.3.0", "health": "OK", "topics": [{"topic_name": "t"}]}
        fleet = Fleet(cluster.fleet.upstream, nsqds=[*cluster.fleet.nsqds, hung.http])
        hung.broken = {"/channel/messages"}
        page = await peek(fleet, "t", "c")
        assert (4, [hung.http]) == (len(page.messages), [*page.answers.errors])
        assert page.next is not None
        assert {hung.http} == {n for n, p in places_in(page.next).items() if not p.is_done}


def test_tokens_are_not_trusted() -> None:
    """Whatever comes back is read or refused."""
    places = {
        "a:1": ListPosition("x", (0, 5), 0.5),
        "b:1": ListPosition(is_done=True, progress=1.0),
    }
    token = token_of(places)
    assert token is not None
    assert places == places_in(token)
    assert token_of({"a": ListPosition(is_done=True)}) is None
    bomb = token_of({"a" * 3_000_000: ListPosition()})
    assert bomb is not None
    for bad in ("", "x", "W10", token[:-20], "a" * 100_000, bomb, "é"):
        with pytest.raises(ValueError, match="use the `next` of an earlier answer"):
            places_in(bad)


def test_times_as_text() -> None:
    """With nanoseconds, or whole seconds."""
    for text in ("2026-11-23T12:00:00Z", "2026-11-23T12:00:00.000000001Z"):
        assert text == text_of(ns_of(text))
    assert 1_500_000_000 == ns_of("1970-01-01T00:00:01.5Z")


def test_counts_are_spread_evenly() -> None:
    """And none is lost, whatever is rounded."""
    assert [5, 5, 0, 0] == spread([(0, 20, 10)], 0, 40, 4)
    assert [3, 0, 0, 7] == spread([(0, 1, 3), (39, 40, 7)], 0, 40, 4)
    assert [0, 1, 1, 1] == spread([(10, 40, 3)], 0, 40, 4)
    odd = spread([(at * 7, at * 7 + 7, at % 5) for at in range(100)], 0, 700, 33)
    assert sum(at % 5 for at in range(100)) == sum(odd)
    assert min(odd) >= 0
