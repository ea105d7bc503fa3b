"""If a port speaks another protocol than expected, the error names both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparq.client.blocking.connection import BlockingConnection
from sparq.client.config import Config
from sparq.client.connection import open_connection
from sparq.client.errors import WrongPeerError
from sparq.client.lookup import NsqlookupdClient
from sparq.protocol.lookup import question
from sparq.wire.client import not_nsqd
from tests.support.servers import Server, spawn_nsqd, spawn_nsqlookupd


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """An nsqd and an nsqlookupd."""
    folder = tmp_path_factory.mktemp("daemons")
    with spawn_nsqd(folder) as nsqd, spawn_nsqlookupd(folder) as lookupd:
        yield nsqd, lookupd


async def test_an_http_port_given_as_nsqd_is_recognised(daemons: tuple[Server, Server]) -> None:
    """An HTTP port in place of nsqd's TCP port raises WrongPeerError with the right port."""
    for server in daemons:
        with pytest.raises(WrongPeerError) as found:
            await open_connection(server.http, Config())

        assert (
            f"nsqd {server.http}: it speaks HTTP: use nsqd's TCP port (4150 by default),"
            " or lookupd-http-address for an nsqlookupd"
        ) == str(found.value)
        with pytest.raises(WrongPeerError, match="it speaks HTTP: use nsqd's TCP port"):
            BlockingConnection(server.http)


async def test_nsqlookupds_tcp_port_given_as_nsqd_is_recognised(
    daemons: tuple[Server, Server],
) -> None:
    """nsqlookupd's TCP port is recognised by its response, whose frames have another form."""
    lookupd = daemons[1]
    with pytest.raises(WrongPeerError) as found:
        await open_connection(lookupd.tcp, Config())

    assert (
        f"nsqd {lookupd.tcp}: it is nsqlookupd's TCP port, which is for nsqds:"
        " use its HTTP port (4161 by default) as lookupd-http-address"
    ) == str(found.value)


@pytest.mark.parametrize(
    ("port", "head", "said"),
    [
        (4151, b"HTTP/1.1 400", "it speaks HTTP: this is nsqd's HTTP port, use its TCP port"),
        (4161, b"HTTP/1.1 400", "it speaks HTTP: this is nsqlookupd's HTTP port, use it as"),
        (4171, b"HTTP/1.1 400", "it speaks HTTP: this is nsqadmin's port"),
        (4152, b"\x15\x03\x01\x00\x02\x02", "it expects TLS from the first byte"),
        (4150, b"\x00\x00\x00\x06\x00\x00\x00\x00OK", ""),
        (22, b"SSH-2.0-", ""),
    ],
)
def test_errors_name_the_service_of_a_default_port(port: int, head: bytes, said: str) -> None:
    """The error for each of NSQ's default ports names the port's service."""
    assert not_nsqd(f"127.0.0.1:{port}", head).startswith(said)
    assert bool(said) == bool(not_nsqd(f"127.0.0.1:{port}", head))


async def test_a_tcp_port_given_as_nsqlookupd_is_recognised(daemons: tuple[Server, Server]) -> None:
    """If nsqlookupd's address is a TCP port of NSQ, the error states that and the HTTP ports."""
    async with NsqlookupdClient(Config()) as asker:
        for server in daemons:
            with pytest.raises(ConnectionError) as found:
                await asker.ask(question(server.tcp, "lookup", topic="topic"))

            assert (
                "it speaks NSQ's TCP protocol: give the HTTP port (by default nsqd's is 4151,"
                " nsqlookupd's 4161)"
            ) == str(found.value)


async def test_nsqds_http_port_given_as_nsqlookupd_is_questioned(
    daemons: tuple[Server, Server],
) -> None:
    """If nsqlookupd's address is nsqd's HTTP port, the error asks whether it is the right one."""
    async with NsqlookupdClient(Config()) as asker:
        with pytest.raises(ConnectionError, match=r"is this an nsqlookupd's HTTP address\?"):
            await asker.ask(question(daemons[0].http, "lookup", topic="topic"))
