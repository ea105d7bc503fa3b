"""Pages show new statistics within 2 s and a dead node within 5 s, in up to eight tabs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster, wait_for_nodes
from tests.scenarios.admin_pages.conftest import opened_page

TABS = 8
SHOWN_SECONDS = 2.0
NODE_LOSS_SHOWN_SECONDS = 5.0
MOMENTS = (0.0, 0.15, 0.35, 0.55, 0.75, 0.95)
"""Delays in seconds between a change and the next publish: they spread over a refresh interval."""


def test_a_published_message_shows_within_two_seconds(reader: Reader, cluster: Cluster) -> None:
    """The channel's page shows a message within 2 s of its publish; opened details stay open."""
    cluster.create("live.one", "c")
    reader.open("/topics/live.one/c")
    reader.page.locator("#rates summary").click()
    took = []
    for number in range(1, 1 + len(MOMENTS)):
        reader.watch_for(f"Waiting\n{17 * number}\n", "#live")
        reader.page.wait_for_timeout(1000 * MOMENTS[number - 1])
        published_at = time.time()
        cluster.publish("live.one", *[b"x"] * 17)
        took.append(reader.seconds_until_seen(published_at))

    assert max(took) < SHOWN_SECONDS, took
    assert reader.page.locator("#rates details[open]").count() == 1


def test_a_killed_nsqd_is_shown_with_its_waiting_messages(browser: Any, tmp_path: Path) -> None:
    """Within 5 s the first page shows a killed nsqd and the number of messages waiting on it.

    The page stays live, and shows when the nsqd runs again.
    """
    with Cluster(tmp_path, nsqds=2) as own:
        wait_for_nodes(own)
        own.create("live.gone", "c")
        own.publish("live.gone", *[b"x"] * 123, node=1)
        for reader in opened_page(browser, own.url):
            reader.open("/")
            reader.wait_for("2 of 2")
            reader.wait_for("123")
            reader.watch_for("123 messages wait there")
            killed_at = time.time()
            own.nsqds[1].kill9()
            assert reader.seconds_until_seen(killed_at) < NODE_LOSS_SHOWN_SECONDS
            reader.watch_for("Waiting\n7\n")
            published_at = time.time()
            own.publish("live.gone", *[b"x"] * 7)
            assert reader.seconds_until_seen(published_at) < SHOWN_SECONDS  # the page is still live
            reader.wait_for("1 of 2")
            own.nsqds[1].start()
            reader.wait_for("2 of 2")


def test_eight_tabs_stay_live(browser: Any, cluster: Cluster) -> None:
    """Eight tabs stay live, although a browser opens only six connections to a host."""
    cluster.create("live.tabs", "c")
    context = browser.new_context()
    readers = [Reader(context, cluster.url) for _ in range(TABS)]
    for reader in readers:
        reader.open("/topics/live.tabs/c")
    cluster.publish("live.tabs", *[b"x"] * 31)
    published_at = time.monotonic()
    for reader in readers:
        reader.wait_for("Waiting\n31", "#live", seconds=8.0)
    took = time.monotonic() - published_at
    readers[-1].open("/nodes")
    problems = [problem for reader in readers for problem in reader.problems]
    context.close()

    assert problems == []
    assert took < 8.0
