"""A small cluster with various topics and its nsqadmin, for tests of pages in a browser.

It has three nsqds and an nsqlookupd, all real processes. `Cluster.start_traffic` adds topics,
consumers, and channels that drain, lag or stall; a thread publishes until the cluster is closed.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from sparq.protocol import commands
from tests.support.servers import (
    AdminServer,
    NsqdServer,
    spawn_nsqd,
    spawn_nsqlookupd,
    start_first,
)
from tests.support.v2_client import FRAME_MESSAGE, V2Client, decode_message
from tests.support.waiting import wait_for

NSQDS = 3
COUNTRIES = ("DE", "SE", "FR", "IT")


class Consumer(threading.Thread):
    """A raw client of one nsqd that receives messages and may finish them."""

    def __init__(
        self,
        nsqd: NsqdServer,
        topic: str,
        channel: str,
        *,
        rdy: int = 5,
        finishes: bool = True,
        pause: float = 0.0,
        **identify: object,
    ) -> None:
        super().__init__(daemon=True)
        self._client = V2Client(nsqd, answers_heartbeats=True)
        self._finishes, self._pause = finishes, pause
        facts = {"client_id": "worker", "feature_negotiation": True, **identify}
        hello = commands.identify(json.dumps(facts).encode())
        self._client.send(hello + commands.sub(topic, channel) + commands.rdy(rdy))
        self._client.socket.settimeout(None)

    def run(self) -> None:
        """Read until the connection is closed."""
        with suppress(OSError):
            while True:
                kind, data = self._client.frame()
                if kind == FRAME_MESSAGE and self._finishes:
                    time.sleep(self._pause)
                    self._client.send(commands.fin(decode_message(data).id))

    def close(self) -> None:
        """Disconnect."""
        with suppress(OSError):
            self._client.socket.shutdown(socket.SHUT_RDWR)
        self._client.close()


class Cluster:
    """An nsqlookupd, nsqds and an nsqadmin."""

    def __init__(self, folder: Path, *flags: str, nsqds: int = NSQDS) -> None:
        self._stack = ExitStack()
        self.consumers: list[Consumer] = []
        self._stop = threading.Event()
        try:
            self.lookupd = self._stack.enter_context(spawn_nsqlookupd(folder))
            names = [f"nsqd{number}" for number in range(nsqds)]
            self.nsqds = [
                self._stack.enter_context(spawn_nsqd(folder, lookupds=(self.lookupd,), name=name))
                for name in names
            ]
            home = folder / "nsqadmin"
            home.mkdir()
            lookup = f"--lookupd-http-address={self.lookupd.http}"
            self.admin = AdminServer("sparq.nsqadmin", home, (lookup, *flags))
            start_first(self.admin)
            self._stack.callback(self.admin.close)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all clients and processes."""
        self._stop.set()
        for consumer in self.consumers:
            consumer.close()
        self._stack.close()

    @property
    def url(self) -> str:
        """The URL of nsqadmin."""
        return self.admin.url

    def create(self, topic: str, *channels: str) -> None:
        """Create a topic with channels on every nsqd."""
        for nsqd in self.nsqds:
            nsqd.post(f"/topic/create?topic={topic.replace('#', '%23')}")
            for channel in channels:
                nsqd.post(
                    f"/channel/create?topic={topic.replace('#', '%23')}"
                    f"&channel={channel.replace('#', '%23')}"
                )

    def publish(self, topic: str, *bodies: bytes, node: int = 0) -> None:
        """Publish messages to one nsqd."""
        body = b"".join(len(one).to_bytes(4, "big") + one for one in bodies)
        head = len(bodies).to_bytes(4, "big")
        self.nsqds[node].post(f"/mpub?topic={topic.replace('#', '%23')}&binary=true", head + body)

    def consume(self, topic: str, channel: str, *, node: int = 0, **how: Any) -> Consumer:
        """Connect a consumer."""
        consumer = Consumer(self.nsqds[node], topic, channel, **how)
        self.consumers.append(consumer)
        consumer.start()
        return consumer

    def depth(self, topic: str, channel: str) -> int:
        """The depth of a channel, summed over the running nsqds."""
        running = [nsqd for nsqd in self.nsqds if nsqd.process is not None]
        return sum(nsqd.channel(topic, channel).get("depth", 0) for nsqd in running)

    def start_traffic(self) -> None:
        """Add a shop's topics and start a thread that publishes to them."""
        fill(self)
        threading.Thread(target=self._traffic, daemon=True).start()

    def _traffic(self) -> None:
        number = 0
        while not self._stop.wait(0.1):
            for topic, count in (("orders", 12), ("clicks", 90), ("payments", 4), ("emails", 6)):
                bodies = [order(number + each) for each in range(count)]
                with suppress(OSError):  # this nsqd was killed
                    self.publish(topic, *bodies, node=number % len(self.nsqds))
            number += 1


def order(number: int) -> bytes:
    """A body like those that applications publish."""
    return json.dumps(
        {
            "id": f"A-{100_000 + number}",
            "customer": {"id": str(number % 997), "country": COUNTRIES[number % 4]},
            "items": [{"sku": f"SKU-{number % 61:03}", "count": 1 + number % 3}],
            "total": round(9.5 + number % 400 * 1.37, 2),
        }
    ).encode()


def fill(cluster: Cluster) -> None:
    """Create topics and channels in every state."""
    cluster.create("orders", "billing", "shipping", "archive")
    cluster.create("clicks", "archive", "metrics", "spam")
    cluster.create("payments", "ledger", "fraud")
    cluster.create("emails", "send")
    cluster.create("orders.dead", "redrive")
    cluster.create("inventory", "sync")
    cluster.create("events#ephemeral", "live#ephemeral")
    agent = {"user_agent": "sparq/0.1.0", "hostname": "app-3f9c"}
    for node in range(len(cluster.nsqds)):
        cluster.consume("orders", "billing", node=node, client_id="billing-1", **agent)
        cluster.consume("orders", "archive", node=node, client_id="archive-1", **agent)
        cluster.consume("clicks", "archive", node=node, rdy=200, client_id="archive-1", **agent)
        cluster.consume("clicks", "metrics", node=node, rdy=200, client_id="metrics-1", **agent)
        cluster.consume("payments", "ledger", node=node, client_id="ledger-1", **agent)
        cluster.consume(
            "emails",
            "send",
            node=node,
            rdy=1,
            pause=1.0,
            client_id="mailer",
            hostname="mail-1",
            user_agent="go-nsq/1.1.0",
        )
        cluster.consume(
            "payments",
            "fraud",
            node=node,
            rdy=20,
            finishes=False,
            client_id="fraud-model",
            hostname="gpu-1",
            user_agent="pynsq/0.9.1",
        )
    cluster.publish("orders", *(order(n) for n in range(4000)))
    cluster.publish("inventory", *(order(n) for n in range(300)), node=1)
    cluster.publish("orders.dead", *(order(n) for n in range(23)))
    cluster.nsqds[-1].post("/channel/pause?topic=inventory&channel=sync")


def wait_for_nodes(cluster: Cluster) -> None:
    """Wait until nsqlookupd lists all nsqds."""
    wait_for(lambda: len(cluster.lookupd.get_json("/nodes")["producers"]) == len(cluster.nsqds))
