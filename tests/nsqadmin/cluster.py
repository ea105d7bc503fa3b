"""A cluster of two nsqlookupds and two nsqds, sparq's or Go's, and nsqadmins for it."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin
from sparq.protocol.commands import identify, sub
from tests.support.servers import (
    GoServer,
    NsqdServer,
    Server,
    spawn_nsqd,
    spawn_nsqlookupd,
    start_first,
)
from tests.support.v2_client import OK, AsyncV2Client
from tests.support.waiting import wait_for

GO = {"nsqd": "NSQD_GO", "nsqlookupd": "NSQLOOKUPD_GO"}


def go_server(name: str, folder: Path, flags: tuple[str, ...]) -> GoServer:
    """Prepare a Go daemon, not started yet; an environment variable has the program's path."""
    folder.mkdir(parents=True)
    return GoServer(os.environ[GO[name]], folder, flags)


@dataclass
class Cluster:
    """The daemons of a cluster, shared by tests that use different topics."""

    lookupds: tuple[Server, Server]
    nsqds: tuple[NsqdServer, NsqdServer]
    is_sparqs: bool

    def modes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The nsqadmin options for both ways to find nodes: nsqlookupds or a list of nsqds."""
        return {
            "lookupd": {"lookupd_http_addresses": tuple(s.http for s in self.lookupds)},
            "nsqd": {"nsqd_http_addresses": tuple(s.http for s in self.nsqds)},
        }

    def fill(self, topic: str, channel: str = "c", messages: int = 2) -> None:
        """Create a topic anew, with channel and messages, at both nodes and nsqlookupds."""
        for server in (*self.nsqds, *self.lookupds):
            server.request("POST", f"/topic/delete?topic={topic}")
        for nsqd in self.nsqds:
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
            if messages:
                nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"message"] * messages))
        wait_for(lambda: all(self._knows(lookupd, topic, channel) for lookupd in self.lookupds))
        wait_for(lambda: all(n.channel(topic, channel)["depth"] == messages for n in self.nsqds))

    def create_without_channel(self, topic: str) -> None:
        """Create a topic without a channel at both nodes, and wait for both nsqlookupds."""
        for nsqd in self.nsqds:
            nsqd.post(f"/topic/create?topic={topic}")
        wait_for(lambda: all(self._knows(lookupd, topic) for lookupd in self.lookupds))

    def _knows(self, lookupd: Server, topic: str, *channels: str) -> bool:
        status, body = lookupd.request("GET", f"/lookup?topic={topic}")
        found = json.loads(body)
        is_at_both = status == 200 and len(found["producers"]) == 2
        return is_at_both and set(channels) <= set(found["channels"])


@contextmanager
def cluster_of(folder: Path, *, is_sparqs: bool) -> Iterator[Cluster]:
    """Start two nsqlookupds and two nsqds."""
    servers: list[Any] = []
    try:
        for name in ("one", "two"):
            if is_sparqs:
                servers.append(spawn_nsqlookupd(folder, name=name))
            else:
                servers.append(go_server("nsqlookupd", folder / name, ()))
                start_first(servers[-1])
        lookupds = tuple(servers)
        for name in ("first", "second"):
            if is_sparqs:
                flags = ("--e2e-processing-latency-percentile=0.99", "--mem-queue-size=1")
                servers.append(spawn_nsqd(folder, *flags, lookupds=lookupds, name=name))
            else:
                places = [f"--lookupd-tcp-address={lookupd.tcp}" for lookupd in lookupds]
                flags = (f"--data-path={folder / name}", "--broadcast-address=127.0.0.1", *places)
                servers.append(go_server("nsqd", folder / name, flags))
                start_first(servers[-1])
        yield Cluster((servers[0], servers[1]), (servers[2], servers[3]), is_sparqs)
    finally:
        for server in reversed(servers):
            server.close()


@dataclass
class Admin:
    """An nsqadmin and an HTTP client for it."""

    daemon: Nsqadmin
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.daemon.http_port}"

    async def raw(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        sent = body if body is None else io.BytesIO(body)
        async with self.session.request(
            method,
            URL(self.url + path, encoded=True),
            data=sent,
            headers=headers,
            allow_redirects=False,
        ) as response:
            return response.status, response.headers, await response.read()

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request, with a body other than bytes as JSON; return status and document."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if sent is not None else {}
        status, answer_headers, answer = await self.raw(
            method, path, sent, {**kind, **(headers or {})}
        )
        is_json = answer_headers.get("Content-Type", "").startswith("application/json")
        return status, json.loads(answer) if is_json else answer.decode()

    async def done(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request that must succeed without a warning; return the document."""
        status, document = await self.ask(method, path, body)
        assert (200, "") == (status, document["message"]), document
        return document

    def audited(self) -> list[dict[str, Any]]:
        """The entries of the audit log, oldest first."""
        return [json.loads(line) for _, line in self.daemon.services.audit._remembered]


@asynccontextmanager
async def admin(**options: Any) -> AsyncIterator[Admin]:
    """Start an nsqadmin on a free loopback port."""
    daemon = Nsqadmin(NsqadminOptions(**{"http_address": "127.0.0.1:0", **options}))
    await daemon.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Admin(daemon, session)
    finally:
        await daemon.stop()


@asynccontextmanager
async def consumer(nsqd: Server, topic: str, channel: str) -> AsyncIterator[None]:
    """Subscribe a client that receives nothing: its RDY is 0."""
    client = await AsyncV2Client.connect(nsqd.tcp)
    facts = {"client_id": "me", "hostname": "here", "user_agent": "test/1"}
    try:
        for command in (identify(json.dumps(facts).encode()), sub(topic, channel)):
            assert await client.ask(command) == OK
        yield
    finally:
        await client.close()


def free_address() -> str:
    """An address on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
