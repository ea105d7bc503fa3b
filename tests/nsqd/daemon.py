"""An nsqd in the test process, with a real broker, disk and sockets, and a V2 client for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sparq.daemon.address import Listener
from sparq.daemon.http import Site
from sparq.nsqd import tls
from sparq.nsqd.http import start_http
from sparq.nsqd.lookup_peers import LookupPeers
from sparq.nsqd.main import Listeners, listen
from sparq.nsqd.open_files import CachingDisk
from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.nsqd.serving import open_broker
from sparq.nsqd.tcp import TcpConnection
from sparq.protocol.commands import fin, identify, rdy
from tests.support.open_files import files_closed_below
from tests.support.options import changed
from tests.support.v2_client import FRAME_MESSAGE, OK, AsyncV2Client, decode_message


@dataclass(eq=False)
class Daemon:
    """A running nsqd."""

    nsqd: Nsqd
    http: Listener
    site: Site
    listeners: Listeners
    peers: LookupPeers
    reloader: Reloader

    @property
    def tcp(self) -> str:
        """The address of the V2 listener: `host:port`, or the path of a Unix socket."""
        listener = self.listeners.tcp
        return f"127.0.0.1:{listener.port}" if listener.port > 0 else listener.text

    async def raw(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Send a request as raw, unchecked text; return status, headers and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        writer.write(f"{head}\r\nHost: x\r\nConnection: close\r\n".encode() + body)
        async with asyncio.timeout(20):
            answer_head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *lines = answer_head.decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), headers, answer

    async def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        length = f"Content-Length: {len(body)}\r\n\r\n".encode()
        status, _, answer = await self.raw(f"{method} {target} HTTP/1.1", length + body)
        return status, answer

    async def post(self, target: str, body: bytes = b"") -> bytes:
        status, answer = await self.ask("POST", target, body)
        assert status == 200, (target, status, answer)
        return answer

    async def stats(self, query: str = "") -> dict[str, Any]:
        status, answer = await self.ask("GET", f"/stats?format=json&{query}")
        assert status == 200
        found: dict[str, Any] = json.loads(answer)
        return found

    async def topic(self, name: str) -> dict[str, Any]:
        (topic,) = (await self.stats(f"topic={name}"))["topics"]
        return dict(topic)

    async def channel(self, topic: str, name: str) -> dict[str, Any]:
        (found,) = (await self.topic(topic))["channels"]
        assert found["channel_name"] == name
        return dict(found)


running: list[Daemon] = []
"""All running daemons: a fixture stops those that a failed test has left behind."""


async def start(folder: Path, **changes: Any) -> Daemon:
    """Start an nsqd, by default on free loopback ports; `changes` override the options."""
    free = "127.0.0.1:0"
    own = {"tcp_address": free, "http_address": free, "https_address": free}
    own |= {"data_path": str(folder), "broadcast_address": "here"}
    options = changed(NsqdOptions(), **{**own, **changes})
    certificates = tls.build(options)
    listeners = listen(options, has_tls=certificates is not None)
    nsqd = Nsqd(options, open_broker(options, CachingDisk(), folder), asyncio.get_running_loop())
    nsqd.tls = certificates
    nsqd.tcp_port, nsqd.http_port, nsqd.https_port = (
        -1 if listener is None else listener.port for listener in listeners
    )
    await listeners.tcp.serve(lambda: TcpConnection(nsqd))
    nsqd.turns.tick()
    peers = LookupPeers(nsqd)
    reloader = Reloader(nsqd, peers, lambda: options)
    site = await start_http(nsqd, reloader, listeners)
    await peers.start()
    assert listeners.http is not None
    daemon = Daemon(nsqd, listeners.http, site, listeners, peers, reloader)
    running.append(daemon)
    return daemon


async def stop(daemon: Daemon) -> None:
    running.remove(daemon)
    with files_closed_below(Path(daemon.nsqd.options.data_path)):
        for listener in daemon.listeners:
            if listener is not None:
                listener.close()
        await daemon.nsqd.stop()
        await daemon.peers.stop()
        await daemon.site.stop()
        if daemon.nsqd.access is not None:
            await daemon.nsqd.access.close()


@asynccontextmanager
async def connected(daemon: Daemon) -> AsyncIterator[AsyncV2Client]:
    """Connect and send the V2 magic bytes; the connection is aborted at the end."""
    client = await AsyncV2Client.connect(daemon.tcp)
    try:
        yield client
    finally:
        client.abort()


class Consumer(AsyncV2Client):
    """A V2 connection with a fixed client identity, for tests that do not depend on it."""

    @classmethod
    async def identified(cls, daemon: Daemon, *commands: bytes) -> Self:
        """Connect, identify and send the commands; each must be answered by OK."""
        consumer = await cls.connect(daemon.tcp)
        body = json.dumps({"client_id": "me", "hostname": "h", "user_agent": "test/1"}).encode()
        for command in (identify(body), *commands):
            assert await consumer.ask(command) == OK
        return consumer

    async def messages(self, count: int, *, finish: bool = True) -> list[bytes]:
        """Receive `count` messages, finish them unless `finish` is false; return their bodies."""
        self.send(rdy(count))
        bodies = []
        for _ in range(count):
            kind, data = await self.frame()
            assert kind == FRAME_MESSAGE
            message = decode_message(data)
            bodies.append(message.body)
            if finish:
                self.send(fin(message.id))
        self.send(rdy(0))
        return bodies
