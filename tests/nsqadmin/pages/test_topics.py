"""Pages of topics and channels: lists, figures, latencies, deliveries by zone."""

from __future__ import annotations

import json
from typing import Any

from sparq.cluster.cluster_stats import LATENCY
from sparq.nsqadmin.pages.rendering import environment
from tests.nsqadmin.pages.conftest import Site, words
from tests.support.waiting import until


async def test_lists_have_all_topics_and_channels(site: Site) -> None:
    """Only users who may create see the button; an unknown sort key gets 400."""
    topics = words(await site.get("/topics"))
    assert "free" in topics
    assert "Create…" in topics
    assert "Create…" not in words(await site.get("/topics", token="eve"))
    channels = await site.get("/topics?view=channels")
    assert 'href="/topics/t/c"' in channels
    assert 'href="/topics/t/c"' not in await site.get("/topics?view=channels&state=stuck")
    status, result = await site.ask("GET", "/topics?sort=colour")
    assert (400, True) == (status, "sort must be one of" in words(result))


async def test_pages_of_topics_and_channels_list_their_nodes(site: Site) -> None:
    """Both nodes are listed with links; an unknown topic or channel gets 404."""
    for path in ("/topics/t", "/topics/t/c"):
        page = await site.get(path)
        assert all(f'href="/nodes/{node}"' in page for node in site.nodes)
    for path in ("/topics/none", "/topics/t/none"):
        status, _ = await site.ask("GET", path)
        assert 404 == status


async def test_a_new_topic_has_a_page_within_seconds(site: Site) -> None:
    """The page of a topic that was just created exists within seconds."""
    await site.get("/topics")
    await site.nsqds[0].post("/topic/create?topic=new")

    async def is_there() -> bool:
        return (await site.ask("GET", "/topics/new"))[0] == 200

    await until(is_there)


def shown(macro: str, **stats: Any) -> str:
    """The text of a macro for a topic's or channel's figures."""
    template = f'{{% import "parts.html" as parts %}}{{{{ parts.{macro}(stats) }}}}'
    return words(environment().from_string(template).render(stats=stats))


def test_latencies_are_shown_by_quantile() -> None:
    """Nanoseconds are shown with three digits; unmeasured: no rows."""
    averages = {0.99: 2.5e9, 0.5: 1e9, 0.9: 12_345_678, 0.8: 520_000}
    measured = [{"quantile": each, "average": average} for each, average in averages.items()]

    assert (
        "End to end, 0.99 quantile 2.50 s End to end, 0.5 quantile 1.00 s"
        " End to end, 0.9 quantile 12.3 ms End to end, 0.8 quantile 0.52 ms"
    ) == shown("latencies", **{LATENCY: {"percentiles": measured}})
    assert "" == shown("latencies", **{LATENCY: {"percentiles": None}})


def test_deliveries_are_shown_by_zone() -> None:
    """Deliveries are shown by zone and region; without zones nothing is shown."""
    assert (
        "Delivered in the same zone 1 (25 %) Delivered in the same region 0 (0 %)"
        " Delivered elsewhere 3 (75 %)"
    ) == shown("deliveries", zone_local_msg_count=1, global_msg_count=3)
    assert "" == shown("deliveries", global_msg_count=3)
    assert "" == shown("deliveries")


async def test_an_empty_list_says_why(site: Site) -> None:
    """A filter or state that nothing matches is named in the list."""
    page = words(await site.get("/topics?filter=no-such"))
    assert "Nothing matches the filter “no-such”." in page
    page = words(await site.get("/topics?view=channels&state=stuck"))
    assert "No channel is in the state “stuck”." in page
    assert "Nothing matches" in words(await site.get("/nodes?filter=no-such"))


async def test_buttons_show_what_applies(site: Site) -> None:
    """The live part says whether a topic or channel is paused; the style sheet picks the button."""
    here, there = site.nsqds
    path = "/topics/t/c"

    async def marks() -> tuple[bool, bool]:
        await site.admin.services.watch.fresh()
        page = await site.get(path)
        return "data-is-running" in page, "data-is-paused" in page

    assert (True, False) == await marks()
    await here.post("/channel/pause?topic=t&channel=c")
    assert (True, True) == await marks()
    await there.post("/channel/pause?topic=t&channel=c")
    assert (False, True) == await marks()
    await here.post("/topic/pause?topic=t")
    await marks()
    for page in (path, "/topics?view=channels", "/topics/t"):
        assert "topic paused" in await site.get(page), page


async def test_a_message_is_published_from_the_topics_page(site: Site) -> None:
    """With `publish` a topic's page publishes the body as typed, at one node; audited."""
    body = " two\nlines and ü "
    form = {"topic": "t", "node": site.nodes[1], "body": body}
    assert 'id="ask-publish"' in await site.get("/topics/t")
    assert 'id="ask-publish"' not in await site.get("/topics/t", token="op")
    assert 403 == (await site.ask("POST", "/publish", form, token="op"))[0]
    assert 400 == (await site.ask("POST", "/publish", {**form, "body": ""}))[0]
    assert 404 == (await site.ask("POST", "/publish", {**form, "node": "127.0.0.1:1"}))[0]

    status, text = await site.ask("POST", "/publish", form)
    assert (200, True) == (status, f"Published: 1 message to t on {site.nodes[1]}." in words(text))
    _, answer = await site.nsqds[1].ask("GET", "/channel/messages?topic=t&channel=c")
    (message,) = json.loads(answer)["messages"]
    assert body == message["body"]
    newest = (await site.audited())[0]
    assert ("publish_message", "done") == (newest["action"], newest["outcome"])
    assert {"bytes": len(body.encode())} == newest["arguments"]
