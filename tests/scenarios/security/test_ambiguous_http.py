"""W-7: requests that two HTTP parsers could read differently are refused by every daemon.

A proxy and a daemon that disagree about the end of a request disagree about the next one: a client
could hide a request from the proxy (request smuggling). Each request here is followed by another
one on the same connection, which a daemon must not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.nsqadmin.access.cluster import Cluster, cluster

SECONDS = 20.0
LENGTH = b"Content-Length: 1"
CHUNKED = b"Transfer-Encoding: chunked"
JSON = b"Content-Type: application/json"
EMPTY = b"0\r\n\r\n"


def request(*headers: bytes, body: bytes = b"x") -> bytes:
    """Encode a POST whose target and host are filled in later."""
    lines = [b"POST TARGET HTTP/1.1", b"Host: ADDRESS", *headers, JSON, b"", body]
    return b"\r\n".join(lines)


def chunked(body: bytes) -> bytes:
    """Encode a POST with this chunked body."""
    return request(CHUNKED, body=body)


CLEAR = {
    "with a length": request(LENGTH),
    "chunked": chunked(b"1\r\nx\r\n" + EMPTY),
}
AMBIGUOUS = {
    "two equal lengths": request(LENGTH, LENGTH),
    "two different lengths": request(LENGTH, b"Content-Length: 5"),
    "a list of lengths": request(b"Content-Length: 1, 1"),
    "a length and chunked": request(b"Content-Length: 5", CHUNKED, body=EMPTY),
    "chunked and a length": request(CHUNKED, b"Content-Length: 5", body=EMPTY),
    "chunked twice": request(CHUNKED, CHUNKED, body=EMPTY),
    "chunked, then another encoding": request(CHUNKED + b", gzip", body=EMPTY),
    "an unknown encoding": request(b"Transfer-Encoding: xchunked", body=EMPTY),
    "the encoding identity": request(b"Transfer-Encoding: identity", body=EMPTY),
    "a control character before chunked": request(b"Transfer-Encoding: \x0bchunked", body=EMPTY),
    "a space before a length's colon": request(b"Content-Length : 1"),
    "a space before an encoding's colon": request(b"Transfer-Encoding : chunked", body=EMPTY),
    "a length with a plus": request(b"Content-Length: +1"),
    "a negative length": request(b"Content-Length: -1"),
    "a hexadecimal length": request(b"Content-Length: 0x1"),
    "a length with an underscore": request(b"Content-Length: 1_0", body=b"x" * 10),
    "a length in other digits": request("Content-Length: \u0663".encode(), body=b"xxx"),
    "an empty length": request(b"Content-Length:"),
    "a folded header": request(b"A: b", b" c", LENGTH),
    "a folded first header": request(b" A: b", LENGTH),
    "CR in a header": request(b"A: b\rc", LENGTH),
    "NUL in a header": request(b"A: b\0c", LENGTH),
    "LF in a header": request(b"A: b\nC: d", LENGTH),
    "lines that end with LF": request(LENGTH).replace(b"\r\n", b"\n"),
    "a header without a name": request(b": a", LENGTH),
    "a header with a parenthesis": request(b"A(: b", LENGTH),
    "two hosts": request(b"Host: other", LENGTH),
    "HTTP/1.0 and chunked": chunked(b"1\r\nx\r\n" + EMPTY).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.10": request(LENGTH).replace(b"HTTP/1.1", b"HTTP/1.10"),
    "a tab in the request line": request(LENGTH).replace(b"POST ", b"POST\t"),
    "a chunk size that is no number": chunked(b"zz\r\nx\r\n" + EMPTY),
    "a chunk size with a plus": chunked(b"+1\r\nx\r\n" + EMPTY),
    "a negative chunk size": chunked(b"-1\r\nx\r\n" + EMPTY),
    "a chunk size with 0x": chunked(b"0x1\r\nx\r\n" + EMPTY),
    "a chunk size beyond 64 bits": chunked(b"f" * 40 + b"\r\nx\r\n" + EMPTY),
    "a space after a chunk size": chunked(b"1 \r\nx\r\n" + EMPTY),
    "a chunk longer than its size": chunked(b"1\r\nxy\r\n" + EMPTY),
    "chunks that end with LF": chunked(b"1\nx\n0\n\n"),
    "LF in a chunk extension": chunked(b"1;a\nb\r\nx\r\n" + EMPTY),
}
SECOND = b"GET /second HTTP/1.1\r\nHost: ADDRESS\r\nConnection: close\r\n\r\n"


def http_ports(daemons: Cluster) -> Iterable[tuple[str, int, bytes]]:
    """Yield each daemon's name, its HTTP port, and a target of which a POST changes something."""
    yield "nsqd", daemons.nsqd.http.port, b"/pub?topic=smuggled"
    yield "nsqlookupd", daemons.lookupd.http_port, b"/topic/create?topic=smuggled"
    yield "nsqadmin", daemons.admin.http_port, b"/api/topics"


async def statuses(port: int, target: bytes, raw: bytes) -> list[int]:
    """Send a request and a second one; return the statuses of the answers until the end."""
    address = b"127.0.0.1:%d" % port
    sent = (raw + SECOND).replace(b"TARGET", target).replace(b"ADDRESS", address)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = b""
    async with asyncio.timeout(SECONDS):
        # If a daemon closes before it has read everything, the kernel resets the connection.
        with contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(65_536):
                answer += piece
    writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] ([0-9]{3}) ", answer)]


@pytest.mark.timeout(180)
async def test_an_ambiguous_request_is_refused(tmp_path: Path) -> None:
    """Each ambiguous request gets 400 and nothing after it is answered; it changes nothing."""
    async with cluster(tmp_path) as daemons:
        before = daemons.state()
        for name, port, target in http_ports(daemons):
            for kind, raw in AMBIGUOUS.items():
                assert [400] == await statuses(port, target, raw), (name, kind)
        assert before == daemons.state()


async def test_a_clear_request_and_the_next_one_are_answered(tmp_path: Path) -> None:
    """The control: without an ambiguity, the same request and the one after it are answered.

    nsqadmin reads the body, and answers 400 since it is not JSON.
    """
    first = {"nsqd": 200, "nsqlookupd": 200, "nsqadmin": 400}
    async with cluster(tmp_path) as daemons:
        for name, port, target in http_ports(daemons):
            for kind, raw in CLEAR.items():
                assert [first[name], 404] == await statuses(port, target, raw), (name, kind)
        assert 2 == (await daemons.nsqd.topic("smuggled"))["depth"]
        assert "smuggled" in daemons.lookupd.registry.topics()
