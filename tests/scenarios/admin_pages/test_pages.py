"""Every page in Chromium shows its content without any problem."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster
from tests.scenarios.admin_pages.conftest import opened_page
from tests.support.waiting import wait_for

CUT = """[...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => `${box.ariaLabel}: ${box.scrollWidth} of ${box.clientWidth}`)"""
"""The tables of a page whose last columns are cut."""
LONG = "com.example.warehouse.inventory_adjustments-europe-west4.v2rawxx"
PAGES = {
    "/": "Needs attention",
    "/topics": "payments",
    "/topics?view=channels&state=paused": "sync",
    "/topics/orders": "shipping",
    "/topics/orders/shipping": "no consumers",
    "/topics/events%23ephemeral/live%23ephemeral": "live#ephemeral",
    "/connections?topic=payments&channel=fraud": "fraud-model",
    "/nodes": "127.0.0.1",
    "/counter": "messages published",
    "/lookup": "Create a topic",
    "/messages": "Choose a topic",
    "/messages?topic=orders": "A-10",
    "/messages?topic=orders&channel=shipping": "Waiting",
    "/messages?topic=payments&channel=fraud&show=in_flight": "In flight",
    "/messages?topic=orders&channel=shipping&show=deferred": "Nothing is deferred.",
    "/messages?topic=orders&show=tail": "The newest messages",
    "/messages?topic=orders&show=search&go=1&text=A-100001": "A-100001",
    "/replay?topic=orders&channel=shipping": "Published messages",
    "/dead-letters": "orders.dead",
    "/dead-letters?topic=orders.dead": "Send the selected letters back",
    "/policies": "What would change",
    "/audit": "Result",
}


def connection_of(cluster: Cluster, topic: str, channel: str) -> str:
    """The page of a channel's first connection."""
    path = f"/api/v2/topics/{topic}/{channel}"
    wait_for(lambda: cluster.admin.request("GET", path)[0] == 200)
    at, _, client = cluster.admin.get_json(path)["clients"][0]["addresses"][0].partition("/")
    return f"/connection?topic={topic}&channel={channel}&node={quote(at)}&client={quote(client)}"


@pytest.mark.parametrize("path", PAGES)
def test_pages_show_their_content_without_errors(reader: Reader, path: str) -> None:
    """A page shows its content without any error, and requests nothing from other hosts."""
    reader.open(path)

    assert PAGES[path].lower() in reader.page.inner_text("body").lower()
    assert {url for url in reader.requests if not url.startswith(reader.url)} == set()


@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_pages_and_tables_fit_their_width(browser: Any, cluster: Cluster, width: int) -> None:
    """On a phone, a laptop and a wall, no page scrolls sideways, even with long names.

    The last column of every table of short names is in sight.
    """
    cluster.create(LONG, LONG)
    cluster.publish(LONG, b"x" * 500)
    cluster.consume(LONG, LONG, rdy=0, hostname="h" * 200, user_agent="u" * 200)
    cluster.lookupd.post(f"/topic/create?topic=old.{LONG[:60]}")
    node = cluster.nsqds[0].http
    message = cluster.admin.get_json(f"/api/v2/log?topic={LONG}&from=earliest")["messages"][0]
    of_long = f"topic={LONG}&channel={LONG}"
    paths = [*PAGES, f"/topics/{LONG}", f"/topics/{LONG}/{LONG}", f"/nodes/{node}", "/nope"]
    paths += [f"/messages?{of_long}", f"/messages?{of_long}&show=search", f"/replay?{of_long}"]
    paths.append(f"/message?topic={LONG}&id={message['id']}&node={node}")
    paths.append(connection_of(cluster, "payments", "fraud"))
    context = browser.new_context(
        viewport={"width": width, "height": 800}, timezone_id="Europe/Berlin"
    )
    page = context.new_page()
    wrong = {}
    for path in paths:
        page.goto(cluster.url + path)
        page.wait_for_load_state("load")
        wide = page.evaluate("document.documentElement.scrollWidth")
        cut = [] if LONG in path else page.evaluate(CUT)
        if wide != width or cut:
            wrong[path] = (wide, cut)
    context.close()

    assert wrong == {}


def test_the_local_time_is_beside_utc(browser: Any, cluster: Cluster) -> None:
    """A browser outside UTC shows its own time after each time, also after live updates."""
    path = f"/nodes/{cluster.nsqds[0].http}"
    beside = "document.querySelector('.facts time').dataset.local"
    content = "getComputedStyle(document.querySelector('.facts time'), '::after').content"
    own = "document.querySelector('.facts time').innerText"
    for zone, expected in (
        ("Asia/Kolkata", r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC\+5:30"),
        ("America/Phoenix", r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC\u22127"),
        ("UTC", ""),
    ):
        for reader in opened_page(browser, cluster.url, timezone_id=zone):
            reader.open(path)
            part = "document.querySelector('#live').innerHTML"
            before = reader.page.evaluate(part)
            reader.until(f"{part} !== {json.dumps(before)}")
            found = reader.page.evaluate(beside)
            assert re.fullmatch(expected, found), zone
            assert (found in reader.page.evaluate(content)) or not found
            assert re.search(r":\d\d\sUTC$", reader.page.evaluate(own))


def test_a_phone_shows_the_menus_lower_part_on_demand(browser: Any, cluster: Cluster) -> None:
    """On a phone, a button opens theme, keys and account; the current menu entry is visible."""
    for reader in opened_page(browser, cluster.url, viewport={"width": 360, "height": 800}):
        reader.open("/audit")
        here = reader.page.locator(".menu [aria-current]").bounding_box()
        assert 0 <= here["x"] <= here["x"] + here["width"] <= 360
        dark = reader.page.get_by_role("button", name="Dark")
        assert not dark.is_visible()
        reader.page.get_by_role("button", name="Theme, keys").click()
        assert "This machine may administer" in reader.text("#about")
        dark.click()
        assert reader.page.evaluate("document.documentElement.dataset.theme") == "dark"
        reader.press("Escape")
        assert not dark.is_visible()


def test_a_chart_has_a_text_alternative_and_a_table(reader: Reader) -> None:
    """A chart's canvas has a text alternative with its values, and its table opens."""
    reader.open("/replay?topic=orders&channel=shipping")
    reader.page.locator("#times summary").click()

    assert reader.page.locator("#times canvas").count() == 1
    assert "Messages by the time" in reader.page.locator("#times .plot").get_attribute("aria-label")
    assert reader.page.locator("#times tbody tr").count() > 1


def test_the_theme_is_kept_without_a_flash(reader: Reader) -> None:
    """The chosen theme is already set when the next page is loaded."""
    reader.open("/nodes")
    light = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    reader.page.get_by_role("button", name="Dark").click()
    dark = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    reader.open("/topics")

    assert light != dark
    assert reader.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert reader.page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_the_first_paint_takes_less_than_a_second(reader: Reader) -> None:
    """The first contentful paint takes less than 1 s without a cache, in the best of five loads."""
    devtools = reader.page.context.new_cdp_session(reader.page)
    devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
    script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"

    def paint_ms() -> float:
        reader.open("/")
        return reader.page.evaluate(script)

    assert min(paint_ms() for _ in range(5)) < 1000
