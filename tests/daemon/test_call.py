"""A request as a handler sees it: its query, and its body up to a limit."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.daemon import call as call_module
from sparq.daemon import http
from sparq.daemon.address import Listener, listen
from sparq.daemon.call import Call, HttpError, parse_query
from sparq.daemon.http import Route, Site
from tests.daemon.exchange import Answer, ask, exchange

BODY_MAX = 100


async def echo(call: Call) -> bytes:
    return await call.body(BODY_MAX, "TOO_BIG")


@pytest.fixture
async def listener(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    """A site that answers with the request's body, on a free port."""
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.1)
    site, listener = Site([Route("POST", "/echo", echo)]), listen("127.0.0.1:0")
    await site.start(listener)
    yield listener
    listener.close()
    await site.stop()


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
    monkeypatch.setattr(call_module, "BODY_SECONDS", 0.05)

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
