"""Forms of pages: what they do, their notices, and the questions that they ask first."""

from __future__ import annotations

import asyncio
import re

from tests.nsqadmin.pages.conftest import Site, words
from tests.support.stubborn_client import StubbornClient
from tests.support.waiting import until


async def test_a_node_is_drained_on_its_page(site: Site) -> None:
    """The form drains the node, its page shows it, and the overview has a notice."""
    node = site.nodes[0]
    page = f"/nodes/{node}"
    assert "Drain…" in await site.get(page)
    assert "Drain…" not in await site.get(page, token="op")
    status, result = await site.ask("POST", page, {"action": "drain_node", "exit": "true"})
    assert (200, True) == (status, f"Draining: {node}" in words(result))
    drain = site.nsqds[0].nsqd.broker.drains.now.node
    assert drain is not None
    assert drain.exit

    async def says() -> bool:
        return "State draining refuses publishes" in words(await site.get(page))

    await until(says)
    assert f"{node} is draining; 0 messages wait." in words(await site.get("/"))
    status, result = await site.ask("POST", page, {"action": "undrain_node"})
    assert (200, True) == (status, f"Taking publishes again: {node}" in words(result))
    assert site.nsqds[0].nsqd.broker.drains.now.node is None


async def test_gos_nsqd_has_no_drain(site: Site) -> None:
    """Draining a Go nsqd shows a notice that it does not support this action."""
    site.fake.missing = {"/policies", "/drain"}
    page = f"/nodes/{site.fake.http}"
    status, result = await site.ask("POST", page, {"action": "drain_node"})
    assert 200 == status
    assert "this is NSQ's Go nsqd, which does not support this action" in words(result)


async def test_a_deleted_topic_that_comes_back_is_shown_with_its_clients(site: Site) -> None:
    """A client that subscribes again at once creates the topic again: the notice names it."""
    nsqd = site.nsqds[0]
    client = StubbornClient(nsqd.listeners.tcp.port, "grave", "c")
    await asyncio.to_thread(client.__enter__)
    try:
        form = {"action": "delete_topic", "typed": "grave"}
        status, result = await site.ask("POST", "/topics/grave", form)
    finally:
        await asyncio.to_thread(client.__exit__)
    assert 200 == status
    text = words(result)
    assert (
        f"Deleted: grave on {site.nodes[0]}, but it is back. Stop the clients that use it" in text
    )
    assert f"{site.nodes[0]}: it is back: attached to it: 127.0.0.1:" in text
    assert "(client id stubborn, user agent raw/1, channel c)" in text
    assert "partly" == (await site.audited())[0]["outcome"]


async def ids(site: Site, topic: str, channel: str = "") -> list[str]:
    """`node/id` of the messages on a list."""
    page = await site.get(f"/messages?topic={topic}&channel={channel}")
    return re.findall(r'name="message" value="([^"]+)"', page)


async def asked(site: Site, path: str, **fields: str) -> str:
    """The text of the question that answers a form."""
    status, text = await site.ask("POST", path, fields)
    assert 200 == status, text
    assert 'name="sure" value="1"' in text
    return words(text)


async def test_a_copy_names_the_channels_that_get_it(site: Site) -> None:
    """A copy asks first: it names every channel of the topic, and does nothing until confirmed."""
    nsqd = site.nsqds[0]
    await nsqd.post("/topic/create?topic=orders")
    for channel in ("billing", "shipping"):
        await nsqd.post(f"/channel/create?topic=orders&channel={channel}")
    await nsqd.post("/pub?topic=orders.dead", b"poison")
    await site.admin.services.watch.fresh()
    (one,) = await ids(site, "orders.dead")
    form = {"action": "copy_message", "topic": "orders.dead", "message": one, "to": "orders"}

    question = await asked(site, "/dead-letters", **form)
    assert question.startswith("Publish 1 message again, to orders? Each of its 2 channels gets")
    assert "before: billing and shipping." in question
    assert [] == await ids(site, "orders", "billing")
    await asked(site, "/messages", **form)
    assert "does not exist: it is created" in await asked(site, "/messages", **form | {"to": "new"})
    assert "no channel yet" in await asked(site, "/messages", **form | {"to": "free"})
    assert "only channel gets them: c." in await asked(site, "/messages", **form | {"to": "t"})
    assert [] == await site.audited()

    status, text = await site.ask("POST", "/dead-letters", {**form, "sure": "1"})
    assert (200, True) == (status, "Copied: 1 message of orders.dead to orders" in words(text))
    assert 1 == len(await ids(site, "orders", "billing"))


async def test_letters_go_back_only_from_a_channel(site: Site) -> None:
    """A dead-letter topic without a channel offers the channel `redrive`, and no copy."""
    await site.nsqds[0].post("/pub?topic=orders.dead", b"poison")
    await site.admin.services.watch.fresh()
    page = await site.get("/dead-letters?topic=orders.dead")
    assert "Create the channel redrive" in words(page)
    assert ("copy_message" in page, "redrive_message" in page) == (False, False)

    form = {"action": "create", "topic": "orders.dead", "channel": "redrive"}
    assert 200 == (await site.ask("POST", "/lookup", form))[0]
    page = await site.get("/dead-letters?topic=orders.dead")
    assert 'name="channel" value="redrive"' in page
    assert "to no other channel" in words(page)
    assert 1 == len(await ids(site, "orders.dead", "redrive"))


async def test_finishing_and_cancelling_ask_first(site: Site) -> None:
    """Finish and Cancel say how many messages of which channel, and wait for a confirmation."""
    await site.nsqds[0].post("/pub?topic=t", b"kept")
    (one,) = await ids(site, "t", "c")
    form = {"topic": "t", "channel": "c", "message": one}
    finish = form | {"action": "finish_message"}
    assert "Finish 1 message in t/c?" in await asked(site, "/messages", **finish)
    cancel = form | {"action": "cancel_message"}
    assert "Drop 1 deferred message of t/c" in await asked(site, "/messages", **cancel)
    assert [one] == await ids(site, "t", "c")
    status, _ = await site.ask("POST", "/messages", {**finish, "sure": "1"})
    assert (200, []) == (status, await ids(site, "t", "c"))


async def test_a_replay_says_how_many_messages_are_skipped(site: Site) -> None:
    """The replay page and its question count skipped messages; nothing moves until confirmed."""
    await site.nsqds[0].post("/mpub?topic=t", b"1\n2\n3")
    await site.nsqds[0].post("/pub?topic=t&defer=600000", b"later")
    sentence = "4 unfinished messages would be skipped"
    assert sentence in words(await site.get("/replay?topic=t&channel=c&to=latest"))
    assert "skipped:" not in words(await site.get("/replay?topic=t&channel=c&to=earliest"))

    form = {"topic": "t", "channel": "c", "to": "latest", "node": site.nodes[0]}
    question = await asked(site, "/replay", **form)
    assert sentence in question
    assert f"Move t/c to latest at {site.nodes[0]}?" in question
    assert 3 == len(await ids(site, "t", "c"))
    assert 400 == (await site.ask("POST", "/replay", form | {"to": "nonsense"}))[0]
    assert 200 == (await site.ask("POST", "/replay", {**form, "sure": "1"}))[0]
    assert [] == await ids(site, "t", "c")
