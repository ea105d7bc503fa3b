"""A-4: nsqlookupd can restrict broadcast addresses, and limit what each peer uses."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Protocol, Self

from tests.support.servers import Server, spawn_nsqlookupd

REGISTRATIONS, NAMES, PER_ADDRESS = 50, 120, 20
FAKES = [
    *("169.254.169.254", "localhost", "127.0.0.2", "0.0.0.0", "0", "127.1", "2130706433", "::"),
    *("0x7f000001", "[::1]", "::1", "::ffff:127.0.0.2", "127.0.0.1.evil.org", "127.0.0.1@evil.org"),
    *("127.0.0.1/x", "127.0.0.1:80", "127.0.0.1#", "127.0.0.1 ", " 127.0.0.1", "127.0.0.1\n"),
    *("127.0.0.1\0", "http://127.0.0.1", "//127.0.0.1", "evil.nsq.example/", "nsq.example", "."),
    *("a@b.nsq.example", "\x1b[31m.nsq.example", "..nsq.example", "ⓝ.nsq.example", "*", "peer"),
]
HONEST = ["127.0.0.1", "::ffff:127.0.0.1", "one.nsq.example", "TWO.nsq.example."]


class Lookupd(Protocol):
    """A server that a peer connects to."""

    @property
    def tcp_port(self) -> int: ...


class Peer:
    """A simulated nsqd's connection to an nsqlookupd."""

    def __init__(self, server: Lookupd) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.tcp_port), timeout=30)
        self._socket.sendall(b"  V1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: bytes) -> bytes:
        """Send a command; return its answer, or b"" if the connection ends."""
        try:
            self._socket.sendall(command)
            (size,) = struct.unpack(">i", self._exactly(4))
            return self._exactly(size)
        except ConnectionError:
            return b""

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def identify(self, address: str, tcp_port: int = 4150, http_port: int = 4151) -> bytes:
        """Send IDENTIFY; return its answer."""
        facts = {"broadcast_address": address, "tcp_port": tcp_port, "http_port": http_port}
        body = json.dumps({**facts, "version": "1.3.0", "remote_address": "10.0.0.1:5"}).encode()
        return self.ask(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)


def listed(server: Server) -> list[str]:
    """The broadcast addresses that nsqlookupd returns."""
    return [found["broadcast_address"] for found in server.get_json("/nodes")["producers"]]


def test_a_peer_cannot_register_another_address(tmp_path: Path) -> None:
    """With --allow-broadcast-address, other addresses get E_INVALID; without, all are accepted."""
    flags = ("--allow-broadcast-address=peer", "--allow-broadcast-address=*.nsq.example")
    with spawn_nsqlookupd(tmp_path, *flags) as server:
        for fake in FAKES:
            with Peer(server) as peer:
                assert peer.identify(fake).startswith(b"E_INVALID IDENTIFY broadcast"), fake
                assert b"" == peer.ask(b"REGISTER t\n")
                assert [] == listed(server)
        for ports in ((0, 4151), (4150, 65536), (-1, 4151), (4150, 1 << 62)):
            with Peer(server) as peer:
                assert peer.identify("127.0.0.1", *ports).startswith(b"E_"), ports
        assert 404 == server.request("GET", "/lookup?topic=t")[0]
        for honest in HONEST:
            with Peer(server) as peer:
                assert b"OK" in peer.identify(honest) + peer.ask(b"REGISTER t\n")
                assert honest in listed(server)
    with spawn_nsqlookupd(tmp_path, name="open") as server, Peer(server) as peer:
        assert b"OK" in peer.identify("169.254.169.254") + peer.ask(b"REGISTER t\n")
        assert ["169.254.169.254"] == listed(server)
