"""HTTP requests, routes, answers, errors, redirects and limits equal NSQ's."""

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from sparq.daemon import http
from sparq.daemon.address import Listener, listen
from sparq.daemon.http import Call, Content, HttpError, Route, RouteTable, Site, parse_query
from tests.daemon.exchange import Answer, ask, exchange

BODY_MAX = 100
entered = asyncio.Event()


async def echo(call: Call) -> bytes:
    return await call.body(BODY_MAX, "TOO_BIG")


async def slow(_call: Call) -> str:
    entered.set()
    await asyncio.sleep(0.2)
    return "late"


def fail(_call: Call) -> None:
    raise RuntimeError("bug")


def unhealthy(_call: Call) -> None:
    raise HttpError(500, "NOK - disk")


def facts(call: Call) -> dict[str, Any]:
    return {"path": call.path, "a": call.argument("a"), "on": call.flag("on", True)}


ROUTES = [
    Route("GET", "/ping", lambda _call: "OK", plain=True),
    Route("GET", "/sick", unhealthy, plain=True),
    Route("GET", "/facts", facts),
    Route("POST", "/facts", lambda _call: None),
    Route("POST", "/echo", echo, log=False),
    Route("GET", "/slow", slow),
    Route("GET", "/fail", fail),
]


@pytest.fixture
async def listener(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    """A site with `ROUTES`, on a free port."""
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.1)
    site, listener = Site(ROUTES), listen("127.0.0.1:0")
    await site.start(listener)
    yield listener
    listener.close()
    await site.stop()


async def test_a_structure_is_sent_as_json(listener: Listener) -> None:
    """A structure is sent as JSON with NSQ's two headers."""
    answer = await ask(listener, "GET", "/facts?a=1&on=0")

    assert answer.status == 200
    assert json.loads(answer.body) == {"path": "/facts", "a": "1", "on": False}
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


async def test_a_text_is_sent_unchanged(listener: Listener) -> None:
    """A text is not sent as JSON; None is an empty 200; /ping has no NSQ header."""
    ping = await ask(listener, "GET", "/ping")
    nothing = await ask(listener, "POST", "/facts")

    assert (ping.status, ping.body) == (200, b"OK")
    assert ping.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in ping.headers
    assert (nothing.status, nothing.body) == (200, b"")
    assert nothing.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "content-type" not in nothing.headers


@pytest.mark.parametrize(
    ("method", "target", "status", "message"),
    [
        ("GET", "/nope", 404, "NOT_FOUND"),
        ("GET", "/", 404, "NOT_FOUND"),
        ("GET", "/ping/x", 404, "NOT_FOUND"),
        ("DELETE", "/ping", 405, "METHOD_NOT_ALLOWED"),
        ("HEAD", "/nope", 404, None),
        ("POST", "/ping/", 404, "NOT_FOUND"),
        ("GET", "/facts", 400, "MISSING_ARG_A"),
        ("GET", "/facts?a=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/facts?a=1;b=2", 400, "INVALID_REQUEST"),
        ("GET", "/fail", 500, "INTERNAL_ERROR"),
    ],
)
async def test_errors_are_json_with_a_code(
    listener: Listener, method: str, target: str, status: int, message: str | None
) -> None:
    """Every error is `{"message":"CODE"}` and its status, with NSQ's header."""
    answer = await ask(listener, method, target)

    assert answer.status == status
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    if message is not None:
        assert answer.body == b'{"message":"%s"}' % message.encode()


async def test_an_error_of_a_plain_endpoint_is_text(listener: Listener) -> None:
    """An error of a plain endpoint is text, not JSON."""
    answer = await ask(listener, "GET", "/sick")

    assert (answer.status, answer.body) == (500, b"NOK - disk")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_the_answer_to_a_wrong_method_lists_the_right_ones(listener: Listener) -> None:
    """405 and OPTIONS carry Allow."""
    wrong = await ask(listener, "PUT", "/facts")
    options = await ask(listener, "OPTIONS", "/facts")

    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, OPTIONS, POST")
    assert (options.status, options.headers["allow"]) == (200, "GET, OPTIONS, POST")


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/./x/..//PING/?a=1&b=%20", 301, "/ping?a=1&b=%20"),
        ("POST", "//echo?a=%2F", 307, "/echo?a=%2F"),
    ],
)
async def test_a_nearly_right_path_is_redirected(
    listener: Listener, method: str, target: str, status: int, location: str
) -> None:
    """Extra slashes, dots or wrong case redirect to the registered path, with the query."""
    answer = await ask(listener, method, target)

    assert (answer.status, answer.headers["location"]) == (status, location)


async def test_escaped_paths_and_absolute_targets_are_understood(listener: Listener) -> None:
    """Escaped paths such as %70ing, and absolute URLs as proxies send them, are accepted."""
    escaped = await ask(listener, "GET", "/%70ing")
    absolute = await ask(listener, "GET", f"http://127.0.0.1:{listener.port}/facts?a=b")

    assert escaped.body == b"OK"
    assert json.loads(absolute.body) == {"path": "/facts", "a": "b", "on": True}


@pytest.mark.parametrize("before", [b"", b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """A connection with an incomplete request head is closed after IDLE_SECONDS."""
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)
    site, listener = Site(ROUTES), listen("127.0.0.1:0")
    await site.start(listener)

    answer = await exchange(listener, before + b"GET /ping HTTP/1.1\r\nHost: x\r\nA: ")
    assert answer.count(b"HTTP/1.1 200") == (1 if before else 0)
    listener.close()
    await site.stop()


async def test_requests_are_logged_except_those_of_frequent_routes(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are logged at INFO, except those of routes with log=False, such as /pub."""
    with caplog.at_level(logging.INFO, logger="sparq.daemon.http"):
        await ask(listener, "GET", "/facts?a=1")
        await ask(listener, "GET", "/nope")
        await ask(listener, "POST", "/echo", b"x")

    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" (127.0.0.1:")[0] for line in lines] == [
        "200 GET /facts?a=1",
        "404 GET /nope",
    ]


async def test_a_bug_is_logged_with_its_traceback(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in a handler is logged as an error with its traceback."""
    await ask(listener, "GET", "/fail")

    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "bug" in str(record.exc_info[1])


async def test_a_request_that_is_no_http_is_logged_in_one_line(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that is no HTTP gets 400 and is logged in one line, without a traceback."""
    answer = Answer(await exchange(listener, b"GET / HTTP/9.9\r\n" + b"x" * 1000 + b"\r\n\r\n"))

    (record,) = caplog.records
    assert (answer.status, record.levelname, record.exc_info) == (400, "WARNING", None)
    assert "Bad status line" in record.getMessage()
    assert len(record.getMessage()) < 300


async def test_a_stop_lets_a_request_finish() -> None:
    """``stop`` waits until running requests are answered."""
    site, listener = Site(ROUTES), listen("127.0.0.1:0")
    await site.start(listener)
    request = asyncio.create_task(ask(listener, "GET", "/slow"))
    async with asyncio.timeout(10):
        await entered.wait()

    listener.close()
    await site.stop()
    assert (await request).body == b"late"


async def pieces(call: Call) -> Any:
    stream = await call.stream("text/event-stream", {"Cache-Control": "no-store"})
    for _ in range(3):
        await stream.write(b"data: x\n\n")
        if "broken" in call.query:
            raise RuntimeError("bug")
    return stream


MORE = [
    Route("GET", "/pieces", pieces),
    Route("GET", "/own", lambda _call: web.Response(status=418, text="x" * 2000)),
    Route("GET", "/text", lambda _call: "word " * 500),
    Route("GET", "/short", lambda _call: "word"),
    Route("GET", "/bytes", lambda _call: Content(b"x" * 5000, "image/png")),
    Route("GET", "/a/:b/c/:d", lambda call: dict(call.parameters)),
    Route("GET", "/panic", fail),
]


def words(request: web.BaseRequest, error: HttpError) -> web.Response | None:
    if "text/html" not in request.headers.get("Accept", ""):
        return None
    return web.Response(status=error.status, text=f"<p>{error.code}", content_type="text/html")


@pytest.fixture
async def pages() -> AsyncIterator[Listener]:
    """A site like nsqadmin's: below a base path, with own headers, compression and error pages."""
    site = Site(MORE, base="/in", headers={"X-Own": "1"}, compresses=True, words=words)
    listener = listen("127.0.0.1:0")
    await site.start(listener)
    yield listener
    listener.close()
    await site.stop()


async def test_a_streamed_answer_is_complete(pages: Listener) -> None:
    """A streamed answer has the site's headers and ends with the last chunk."""
    raw = await exchange(pages, b"GET /in/pieces HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = raw.partition(b"\r\n\r\n")

    assert b"X-Own: 1" in head
    assert b"Content-Type: text/event-stream" in head
    assert b"Cache-Control: no-store" in head
    assert 3 == body.count(b"data: x")
    assert body.endswith(b"0\r\n\r\n")


async def test_a_failed_streamed_answer_has_no_last_chunk(
    pages: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """If a streaming handler fails, the connection ends without the last chunk; it is logged."""
    asked = b"GET /in/pieces?broken HTTP/1.1\r\nHost: x\r\n\r\n"
    with contextlib.suppress(ConnectionResetError):
        assert not (await exchange(pages, asked)).endswith(b"0\r\n\r\n")
    assert "the answer to /pieces was cut off" in caplog.text
    assert "RuntimeError: bug" in caplog.text


async def test_every_answer_has_the_sites_headers(pages: Listener) -> None:
    """Every answer has the site's headers, also errors and redirects; paths are below the base."""
    for target, status in (
        ("/in/short", 200),
        ("/in/own", 418),
        ("/in/nope", 404),
        ("/short", 404),
        ("/in/panic", 500),
        ("/in/short/", 301),
    ):
        answer = await ask(pages, "GET", target)
        assert (status, "1") == (answer.status, answer.headers["x-own"]), target
    assert "/in/short" == (await ask(pages, "GET", "/in/short/")).headers["location"]
    assert 405 == (await ask(pages, "POST", "/in/short")).status


async def test_path_parameters_are_unescaped(pages: Listener) -> None:
    """Path parameters are unescaped; a plus sign is not a space."""
    answer = await ask(pages, "GET", "/in/a/x%20%23+y/c/%5B::1%5D:4")

    assert {"b": "x #+y", "d": "[::1]:4"} == json.loads(answer.body)


@pytest.mark.parametrize(
    ("target", "accepted", "coding"),
    [
        ("/in/text", "gzip, deflate", "gzip"),
        ("/in/text", "br, deflate;q=0.5", "deflate"),
        ("/in/text", "gzip;q=0, identity", None),
        ("/in/text", "br", None),
        ("/in/short", "gzip", None),
        ("/in/bytes", "gzip", None),
    ],
)
async def test_long_texts_are_compressed_as_accept_encoding_permits(
    pages: Listener, target: str, accepted: str, coding: str | None
) -> None:
    """Long texts are compressed as Accept-Encoding permits; short ones and images are not."""
    answer = await ask(pages, "GET", target, b"", f"Accept-Encoding: {accepted}")

    assert coding == answer.headers.get("content-encoding")
    assert ("Accept-Encoding" if target == "/in/text" else None) == answer.headers.get("vary")
    if coding == "gzip":
        assert b"word " * 500 == gzip.decompress(answer.body)


async def test_errors_are_html_if_the_client_accepts_html(pages: Listener) -> None:
    """Errors are HTML pages if the client accepts HTML, else NSQ's JSON."""
    for target, status, code in (("/in/nope", 404, "NOT_FOUND"), ("/in/panic", 500, "INTERNAL_ER")):
        page = await ask(pages, "GET", target, b"", "Accept: text/html")
        plain = await ask(pages, "GET", target)
        assert (status, True) == (page.status, page.body.startswith(f"<p>{code}".encode()))
        assert (status, True) == (plain.status, plain.body.startswith(b'{"message":"'))


# Queries and bodies


def test_the_first_of_repeated_parameters_counts() -> None:
    """The first of repeated parameters counts; `+` is a space, and escapes are decoded."""
    assert parse_query("a=1&a=2&b=x+y%26&&c&=3") == {"a": "1", "b": "x y&", "c": "", "": "3"}
    # curl would cut off the fragment; from a raw client, it is part of the query, as in Go.
    assert parse_query("topic=t#ephemeral") == {"topic": "t#ephemeral"}


@given(st.text())
def test_any_query_is_read_or_refused(text: str) -> None:
    """Any text is parsed, or refused with 400 INVALID_REQUEST."""
    try:
        parse_query(text)
    except HttpError as error:
        assert (error.status, error.code) == (400, "INVALID_REQUEST")


async def test_a_body_as_long_as_the_limit_is_accepted(listener: Listener) -> None:
    """A body as long as the limit is accepted, whole or chunked; so is an empty body."""
    body = bytes(range(100))
    chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    chunked += b"Connection: close\r\n\r\n32\r\n%b\r\n32\r\n%b\r\n0\r\n\r\n"

    assert (await ask(listener, "POST", "/echo", body)).body == body
    assert Answer(await exchange(listener, chunked % (body[:50], body[50:]))).body == body
    assert (await ask(listener, "POST", "/echo")).body == b""


async def test_a_body_above_the_limit_is_refused(listener: Listener) -> None:
    """A body above the limit is a 413, by its Content-Length or by the bytes received."""
    announced = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n"
    chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"40\r\n" + bytes(64) + b"\r\n" + b"40\r\n" + bytes(64) + b"\r\n"

    for raw in (announced, chunked):
        answer = Answer(await exchange(listener, raw))
        assert (answer.status, answer.body) == (413, b'{"message":"TOO_BIG"}')


async def test_a_body_is_not_decompressed(listener: Listener) -> None:
    """A body with Content-Encoding gzip stays compressed, so that no small body grows large."""
    body = gzip.compress(bytes(10_000))

    answer = await ask(listener, "POST", "/echo", body, "Content-Encoding: gzip")
    assert answer.body == body


async def test_an_incomplete_body_is_an_internal_error(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that is incomplete after BODY_SECONDS is a 500 INTERNAL_ERROR."""
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)

    answer = Answer(
        await exchange(listener, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
    )
    assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')


async def test_expect_100_continue_is_answered(listener: Listener) -> None:
    """`Expect: 100-continue` is answered with 100, or with 413 if the body is too large."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
    writer.write(head + b"Content-Length: 3\r\n\r\n")

    async with asyncio.timeout(10):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert Answer(await reader.read()).body == b"abc"
    writer.close()

    refused = Answer(await exchange(listener, head + b"Content-Length: 101\r\n\r\n"))
    assert refused.status == 413


# Routes

PATHS = [
    "/",
    "/topics",
    "/topics/:topic",
    "/topics/:topic/:channel",
    "/topics/:topic/messages",
    "/config/:opt",
    "/nodes/:node/stats",
]


def table(base: str = "") -> RouteTable:
    return RouteTable([Route("GET", path, lambda _call: None) for path in PATHS], base)


@pytest.mark.parametrize(
    ("path", "route", "parameters"),
    [
        ("/", "/", {}),
        ("/topics", "/topics", {}),
        ("/topics/a", "/topics/:topic", {"topic": "a"}),
        ("/topics/..", "/topics/:topic", {"topic": ".."}),
        ("/topics/a#ephemeral", "/topics/:topic", {"topic": "a#ephemeral"}),
        ("/topics/a/b", "/topics/:topic/:channel", {"topic": "a", "channel": "b"}),
        ("/topics/a/messages", "/topics/:topic/messages", {"topic": "a"}),
        ("/nodes/[::1]:4151/stats", "/nodes/:node/stats", {"node": "[::1]:4151"}),
    ],
)
def test_a_path_finds_its_route_and_parameters(
    path: str, route: str, parameters: dict[str, str]
) -> None:
    """A path finds its route and parameters; a literal part takes precedence over a parameter."""
    for base in ("", "/nsq/admin"):
        found = table(base).find(base + path if path != "/" else base or "/")
        assert found is not None
        assert (route, parameters) == (found.methods["GET"].path, found.parameters)


@pytest.mark.parametrize(
    "path", ["", "/topic", "/topics/", "/topics//b", "/topics/a/b/c", "/nodes/a", "/nodes//stats"]
)
def test_other_paths_match_no_route(path: str) -> None:
    """Other paths match no route: a parameter is never empty and contains no slash."""
    assert table().find(path) is None
    assert table("/x").find("/topics") is None


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/topics/", "/topics"),
        ("/TOPICS", "/topics"),
        ("//topics//", "/topics"),
        ("/x/../topics", "/topics"),
        ("/Topics/Ab/", "/topics/Ab"),
        ("/topics/a b/c%", "/topics/a%20b/c%25"),
        ("/NODES/n:1/Stats/", "/nodes/n%3A1/stats"),
        ("/nope", None),
        ("/nodes/a", None),
    ],
)
def test_meant_corrects_case_slashes_and_dots(path: str, meant: str | None) -> None:
    """``meant`` corrects case, slashes and dots; parameters stay the same, escaped."""
    assert meant == table().meant(path, "GET")
    assert table().meant(path, "POST") is None
    if meant:
        assert "/b" + meant == table("/b").meant("/B" + path, "GET")
