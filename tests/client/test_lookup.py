"""client.lookup: queries to nsqlookupds are bounded, and only nsqlookupds get the secret."""

import asyncio
import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from sparq.client import lookup as module
from sparq.client.config import Config
from sparq.client.lookup import NsqlookupdClient, http_reason
from sparq.protocol.lookup import question
from tests.client.scripted import listening
from tests.cluster.peers import Peer, answer, listed, peer


async def ask(address: str, config: Config) -> object:
    """Query the nsqds of topic "t"."""
    async with NsqlookupdClient(config) as asker:
        return await asker.ask(question(address, "lookup", topic="t"))


def headers_of(lookupd: Peer) -> dict[str, str]:
    """Return the headers of the last query."""
    lines = lookupd.heads[-1].split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def test_a_query_sends_the_secret_unless_it_is_switched_off() -> None:
    """A query sends the secret as a bearer token, unless lookupd_authorization is False."""
    document = listed(("a", 1))
    async with peer({"/lookup": answer(document)}) as lookupd:
        given = Config(auth_secret="open sesame", auth_without_tls=True)
        assert document == await ask(lookupd.address, given)
        assert "Bearer open sesame" == headers_of(lookupd)["authorization"]
        for quiet in ({"lookupd_authorization": False}, {"auth_without_tls": False}):
            assert document == await ask(lookupd.address, Config.of(given, quiet))
            assert "authorization" not in headers_of(lookupd)

    assert ["GET /lookup?topic=t"] * 3 == lookupd.asked


async def test_no_redirect_is_followed() -> None:
    """A redirect raises ConnectionError; its target gets no connection and no secret."""
    async with peer({"/lookup": answer(listed(("stolen", 1)))}) as thief:
        moved = answer(b"", "302 Found", f"Location: http://{thief.address}/lookup")
        async with peer({"/lookup": moved}) as lookupd:
            with pytest.raises(ConnectionError, match="status 302"):
                await ask(lookupd.address, Config(auth_secret="open sesame"))

    assert 0 == thief.connections


async def test_an_answer_that_is_too_large_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer above ANSWER_BYTES_MAX raises ConnectionError."""
    monkeypatch.setattr(module.lookup, "ANSWER_BYTES_MAX", 1000)
    async with peer({"/lookup": answer(b"{" + b" " * 1000 + b"}")}) as lookupd:
        with pytest.raises(ConnectionError, match="1000 bytes"):
            await ask(lookupd.address, Config())


async def test_a_query_without_an_answer_fails_after_its_timeout() -> None:
    """A query without an answer fails after lookupd_poll_timeout."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with listening(hang) as address, asyncio.timeout(10):
        with pytest.raises(ConnectionError, match="no answer in time"):
            await ask(address, Config(lookupd_poll_timeout=0.1))


KEY = ConnectionKey("nohost.invalid", 1, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "no answer in time"),
        (ConnectionRefusedError(111, "refused"), "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "TLS: "),
        (ValueError("status 500"), "status 500"),
        (ValueError("\x1b[2Jgone\n"), " [2Jgone "),
        (ValueError(), "ValueError"),
        (ValueError("x" * 1000), "x" * 200),
    ],
)
def test_the_reason_is_short_and_printable(error: Exception, reason: str) -> None:
    """The reason has no error numbers, addresses or control characters; at most 200 characters."""
    if isinstance(error, ssl.SSLError):
        wrapped = aiohttp.ClientConnectorSSLError(KEY, error)
        wrapped.__cause__ = error
        assert http_reason(wrapped).startswith(reason)
        assert "[" not in http_reason(wrapped)
    elif isinstance(error, OSError) and not isinstance(error, TimeoutError):
        assert reason == http_reason(aiohttp.ClientConnectorError(KEY, error))
    else:
        assert reason == http_reason(error)
