"""nsq_to_http treats bodies as bytes, and sends them only to the server that it is told (D-4)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import web

from sparq.tools.nsq_to_http import HttpTarget, UnsendableError, open_session
from sparq.tools.relay import NotAcceptedError, NotSentError
from tests.client.certificates import certificates, server_context
from tests.tools.forwarding import web_server

HOSTILE = [
    b"\r\nHost: elsewhere.example\r\n\r\nGET /x HTTP/1.1\r\n",
    b"&admin=1",
    b"a=b;c=d",
    b"#fragment?x=y",
    b"%s%s%n%d{0}{body}$(id)`id`",
    b"http://elsewhere.example/",
    b"//elsewhere.example/@elsewhere.example:1/",
    b"\x00\xff\xfe\xf0\x28\x8c\xbc",
    b"\xe2\x80\xae\xe2\x80\xa8\x1b[2J",
    b"';--<script>&lt;",
    b"%2e%2e%2f%0d%0a",
    bytes(range(256)),
]


async def test_a_body_in_a_url_cannot_change_the_url() -> None:
    """A body in a URL is one query value or one path segment, and changes nothing else."""
    in_path = []
    async with web_server() as server, open_session(5, 5) as session:
        for body in HOSTILE:
            await HttpTarget("GET", f"{server.url}/in?a=1&b=%s&c=2", {}).send(session, body)
            asked = urlsplit(server.asked.pop().path_qs)
            assert ("/in", "") == (asked.path, asked.fragment)
            values = parse_qsl(asked.query, encoding="latin-1", strict_parsing=True)
            assert [("a", "1"), ("b", body.decode("latin-1")), ("c", "2")] == values
            try:
                await HttpTarget("GET", f"{server.url}/in/%s/out", {}).send(session, body)
            except UnsendableError:
                continue
            in_path.append(server.asked.pop().path_qs)

    assert {("", "in", "out")} == {(*path.split("/")[:2], path.split("/")[3]) for path in in_path}
    assert len(in_path) == len(HOSTILE)
    assert not server.asked


async def test_nothing_is_posted_to_an_untrusted_server(tmp_path: Path) -> None:
    """nsq_to_http refuses invalid certificates, and does not follow a redirect with a body."""
    context = server_context(certificates(tmp_path), certificates(tmp_path).self_signed)
    async with (
        web_server(context) as stranger,
        web_server() as elsewhere,
        web_server() as server,
        open_session(5, 5) as session,
    ):

        async def redirect(_: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": elsewhere.url})

        server.answer = redirect
        with pytest.raises(NotSentError, match="certificate"):
            await HttpTarget("POST", stranger.url, {}).send(session, b"secret")
        with pytest.raises(NotAcceptedError, match="307"):
            await HttpTarget("POST", server.url, {}).send(session, b"secret")

    assert (0, 1, 0) == (len(stranger.asked), len(server.asked), len(elsewhere.asked))
