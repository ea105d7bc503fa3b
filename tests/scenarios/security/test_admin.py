"""W-1, W-2, W-4, W-5, W-6, A-4 of nsqadmin: access, other sites, headers, hosts, own requests."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sparq.nsqadmin.access import SECURE_HEADERS, AdminRoute
from sparq.nsqadmin.server import routes
from tests.nsqadmin.access.cluster import Cluster, cluster
from tests.scenarios.security.walk import body, cases, guarded, target, writes
from tests.support.lookup_peer import LookupPeer

JSON = {"Content-Type": "application/json"}


def served(daemons: Cluster) -> list[AdminRoute]:
    """The server's routes."""
    return routes(daemons.admin.services)


def changing(daemons: Cluster) -> list[AdminRoute]:
    """The routes that change the cluster: signing in and out does not."""
    return [route for route in served(daemons) if writes(route) and "/sign" not in route.path]


def own_address() -> str:
    """Return a non-loopback address of this machine; empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        address = str(probe.getsockname()[0])
    return "" if address.startswith("127.") else address


async def test_requests_without_the_right_change_nothing(
    tmp_path: Path,
) -> None:
    """Every route refuses every kind of invalid access with 401 or 403, and nothing changes."""
    options, keys = guarded(tmp_path)
    async with cluster(tmp_path, **options) as running:
        before = running.state()
        for case in cases(keys):
            for route in served(running):
                if not case.is_refused(route):
                    continue
                where = target(route, running.node)
                status = await running.ask(route.method, where, case.headers, body(route))
                assert status in (401, 403), (case.name, route.method, route.path, status)
            assert before == running.state(), case.name


async def test_with_the_right_it_is_done(tmp_path: Path) -> None:
    """With the right, the same requests succeed: the test above could have failed."""
    options, keys = guarded(tmp_path)
    async with cluster(tmp_path, **options) as running:
        headers = {
            "Authorization": f"Bearer {keys.administrator}",
            "Content-Type": "application/json",
        }
        for route in served(running):
            await running.reset()
            before = running.state()
            where = target(route, running.node)
            status = await running.ask(route.method, where, headers, body(route))
            is_sign_in = route.path == "/signin" and writes(route)
            assert (status in (401, 403)) is is_sign_in, (route.method, route.path, status)
            is_nsqs = route.path.startswith(("/api/", "/config/")) and "/v2/" not in route.path
            if writes(route) and (is_nsqs or route.path.endswith("/policies")):
                assert 200 == status, (route.method, route.path, status)
                assert before != running.state(), (route.method, route.path)


UNCONFIGURED = (
    {"X-Forwarded-For": "192.0.2.7"},
    {"X-Forwarded-User": "root"},
    {"X-Real-IP": "127.0.0.1"},
    {"Forwarded": "for=127.0.0.1"},
    {"Via": "1.1 proxy"},
)


async def test_unconfigured_nsqadmin_refuses_changes_from_other_machines(tmp_path: Path) -> None:
    """Without options, requests from a proxy or another address cannot change anything: 403."""
    async with cluster(tmp_path, http_address="0.0.0.0:0") as daemons:
        before = daemons.state()
        for route in changing(daemons):
            for headers in UNCONFIGURED:
                where = target(route, daemons.node)
                sent = {**JSON, **headers}
                status = await daemons.ask(route.method, where, sent, body(route))
                assert 403 == status, (route.path, headers)
            if address := own_address():
                where = target(route, daemons.node)
                status = await daemons.ask(route.method, where, JSON, body(route), host=address)
                assert 403 == status, route.path
        assert before == daemons.state()


async def test_no_route_permits_cross_origin_requests(tmp_path: Path) -> None:
    """No route answers a CORS preflight request with permission."""
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "hx-request"}
    async with cluster(tmp_path) as daemons:
        for route in served(daemons):
            where = target(route, daemons.node)
            for origin in ({"Origin": "http://evil.example"}, {}):
                _, head = await daemons.head("OPTIONS", where, {**asks, **origin})
                assert not [name for name in head if name.startswith("access-control-")], where


ODD = [
    *(
        "/nowhere",
        "/PING",
        "/api/topics/",
        "/api//topics",
        "/api/topics/unknown",
        "/config/nothing",
    ),
    *("/api/nodes/unknown:1", "/api/graphite", "/a" * 2000, "/%ff", "/%00", "/<script>"),
    *("/static", "/static/", "/static/..", "/static/../../pyproject.toml"),
    *("/static/..%2f..%2f..%2fetc%2fpasswd", "/static/%2e%2e/%2e%2e/etc/passwd"),
    *("/static//etc/passwd", "/static/..\\..\\etc\\passwd", "/static/%00", "/static/.hidden"),
]


async def test_every_response_has_the_security_headers(tmp_path: Path) -> None:
    """Every response has the security headers, also redirects, refusals and errors.

    No path outside the table of static files returns a file.
    """
    async with cluster(tmp_path) as daemons:
        asked = [(route.method, target(route, daemons.node)) for route in served(daemons)]
        asked += [(method, path) for path in ODD for method in ("GET", "PATCH")]
        for method, path in asked:
            for headers in ({"Host": "evil.example"}, {"Accept": "text/html"}):
                status, head = await daemons.head(method, path, headers)
                assert "content-security-policy" in head, (method, path, headers, status)
                assert SECURE_HEADERS["Content-Security-Policy"] == head["content-security-policy"]
                assert "frame-ancestors 'none'" in head["content-security-policy"]
                assert "nosniff" == head["x-content-type-options"]
                assert "no-referrer" == head["referrer-policy"]
                assert status != 200 or path not in ODD, (method, path)
                assert status < 500 or "/api/" in path, (method, path)


@asynccontextmanager
async def canary(host: str) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a server that must not be called; yield its port and everything that was sent to it."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(talk, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


ELSEWHERE = [
    *("127.0.0.2", "::ffff:127.0.0.2", "0.0.0.0", "::", "169.254.169.254", "[::1]", "::1"),
    *("2130706434", "0x7f000002", "127.0.2", "127.0.0.1@127.0.0.2", "127.0.0.2/x", "127.0.0.2#"),
    *("127.0.0.2\n", " 127.0.0.2", "127.0.0.2\0", "http://127.0.0.2", "//127.0.0.2", "127.0.0.2:1"),
]
"""Broadcast addresses that an nsqd may claim; the server that must not be called is 127.0.0.2."""

QUESTIONS = (
    ("GET", "/api/topics?inactive=true", b""),
    ("GET", "/api/topics/bait", b""),
    ("GET", "/api/topics/bait/c", b""),
    ("GET", "/api/nodes", b""),
    ("GET", "/api/counter", b""),
    ("GET", "/metrics", b""),
    ("POST", "/api/topics/bait", b'{"action":"pause"}'),
    ("POST", "/api/topics/bait/c", b'{"action":"empty"}'),
    ("DELETE", "/api/topics/bait", b""),
)


async def test_nsqadmin_calls_no_address_that_a_peer_claims(tmp_path: Path) -> None:
    """nsqadmin sends no request to an address that a registered nsqd falsely claims."""
    async with (
        canary("127.0.0.2") as (port, heard),
        cluster(tmp_path, allowed_nodes=("127.0.0.1",)) as daemons,
    ):
        for fake in ELSEWHERE:
            with LookupPeer(daemons.lookupd) as peer:
                await asyncio.to_thread(peer.identify, fake, 4150, port)
                await asyncio.to_thread(peer.ask, b"REGISTER bait c\n")
                for method, path, order in QUESTIONS:
                    await daemons.ask(method, path, JSON, order)
                await daemons.admin.services.watch.fresh()
        assert 200 == await daemons.ask("GET", "/api/topics/t", {})
        assert [] == heard


async def test_nsqadmin_calls_no_node_that_only_a_url_names(tmp_path: Path) -> None:
    """nsqadmin sends no request to a host that only a URL names, unlike NSQ's for tombstones."""
    async with canary("127.0.0.1") as (port, heard), cluster(tmp_path) as daemons:
        node = f"127.0.0.1:{port}"
        for route in served(daemons):
            await daemons.ask(route.method, target(route, node), JSON, body(route))
        await daemons.reset()
        tombstone = json.dumps({"topic": "t"}).encode()
        for name in (node, f"localhost:{port}", f"{daemons.node}@127.0.0.1:{port}"):
            assert 404 == await daemons.ask("DELETE", f"/api/nodes/{name}", JSON, tombstone)
            assert 404 == await daemons.ask("GET", f"/api/nodes/{name}", {})
        assert [] == heard


async def test_nsqadmin_follows_no_redirect(tmp_path: Path) -> None:
    """nsqadmin follows no redirect of a node, so that a node cannot make it call another host."""
    async with canary("127.0.0.1") as (port, heard):

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            place = f"Location: http://127.0.0.1:{port}/stats\r\nContent-Length: 0\r\n\r\n"
            writer.write(f"HTTP/1.1 302 Found\r\n{place}".encode())
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        own_port = server.sockets[0].getsockname()[1]
        async with server, cluster(tmp_path) as daemons:
            with LookupPeer(daemons.lookupd) as peer:
                await asyncio.to_thread(peer.identify, "127.0.0.1", 4150, own_port)
                await asyncio.to_thread(peer.ask, b"REGISTER bait c\n")
                for method, path, order in QUESTIONS:
                    await daemons.ask(method, path, JSON, order)
                await daemons.admin.services.watch.fresh()
        assert [] == heard
