"""Takes a screenshot of every page, light and dark, at four widths: `screenshot --all FOLDER`.

The browser is in Berlin, so that times have the local time beside them.

The screenshots are for people, not for a test: look through the folder after a change to the style
sheet. The cluster has long names, a killed node, a paused channel, a channel that Spark reads,
messages in every state, and bodies of JSON, text and bytes. The program prints the name of each
page that is wider than its screen, and of each table that is wider than its place (`CUT`).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparq.client.range_reader import RangeReader
from sparq.daemon.access import tokens
from tests.scenarios.admin_pages.cluster import Cluster, order
from tests.support.servers import AdminServer
from tests.support.waiting import wait_for

SETTLE_MILLISECONDS = 500
WIDTHS = (390, 1280, 1440, 2560)
SCHEMES = ("light", "dark")
ZONE = "Europe/Berlin"
CUT = """[...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => `${box.ariaLabel}: ${box.scrollWidth} of ${box.clientWidth}`)"""
"""The tables of a page whose last columns are cut."""

HEIGHTS = {390: 844, 1280: 800, 1440: 900, 2560: 1200}
LONG = "com.example.warehouse.inventory-adjustments.europe-west-4.v2.raw"
LONG_CHANNEL = "reconcile_nightly_with_the_general_ledger-worker-pool.blue"
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "channels": "/topics?view=channels",
    "no-channels": "/topics?view=channels&filter=nothing-is-called-so",
    "topic": "/topics/orders",
    "topic-long": f"/topics/{LONG}",
    "topic-none": "/topics/nothing",
    "channel": "/topics/orders/billing",
    "channel-long": f"/topics/{LONG}/{LONG_CHANNEL}",
    "channel-spark": "/topics/clicks/spark",
    "channel-paused": "/topics/inventory/sync",
    "messages-none": "/messages",
    "messages-waiting": "/messages?topic=orders&channel=shipping",
    "messages-in-flight": "/messages?topic=payments&channel=fraud&show=in_flight",
    "messages-deferred": "/messages?topic=emails&channel=later&show=deferred",
    "messages-log": "/messages?topic=mixed&channel=c&show=log&from=earliest",
    "messages-tail": "/messages?topic=orders&show=tail",
    "search": "/messages?topic=orders&channel=shipping&show=search",
    "search-found": "/messages?topic=orders&channel=shipping&show=search&go=1"
    "&json=customer.country%20%3D%20%22DE%22",
    "search-nothing": "/messages?topic=orders&show=search&go=1&regex=no-such-thing",
    "search-wrong": "/messages?topic=orders&show=search&go=1&regex=%28",
    "replay": "/replay?topic=orders&channel=shipping",
    "replay-preview": "/replay?topic=orders&channel=shipping&to=last%3A1000",
    "dead-letters": "/dead-letters",
    "dead-letters-topic": "/dead-letters?topic=orders.dead",
    "nodes": "/nodes",
    "counter": "/counter",
    "lookup": "/lookup",
    "policies": "/policies",
    "audit": "/audit",
    "not-found": "/nope",
    "bad-request": "/topics?limit=x",
}


def prepare(cluster: Cluster) -> dict[str, str]:
    """Add to a lively cluster what is hard to lay out; returns more pages, by name."""
    cluster.create(LONG, LONG_CHANNEL, "archive")
    cluster.create("mixed", "c")
    cluster.create("emails", "later")
    for nsqd in cluster.nsqds:
        nsqd.post("/channel/pause?topic=inventory&channel=sync")
    for number in range(24):
        cluster.create(f"team-{number % 6}.events-{number}", "sink", "audit")
    bodies = [order(7), b"\x00\x01\x02\xff" * 40, "grüße, 世界 ".encode() * 30, b"[1, 2, 3]"]
    bodies += [json.dumps({"path": "/" + "a" * 900}).encode(), b"plain text\nof two lines"]
    cluster.publish("mixed", *bodies)
    cluster.publish(LONG, *(order(n) for n in range(12_345)))
    for number in range(8):
        cluster.nsqds[0].post(f"/pub?topic=emails&defer={(number + 1) * 400_000}", order(number))
    for node in range(len(cluster.nsqds)):
        cluster.consume(
            LONG,
            LONG_CHANNEL,
            node=node,
            rdy=2,
            pause=0.2,
            client_id="reconcile-7f6bbd8d4c-x2x9k",
            hostname="reconcile-7f6bbd8d4c-x2x9k.ledger.svc.cluster.local",
            user_agent="reconcile-nightly/2026.11.0 (go-nsq/1.1.0; linux/amd64)",
        )
    send_back_twice(cluster)
    cluster.lookupd.post("/topic/create?topic=orders.old")
    cluster.lookupd.post("/channel/create?topic=orders.old&channel=billing")
    log = cluster.admin.get_json("/api/v2/log?topic=mixed&from=earliest")["messages"]
    found = {
        f"message-{number}": f"/message?topic=mixed&id={one['id']}&node={quote(one['node'])}"
        for number, one in enumerate(log[:3])
    }
    node_pages = {
        "connections": "/connections?topic=payments&channel=fraud",
        "connection": connection_of(cluster, "payments", "fraud"),
        "node": f"/nodes/{cluster.nsqds[0].http}",
        "node-gone": f"/nodes/{cluster.nsqds[-1].http}",
    }
    return {**found, **node_pages}


def connection_of(cluster: Cluster, topic: str, channel: str) -> str:
    """The page of a channel's first connection."""
    path = f"/api/v2/topics/{topic}/{channel}"
    wait_for(lambda: cluster.admin.request("GET", path)[0] == 200)
    at, _, client = cluster.admin.get_json(path)["clients"][0]["addresses"][0].partition("/")
    return f"/connection?topic={topic}&channel={channel}&node={quote(at)}&client={quote(client)}"


def send_back_twice(cluster: Cluster) -> None:
    """Send a dead letter back to its topic, and publish it as a dead letter again."""
    letters = cluster.admin.get_json("/api/v2/dead-letters?topic=orders.dead")["messages"]
    one = letters[2]
    named = {"topic": "orders.dead", "to": "orders", "messages": [f"{one['node']}/{one['id']}"]}
    cluster.admin.post("/api/v2/dead-letters", json.dumps(named).encode())
    cluster.publish("orders.dead", one["body"].encode())


def start_range_readers(cluster: Cluster) -> list[RangeReader]:
    """Start a range reader on each nsqd, as Spark's driver does."""
    readers = []
    for nsqd in cluster.nsqds:
        reader = RangeReader(f"127.0.0.1:{nsqd.tcp_port}", user_agent="clicks archive (run 7)")
        held = reader.attach("clicks", "spark")
        reader.commit("clicks", "spark", held.epoch, held.committed)
        readers.append(reader)
    return readers


def take_screenshots(
    browser: Any, folder: Path, pages: Sequence[tuple[str, str]], widths: Sequence[int]
) -> None:
    """Write `page-scheme-width.png` for all pages; print what is wider than its place."""
    for scheme in SCHEMES:
        for width in widths:
            size = {"width": width, "height": HEIGHTS[width]}
            context = browser.new_context(viewport=size, color_scheme=scheme, timezone_id=ZONE)
            page = context.new_page()
            for name, url in pages:
                page.goto(url)
                page.wait_for_timeout(SETTLE_MILLISECONDS)
                page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
                found = page.evaluate("document.documentElement.scrollWidth")
                if found > width:
                    sys.stdout.write(f"{name} is {found} wide at {width}\n")
                for cut in page.evaluate(CUT):
                    sys.stdout.write(f"{name} at {width}: {cut}\n")
            context.close()


def take_all(
    cluster: Cluster,
    folder: Path,
    browser: Any,
    seconds: float,
    names: str,
    *,
    widths: Sequence[int],
) -> None:
    """Take all pages of a lively cluster, and two of an nsqadmin that requires a token."""
    folder.mkdir(parents=True, exist_ok=True)
    more = prepare(cluster)
    readers = start_range_readers(cluster)
    time.sleep(seconds)
    cluster.nsqds[-1].kill9()
    time.sleep(3)
    pages = [(name, cluster.url + path) for name, path in {**PAGES, **more}.items()]
    with tempfile.TemporaryDirectory() as home, nsqadmin_with_tokens(cluster, Path(home)) as admin:
        pages += [("signin", f"{admin.url}/signin"), ("unauthorized", f"{admin.url}/topics")]
        chosen = [page for page in pages if re.search(names, page[0])]
        take_screenshots(browser, folder, chosen, widths)
    for reader in readers:
        reader.close()


@contextmanager
def nsqadmin_with_tokens(cluster: Cluster, home: Path) -> Iterator[AdminServer]:
    """Run an nsqadmin that allows nothing without a token."""
    _, line = tokens.make("ann", "administer,bodies,publish")
    file = home / "tokens"
    file.write_text(line)
    file.chmod(0o600)
    flags = (f"--token-file={file}", "--default-role=none")
    with AdminServer("sparq.nsqadmin", home, (*cluster.admin.flags, *flags)) as admin:
        admin.start()
        yield admin
