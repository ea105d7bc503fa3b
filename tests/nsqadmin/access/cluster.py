"""A real nsqadmin in front of a real nsqd and nsqlookupd, and all that requests could change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparq.nsqadmin.options import Options
from sparq.nsqadmin.server import Nsqadmin
from sparq.protocol.frames import Bodies
from tests.nsqd.daemon import Daemon, start, stop


@dataclass
class Cluster:
    """One nsqadmin with one nsqd, which has a topic `t` with two messages and a channel `c`."""

    admin: Nsqadmin
    nsqd: Daemon

    @property
    def node(self) -> str:
        """The nsqd as nsqadmin knows it."""
        return f"127.0.0.1:{self.nsqd.http.port}"

    @property
    def url(self) -> str:
        """Where nsqadmin answers."""
        return f"http://127.0.0.1:{self.admin.http_port}"

    def state(self) -> str:
        """All that a request could change, as text."""
        topics = []
        for name, topic in sorted(self.nsqd.nsqd.broker.topics.items()):
            channels = [(c.name, c.cursor, c.paused) for c in topic.channels.values()]
            topics.append((name, topic.message_count, topic.stream.end, topic.paused, channels))
        return repr((topics, self.nsqd.nsqd.options, self.admin.desk.options))

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> int:
        """One request, as it is; its status. Only the head of the answer is waited for."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin.http_port)
        sent = {"Host": f"127.0.0.1:{self.admin.http_port}", **headers}
        lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {text}" for key, text in sent.items())]
        lines += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        async with asyncio.timeout(30):
            head = await reader.readline()
        writer.close()
        return int(head.split()[1])


@asynccontextmanager
async def cluster(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    """Start both; the options are nsqadmin's."""
    nsqd = await start(folder / "nsqd")
    try:
        broker, runner = nsqd.nsqd.broker, nsqd.nsqd.runner
        broker.create_topic("t", runner.now())
        broker.create_channel("t", "c", runner.now())
        await nsqd.nsqd.publish("t", Bodies.of([b"1", b"2"]))
        await nsqd.nsqd.settle()
        given = {
            "http_address": "127.0.0.1:0",
            "nsqd_http_addresses": (f"127.0.0.1:{nsqd.http.port}",),
            **options,
        }
        admin = Nsqadmin(Options(**given))
        await admin.start()
        try:
            yield Cluster(admin, nsqd)
        finally:
            await admin.stop()
    finally:
        await stop(nsqd)
