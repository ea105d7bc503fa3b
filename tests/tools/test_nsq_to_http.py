"""nsq_to_http: URLs, headers and single requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from sparq.tools.commands import UsageError
from sparq.tools.nsq_to_http import (
    ANSWER_BYTES_MAX,
    WHOLE_BYTES_MAX,
    HttpTarget,
    UnsendableError,
    open_session,
    parse_headers,
)
from sparq.tools.relay import NotAcceptedError, NotSentError
from tests.client.scripted import listening
from tests.support.servers import free_port
from tests.tools.forwarding import web_server


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """The session that makes the requests."""
    async with open_session(1.0, 1.0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("method", "text", "reason"),
    [
        ("POST", "", "--post takes a URL that begins with http:// or https://: ''"),
        ("POST", "h:80/x", "--post takes a URL"),
        ("POST", "ftp://h/", "--post takes a URL"),
        ("POST", "http://", "--post takes a URL"),
        ("POST", "http:///x", "--post takes a URL"),
        ("POST", "http://h:99999/", "--post takes a URL"),
        ("POST", "http//me:hush@h/x?k=hush", "https://: 'h/x'$"),
        ("GET", "http//h/%s", "--get takes a URL"),
        ("GET", "http://h/", "--get takes a URL with one %s"),
        ("GET", "http://h/%s?a=%s", "--get takes a URL with one %s"),
        ("GET", "http://%s.example/", "the %s must be in the path or in the query"),
        ("GET", "http://h:%s/", "--get takes a URL"),
        ("GET", "http://%s@h/", "the %s must be in the path or in the query"),
        ("GET", "http://h/#%s", "the %s must be in the path or in the query"),
        ("GET", "http://h/a b?%s", "percent-encode everything except the %s"),
        ("GET", "http://h/100%?%s", "percent-encode everything except the %s"),
        ("GET", "http://h/\u00fc?%s", "percent-encode everything except the %s"),
        ("GET", "http://h/%d?%s", "percent-encode everything except the %s"),
        ("GET", "http://h/a/../%s", "a path with . or .. cannot contain %s"),
    ],
)
def test_invalid_urls_are_refused(method: str, text: str, reason: str) -> None:
    """Errors at the start name the flag; passwords and queries are not shown."""
    with pytest.raises(UsageError, match=re.compile(reason)) as refused:
        HttpTarget(method, text, {})

    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://h", "http://h"),
        ("HTTPS://me:hush@H:8443/a/b?token=hush#x", "https://h:8443/a/b"),
        ("http://[::1]:80/%20", "http://[::1]/%20"),
    ],
)
def test_secrets_in_a_url_are_not_shown(text: str, shown: str) -> None:
    """Only scheme, host, port and path are shown."""
    assert shown == HttpTarget("POST", text, {}).shown


def test_headers_are_parsed() -> None:
    """The last header of a name wins in any case of letters, also over the tool's headers."""
    given = ["A:1", "a: 2 ", "X-Empty:", "host: other:8", "user-AGENT: mine"]
    found = parse_headers(given, {"User-Agent": "tool", "B": "3"})

    expected = {"a": "2", "x-empty": "", "host": "other:8", "user-agent": "mine", "b": "3"}
    assert expected == {name.lower(): value for name, value in found.items()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hush", "header 2 is not in this form"),
        (": hush", "header 2 is not in this form"),
        ("a b: hush", "header 2 is not in this form"),
        ("a\r\nb: hush", "header 2 is not in this form"),
        ("a: x\r\nb: hush", "--header a: its value contains control characters"),
        ("a: \x00hush", "--header a: its value contains control characters"),
        ("Content-Length: 1", "--header Content-Length: it is set automatically for each request"),
        (
            "transfer-encoding: chunked",
            "--header transfer-encoding: it is set automatically for each request",
        ),
    ],
)
def test_invalid_headers_are_refused(text: str, reason: str) -> None:
    """The error names the header or its position, but not a value, which may be a secret."""
    with pytest.raises(UsageError, match=reason) as refused:
        parse_headers(["Fine: yes", text], {})

    assert "hush" not in str(refused.value)


async def test_a_space_in_a_path_becomes_percent_20(session: aiohttp.ClientSession) -> None:
    """A space becomes %20, because a plus sign in a path means a plus sign."""
    async with web_server() as server:
        await HttpTarget("GET", f"{server.url}/in/%s/x?y", {}).send(session, b"a b+c/d")

    assert ["/in/a%20b%2Bc%2Fd/x?y"] == [each.path_qs for each in server.asked]


@pytest.mark.parametrize("body", [b"..", b".", b"a/../b", b"\\..\\", b"/.."])
async def test_a_body_of_dots_is_refused_in_the_path(
    session: aiohttp.ClientSession, body: bytes
) -> None:
    """In the path it is refused; in the query it is sent."""
    async with web_server() as server:
        with pytest.raises(UnsendableError, match=r"act as \. or \.\. in the URL's path"):
            await HttpTarget("GET", f"{server.url}/in/%s", {}).send(session, body)
        await HttpTarget("GET", f"{server.url}/in?b=%s", {}).send(session, body)

    assert 1 == len(server.asked)


async def test_a_large_body_arrives_complete(session: aiohttp.ClientSession) -> None:
    """A large body arrives complete, with a Content-Length."""
    body = bytes(range(256)) * (WHOLE_BYTES_MAX // 256 + 1)
    async with web_server() as server:
        await HttpTarget("POST", server.url, {}).send(session, body)

    assert [body] == server.bodies
    assert str(len(body)) == server.asked[0].headers["Content-Length"]


async def test_a_refused_connection_sends_nothing(session: aiohttp.ClientSession) -> None:
    """A refused connection raises NotSentError: nothing was sent."""
    with pytest.raises(NotSentError, match=r"^http://127.0.0.1:\d+: connection refused$"):
        await HttpTarget("POST", f"http://127.0.0.1:{free_port()}", {}).send(session, b"x")


ODD_ANSWERS = [
    (b"", "Server disconnected"),
    (b"SSH-2.0-nothing\r\n\r\n", "http://127"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "http://127"),
    (b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 100_000, "http://127"),
    (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "status 302"),
]


@pytest.mark.parametrize(("said", "reason"), ODD_ANSWERS, ids=range(len(ODD_ANSWERS)))
async def test_an_invalid_answer_fails_its_request(
    session: aiohttp.ClientSession, said: bytes, reason: str
) -> None:
    """Each one fails this request with a reason, in bounded memory."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with listening(answer) as address:
        with pytest.raises(NotAcceptedError, match=reason) as failed:
            await HttpTarget("POST", f"http://{address}/?k=hush", {}).send(session, b"x")

    assert len(str(failed.value)) < 400
    assert "hush" not in str(failed.value)


async def test_an_endless_answer_is_read_up_to_a_bound(session: aiohttp.ClientSession) -> None:
    """The answer's status counts, and its connection is closed."""
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)
            sent += 65_536

    async with web_server() as server:
        server.answer = answer
        await HttpTarget("POST", server.url, {}).send(session, b"x")

    # Up to that moment the server can fill the buffers of two sockets.
    assert ANSWER_BYTES_MAX <= sent < 16 * ANSWER_BYTES_MAX


async def test_a_slow_answer_counts_by_its_status(
    session: aiohttp.ClientSession,
) -> None:
    """The status decides; the wait for the rest ends with the request timeout."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async with web_server() as server:
        server.answer = answer
        await HttpTarget("POST", server.url, {}).send(session, b"x")


async def test_no_cookie_is_kept(session: aiohttp.ClientSession) -> None:
    """Cookies of a response are not sent with later requests."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(headers={"Set-Cookie": "a=b; Path=/"})

    async with web_server() as server:
        server.answer = answer
        for _ in range(2):
            await HttpTarget("POST", server.url, {}).send(session, b"x")

    assert all("Cookie" not in each.headers for each in server.asked)
