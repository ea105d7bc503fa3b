"""Daemons listen on host:port or on unix sockets."""

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from sparq.daemon.address import ListenError, join, listen, peer_text, split


@pytest.mark.behaviour("util.TestTypeOfAddr")
@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        (":4150", ("", 4150)),
        ("[::1]:0", ("::1", 0)),
        ("host:65535", ("host", 65535)),
        ("host:65536", None),
        ("host:0000065535", ("host", 65535)),
        ("host:0000099999", None),
        ("host:" + "0" * 5000, ("host", 0)),
        ("host", None),
        ("host:", None),
        ("::1:80", None),
        ("/run/nsqd.sock", None),
        ("/run/nsqd:80", None),
        ("host:\u0661", None),
    ],
)
def test_an_address_is_host_and_port_or_a_path(address: str, parts: tuple[str, int] | None) -> None:
    """An address that is not host:port is the path of a unix socket."""
    assert split(address) == parts


@pytest.mark.behaviour(
    "clusterinfo.TestHostNameAddresses",
    "clusterinfo.TestIPv4Addresses",
    "clusterinfo.TestIPv6Addresses",
)
def test_addresses_are_printed_with_brackets_around_ipv6() -> None:
    """``join`` formats like Go's JoinHostPort; a peer on a unix socket has an empty address."""
    assert join("::1", 80) == "[::1]:80"
    assert join("10.0.0.1", 80) == "10.0.0.1:80"
    assert join("host.domain", 80) == "host.domain:80"
    assert peer_text(("1.2.3.4", 5)) == "1.2.3.4:5"
    assert peer_text(("fe80::1", 5, 0, 0)) == "[fe80::1]:5"
    assert peer_text("") == peer_text(None) == ""


class Greeter(asyncio.Protocol):
    """Sends "hello" and closes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        transport.write(b"hello")
        transport.close()


@pytest.mark.parametrize("address", ["127.0.0.1:0", ":0", "[::1]:0", "localhost:0"])
async def test_port_0_is_replaced_by_the_assigned_port(address: str) -> None:
    """With port 0, the listener reports the port that the system has assigned."""
    listener = listen(address)
    await listener.serve(Greeter)
    host = "::1" if "::1" in address else "127.0.0.1"
    reader, writer = await asyncio.open_connection(host, listener.port)

    assert await reader.read() == b"hello"
    writer.close()
    listener.close()


async def test_a_taken_port_is_refused() -> None:
    """A port in use raises ListenError with NSQ's text, the address and the reason.

    So it does if another process has bound the port and begins to listen first.
    """
    listener = listen("127.0.0.1:0")
    other = listen(f"127.0.0.1:{listener.port}")
    await listener.serve(Greeter)
    text = f"listen (127.0.0.1:{listener.port}) failed - address already in use"

    with pytest.raises(ListenError) as refused:
        listen(f"127.0.0.1:{listener.port}")
    assert str(refused.value) == text
    with pytest.raises(ListenError) as refused:
        await other.serve(Greeter)
    assert str(refused.value) == text
    other.close()
    listener.close()


async def test_a_tcp_port_accepts_only_once_it_is_served() -> None:
    """Between bind and `serve` a client is refused at once, and does not wait for an answer."""
    listener = listen("127.0.0.1:0")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)

    await listener.serve(Greeter)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    assert await reader.read() == b"hello"
    writer.close()
    listener.close()


@pytest.mark.parametrize(
    "address",
    ["", "/no/such/folder/x.sock", "no-such-host.invalid:0", "a..b:0", f"{'a' * 64}:0", "/a\0b"],
)
def test_an_impossible_address_is_refused(address: str) -> None:
    """An empty address, a missing folder, or an unknown or malformed host raises ListenError."""
    with pytest.raises(ListenError, match="failed - "):
        listen(address)


async def test_closing_a_unix_socket_deletes_its_file(tmp_path: Path) -> None:
    """A unix socket accepts connections, has port -1, and closing deletes its file."""
    path = str(tmp_path / "s")
    listener = listen(path)
    await listener.serve(Greeter)
    reader, writer = await asyncio.open_unix_connection(path)

    assert await reader.read() == b"hello"
    assert (listener.port, listener.text) == (-1, path)
    writer.close()
    listener.close()
    assert os.listdir(tmp_path) == []


async def test_the_socket_file_of_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    """The socket file of a killed daemon is replaced, that of a running one is not."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)

    listener = listen(path)
    with pytest.raises(ListenError, match="address already in use"):
        listen(path)
    listener.close()


def test_a_regular_file_at_the_sockets_path_is_not_changed(tmp_path: Path) -> None:
    """A regular file at the socket's path raises ListenError and is not changed."""
    path = tmp_path / "data"
    path.write_text("precious")

    with pytest.raises(ListenError, match="address already in use"):
        listen(str(path))
    assert path.read_text() == "precious"


@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0"])
async def test_a_wildcard_address_listens_on_both_ip_families(address: str) -> None:
    """As in Go, all three spellings accept IPv4 and IPv6 clients, and are shown as [::]:port."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    peers = list[str]()

    class Noting(Greeter):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            peers.append(peer_text(transport.get_extra_info("peername")))
            super().connection_made(transport)

    listener = listen(address)
    await listener.serve(Noting)
    for host in ("127.0.0.1", "::1"):
        reader, writer = await asyncio.open_connection(host, listener.port)
        own = writer.get_extra_info("sockname")

        assert await reader.read() == b"hello"
        assert peers.pop() == join(host, own[1])
        writer.close()
    assert listener.text == f"[::]:{listener.port}"
    listener.close()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0"])
def test_a_machine_without_ipv6_listens_on_ipv4(
    address: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If IPv6 is switched off, a wildcard address listens on IPv4 alone."""

    class WithoutIpv6(socket.socket):
        def bind(self, where: Any) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(number, "no IPv6")
            super().bind(where)

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    monkeypatch.setattr(socket, "socket", WithoutIpv6)

    listener = listen(address)
    assert listener.text == f"0.0.0.0:{listener.port}"
    listener.close()
