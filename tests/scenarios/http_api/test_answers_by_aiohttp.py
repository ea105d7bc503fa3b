"""Responses that aiohttp makes itself have the site's headers, and name no software versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from sparq.daemon.address import Listener, listen
from sparq.daemon.http import LINE_BYTES_MAX, Route, Site
from sparq.nsqadmin.access import SECURE_HEADERS
from tests.daemon.exchange import Answer, exchange
from tests.nsqadmin.access.cluster import cluster

HOST = b"Host: x\r\n"
NO_HTTP = {
    "no request line": b"nonsense\r\n\r\n",
    "method with a character that no method has": b"G@T /ping HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown method": b"FOO /ping HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown version": b"GET /ping HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    "target that is not a URL": b"GET http://[ HTTP/1.1\r\n" + HOST + b"\r\n",
    "no Host": b"GET /ping HTTP/1.1\r\n\r\n",
    "header without a colon": b"GET /ping HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n",
    "header too large": b"GET /ping HTTP/1.1\r\nA: %b\r\n\r\n" % (b"x" * (LINE_BYTES_MAX + 1)),
    "too many headers": b"GET /ping HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 200 + b"\r\n",
    "target too long": b"GET /%b HTTP/1.1\r\n\r\n" % (b"x" * (LINE_BYTES_MAX + 1)),
    "two lengths": b"POST /ping HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n" * 2 + b"\r\n",
    "second request": b"GET /ping HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n",
}


def gate(request: web.BaseRequest) -> web.Response | None:
    if request.path == "/broken":
        raise RuntimeError("bug")
    if request.path == "/late":
        raise TimeoutError
    return web.Response(status=403) if request.path == "/shut" else None


ROUTES = [
    Route("GET", "/ping", lambda _call: "OK", plain=True),
    Route("GET", "/own", lambda _call: web.Response(text="made by the handler")),
]


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """A site with an extra header, and a gate that raises an exception on some paths."""
    site, listener = Site(ROUTES, gate, headers={"X-Own": "1"}), listen("127.0.0.1:0")
    await site.start(listener)
    yield listener
    listener.close()
    await site.stop()


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("GET /ping", 200),
        ("GET /own", 200),
        ("GET /nope", 404),
        ("DELETE /ping", 405),
        ("OPTIONS /ping", 200),
        ("GET /ping/", 301),
        ("GET /shut", 403),
    ],
)
async def test_every_response_has_the_sites_headers(
    listener: Listener, asked: str, status: int
) -> None:
    """Every response has the same Server header, whether a handler, the gate or aiohttp made it."""
    raw = f"{asked} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    answer = Answer(await exchange(listener, raw))

    assert (status, "sparq", "1") == (
        answer.status,
        answer.headers["server"],
        answer.headers["x-own"],
    )


async def raw_answer(port: int, raw: bytes) -> bytes:
    """Send bytes to a port and return everything that the daemon answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    answer = b""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(65_536):
                answer += piece
    writer.close()
    return answer


async def test_error_responses_name_no_software_versions(tmp_path: Path) -> None:
    """No daemon's error response names Python or aiohttp; nsqadmin's have all security headers."""
    async with cluster(tmp_path) as daemons:
        ports = (daemons.nsqd.http.port, daemons.lookupd.http_port, daemons.admin.http_port)
        for port in ports:
            for kind, raw in NO_HTTP.items():
                answer = await raw_answer(port, raw)
                assert b" 400 Bad Request\r\n" in answer, kind
                assert b"\r\nServer: sparq\r\n" in answer, kind
                assert b"python" not in answer.lower(), kind
                assert b"aiohttp" not in answer.lower(), kind
                headers = Answer(answer).headers if port == ports[-1] else {}
                for name, value in SECURE_HEADERS.items() if headers else ():
                    assert value == headers[name.lower()], (kind, name)
