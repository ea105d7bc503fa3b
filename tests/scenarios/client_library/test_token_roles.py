"""Clients and `sparq admin` with tokens from a token file: what each role allows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from sparq.client import Consumer, Producer, RemoteError
from sparq.daemon.access import tokens
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd

ROLES = {
    "nsqds": "register",
    "web": "publish:clicks*",
    "worker": "consume:clicks*",
    "ops": "administer,bodies",
    "viewer": "read",
}


class Cluster(NamedTuple):
    """An nsqd and an nsqlookupd with one token file; the tokens by name."""

    nsqd: NsqdServer
    lookupd: Server
    shown: dict[str, str]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run both daemons; both require tokens."""
    made = {name: tokens.make(name, roles) for name, roles in ROLES.items()}
    shown = {name: token for name, (token, _) in made.items()}
    file = tmp_path / "tokens"
    file.write_text("\n".join(line for _, line in made.values()))
    guarded = f"--token-file={file}"
    with spawn_nsqlookupd(tmp_path, guarded, "--require-token") as lookupd:
        address = f"--lookupd-tcp-address={lookupd.tcp}"
        token = f"--lookupd-token={shown['nsqds']}"
        flags = (guarded, address, token, "--broadcast-address=127.0.0.1")
        with spawn_nsqd(tmp_path, *flags) as nsqd:
            yield Cluster(nsqd, lookupd, shown)


@asynccontextmanager
async def producer_with_token(cluster: Cluster, name: str) -> AsyncIterator[Producer]:
    """A producer that authenticates with a token."""
    secret = cluster.shown[name]
    options = {"auth_secret": secret, "auth_without_tls": True}
    async with Producer([cluster.nsqd.tcp], **options) as producer:
        yield producer


async def test_auth_secret_can_be_a_token(cluster: Cluster) -> None:
    """`auth_secret` is the token for nsqd and, by `lookupd_authorization`, for nsqlookupd."""
    async with producer_with_token(cluster, "web") as producer:
        await producer.publish("clicks", b"1")
        with pytest.raises(RemoteError, match="E_UNAUTHORIZED"):
            await producer.publish("orders", b"1")
    found: list[bytes] = []
    async with Consumer(
        "clicks",
        "c",
        lookupd_http_addresses=cluster.lookupd.http,
        lookupd_poll_interval=0.2,
        auth_secret=cluster.shown["worker"],
        auth_without_tls=True,
    ) as consumer:
        async with asyncio.timeout(30):
            async for message in consumer:
                found.append(message.body)
                await message.finish()
                break
    assert [b"1"] == found


def admin(cluster: Cluster, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `sparq admin` with a token."""
    address = f"--lookupd-http-address={cluster.lookupd.http}"
    command = [sys.executable, "-m", "sparq.cli", "admin", *words]
    command += [address, f"--token={cluster.shown[name]}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


async def test_sparq_admin_authenticates_with_its_token(cluster: Cluster) -> None:
    """`sparq admin pause` works with the role administer, fails with read, and prints no token."""
    async with producer_with_token(cluster, "web") as producer:
        await producer.publish("clicks", b"1")
    for name, status in (("viewer", 1), ("ops", 0)):
        ran = await asyncio.to_thread(admin, cluster, name, "pause", "clicks")
        assert status == ran.returncode, (name, ran.stderr)
        assert cluster.shown[name] not in ran.stderr + ran.stdout
