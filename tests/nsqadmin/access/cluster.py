"""A real nsqadmin, nsqd and nsqlookupd, and a dump of all state that a request could change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparq.broker.draining import NONE
from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import instant
from sparq.protocol.frames import BodySlices
from tests.nsqd.daemon import Daemon, start, stop
from tests.support.waiting import until


@dataclass
class Cluster:
    """One nsqadmin, one nsqlookupd, and one nsqd that is registered there."""

    admin: Nsqadmin
    nsqd: Daemon
    lookupd: Nsqlookupd

    @property
    def node(self) -> str:
        """The address by which nsqadmin knows the nsqd."""
        return f"127.0.0.1:{self.nsqd.http.port}"

    @property
    def url(self) -> str:
        """The base URL of nsqadmin."""
        return f"http://127.0.0.1:{self.admin.http_port}"

    async def reset(self) -> None:
        """Provide a topic `t` with messages and a channel `c`, not paused, and end drains."""
        await self.nsqd.nsqd.change_drains(lambda _now: NONE)
        broker = self.nsqd.nsqd.broker
        broker.create_topic("t", instant())
        broker.create_channel("t", "c", instant())
        await self.nsqd.nsqd.publish("t", BodySlices.of([b"1", b"2"]))
        await self.nsqd.nsqd.turns.wait_until_durable()
        await self.nsqd.post("/topic/unpause?topic=t")
        await until(lambda: self._is_registered() and self.lookupd.registry.channels("t") == ["c"])

    def _is_registered(self) -> bool:
        return len(self.lookupd.registry.producers("t", instant())) == 1

    def state(self) -> str:
        """All state that a request could change, as text."""
        topics = []
        for name, topic in sorted(self.nsqd.nsqd.broker.topics.items()):
            channels = [(c.name, c.cursor, c.paused) for c in topic.channels.values()]
            topics.append((name, topic.counts.message_count, topic.paused, channels))
        known = [
            (name, self.lookupd.registry.channels(name)) for name in self.lookupd.registry.topics()
        ]
        policies = self.nsqd.nsqd.broker.policies.chosen
        drains = self.nsqd.nsqd.broker.drains.now
        facts = (topics, known, policies, drains)
        return repr((*facts, self.nsqd.nsqd.options, self.admin.services.options))

    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        host: str = "127.0.0.1",
    ) -> int:
        """Send a request unchanged; return its status once the answer's head has arrived."""
        return (await self.head(method, target, headers, body, host))[0]

    async def head(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        host: str = "127.0.0.1",
    ) -> tuple[int, dict[str, str]]:
        """Send a request; return the status and the headers, with names in lower case."""
        reader, writer = await asyncio.open_connection(host, self.admin.http_port)
        sent = {"Host": f"{host}:{self.admin.http_port}", **headers}
        lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {text}" for key, text in sent.items())]
        lines += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        async with asyncio.timeout(30):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        writer.close()
        answered = (line.partition(": ") for line in lines if line)
        return int(first.split()[1]), {name.lower(): text for name, _, text in answered}


@asynccontextmanager
async def cluster(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    """Start all three daemons; the options are nsqadmin's."""
    async with AsyncExitStack() as stack:
        free = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        lookupd = Nsqlookupd(NsqlookupdOptions(broadcast_address="127.0.0.1", **free))
        await lookupd.start()
        stack.push_async_callback(lookupd.stop)
        addresses = (f"127.0.0.1:{lookupd.tcp_port}",)
        nsqd = await start(
            folder / "nsqd", broadcast_address="127.0.0.1", nsqlookupd_tcp_addresses=addresses
        )
        stack.push_async_callback(stop, nsqd)
        given = {
            "http_address": "127.0.0.1:0",
            "lookupd_http_addresses": (f"127.0.0.1:{lookupd.http_port}",),
            **options,
        }
        admin = Nsqadmin(NsqadminOptions(**given))
        await admin.start()
        stack.push_async_callback(admin.stop)
        found = Cluster(admin, nsqd, lookupd)
        await found.reset()
        yield found
