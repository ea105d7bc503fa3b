"""Restarts and HTTP at a unix socket, and IPv6 addresses."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from sparq.protocol.commands import pub
from tests.nsqd.daemon import start, stop
from tests.support.v2_client import ASYNC_SECONDS, AsyncV2Client


async def test_http_works_on_a_unix_socket(tmp_path: Path) -> None:
    """HTTP works on a unix socket, and /info shows http_port -1."""
    place = tmp_path / "h"
    daemon = await start(tmp_path, http_address=str(place))
    reader, writer = await asyncio.open_unix_connection(str(place))
    writer.write(b"GET /info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(ASYNC_SECONDS):
        answer = await reader.read()
    writer.close()
    await stop(daemon)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert -1 == json.loads(answer.partition(b"\r\n\r\n")[2])["http_port"]
    assert not place.exists()


async def test_tcp_and_http_work_on_ipv6(tmp_path: Path) -> None:
    """TCP and HTTP work on [::1]; the peer's address is shown in brackets."""
    daemon = await start(tmp_path, tcp_address="[::1]:0", http_address="[::1]:0")
    client = await AsyncV2Client.connect(daemon.listeners.tcp.text)
    client.send(pub("t", b"x"))
    assert b"OK" == await client.response()
    reader, http = await asyncio.open_connection("::1", daemon.nsqd.http_port)
    http.write(b"GET /stats?format=json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(ASYNC_SECONDS):
        answer = await reader.read()
    http.close()
    await client.close()
    await stop(daemon)

    (producer,) = json.loads(answer.partition(b"\r\n\r\n")[2])["producers"]
    assert producer["remote_address"].startswith("[::1]:")
    assert "::1" == producer["client_id"]


async def test_a_default_host_serves_both_ip_families(tmp_path: Path) -> None:
    """With NSQ's default host 0.0.0.0, clients connect over IPv4 and IPv6, as with Go's nsqd.

    An IPv4 client is shown with its IPv4 address, and so is whoever changes something over HTTP.
    """
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    daemon = await start(tmp_path, tcp_address="0.0.0.0:0", http_address="0.0.0.0:0")
    clients = [
        await AsyncV2Client.connect(f"{host}:{daemon.nsqd.tcp_port}")
        for host in ("127.0.0.1", "[::1]")
    ]
    for client in clients:
        client.send(pub("t", b"x"))
        assert b"OK" == await client.response()
    status, answer = await daemon.ask("POST", "/drain")
    assert 200 == status
    _, stats = await daemon.ask("GET", "/stats?format=json")
    for client in clients:
        await client.close()
    await stop(daemon)

    assert {"127.0.0.1", "::1"} == {one["client_id"] for one in json.loads(stats)["producers"]}
    assert "127.0.0.1" == json.loads(answer)["by"]
