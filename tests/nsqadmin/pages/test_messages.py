"""Pages of messages: waiting ones, the log, searches, dead letters; the role for bodies."""

from __future__ import annotations

from tests.nsqadmin.pages.conftest import Site, words
from tests.support.waiting import until


async def test_waiting_messages_are_shown_and_not_consumed(site: Site) -> None:
    """The page lists messages of all nodes, and bodies only with the role; depths stay."""
    await site.nsqds[0].post("/pub?topic=t", b"first body")
    await site.nsqds[1].post("/pub?topic=t", b"second body")

    page = await site.get("/messages?topic=t&channel=c")
    assert all(text in page for text in ("first body", "second body"))
    hidden = await site.get("/messages?topic=t&channel=c", token="eve")
    assert "first body" not in hidden
    assert all("/message?topic=t" in each for each in (page, hidden))
    depths = [(await nsqd.channel("t", "c"))["depth"] for nsqd in site.nsqds]
    assert [1, 1] == depths


async def test_the_log_is_shown_in_pages(site: Site) -> None:
    """A page starts at a given position and has a link to the next page."""
    await site.nsqds[0].post("/mpub?topic=t", b"\n".join(b"body %d" % n for n in range(30)))

    first = await site.get("/messages?topic=t&from=earliest&limit=20")
    assert ("body 19" in first, "body 20" in first, 'rel="next"' in first) == (True, False, True)
    assert "body 29" in await site.get("/messages?topic=t")
    status, _ = await site.ask("GET", "/messages?topic=t&limit=0")
    assert 400 == status


async def test_searching_bodies_needs_the_role_bodies(site: Site) -> None:
    """A search needs the role bodies, since its results reveal the contents of bodies."""
    await site.nsqds[0].post("/mpub?topic=t", b"needle one\nhay\nneedle two")
    path = "/messages?topic=t&show=search&go=1&text=needle"

    found = await site.get(path)
    assert ("needle one" in found, "needle two" in found, "hay" in found) == (True, True, False)
    refused = words(await site.get(path, token="op"))
    assert "Searching bodies requires the role bodies." in refused


async def test_unknown_topics_and_ids_are_explained(site: Site) -> None:
    """An unknown topic and no topic have an explanation; an invalid id gets a 4xx status."""
    assert "No nsqd has this topic." in words(await site.get("/messages?topic=none"))
    assert "Choose a topic." in words(await site.get("/messages"))
    status, _ = await site.ask("GET", "/message?topic=t&id=xyz")
    assert 400 <= status < 500


async def test_dead_letters_have_their_original_topic(site: Site) -> None:
    """The list has each dead-letter topic's original topic."""
    await site.nsqds[0].post("/pub?topic=t.dead", b"buried")
    assert "buried" in words(await site.get("/dead-letters?topic=t.dead"))

    async def lists() -> bool:
        return '>t.dead</a></th><td><a href="/topics/t">t</a></td>' in await site.get(
            "/dead-letters"
        )

    await until(lists)
