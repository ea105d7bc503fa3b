"""Pages show new statistics within 2 s and a dead node within 5 s, in up to eight tabs."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster, wait_for_nodes
from tests.scenarios.admin_pages.conftest import opened_page

TABS = 8
STREAMS_MAX = 3
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


def test_a_hanging_node_does_not_delay_others_figures(browser: Any, tmp_path: Path) -> None:
    """With one nsqd suspended, messages published to the other are shown within 2 s."""
    with Cluster(tmp_path, nsqds=2) as own:
        wait_for_nodes(own)
        own.create("live.hung", "c")
        for reader in opened_page(browser, own.url):
            reader.open("/topics/live.hung/c")
            with suspended(own.nsqds[1].process.pid):
                took = []
                for number in range(1, 4):
                    reader.watch_for(f"Waiting\n{number}\n", "#live")
                    published_at = time.time()
                    own.publish("live.hung", b"x")
                    took.append(reader.seconds_until_seen(published_at))

            assert max(took) < SHOWN_SECONDS, took


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


def test_further_streams_of_one_browser_poll(cluster: Cluster) -> None:
    """The fourth stream of a browser ends with a retry time, so that it polls.

    The others stay open.
    """
    with ExitStack() as stack:
        for _ in range(STREAMS_MAX):
            answer = stack.enter_context(stream(cluster, "/nodes", "one-browser"))
            assert b"retry: 500" in answer.readline() + answer.readline()
        extra = stack.enter_context(stream(cluster, "/nodes", "one-browser"))
        other = stack.enter_context(stream(cluster, "/nodes", "another-browser"))
        said = extra.read()

        assert b"retry: 600" in said
        assert said.endswith(b"\n\n")
        assert b"retry: 500" in other.readline() + other.readline()


def test_an_unchanged_part_is_not_sent_again(cluster: Cluster) -> None:
    """If the browser already has the current version of a part, nsqadmin answers `event: same`."""
    with stream(cluster, "/audit", "a") as first:
        mark = first.readline().removeprefix(b"id: ").strip().decode()
    with stream(cluster, f"/audit&seen={mark}", "a") as again:
        assert again.readline() == b"event: same\n"
    with stream(cluster, "/audit&seen=other", "a") as other:
        assert other.readline() == f"id: {mark}\n".encode()


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a process, and resume it afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def stream(cluster: Cluster, view: str, browser: str) -> Iterator[http.client.HTTPResponse]:
    """A stream, requested as a browser does; its headers forbid caching."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.admin.http_port, timeout=10)
    cookie = {"Cookie": f"nsqadmin_tabs={browser}"}
    connection.request("GET", f"/live?view={view}", headers=cookie)
    with connection.getresponse() as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-store"
        yield answer
    connection.close()
