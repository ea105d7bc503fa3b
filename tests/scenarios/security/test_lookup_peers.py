"""A-4: nsqlookupd can restrict broadcast addresses, and limit what each peer uses."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

import pytest

from tests.support.servers import Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

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


@pytest.mark.security("A-4")
def test_a_peer_cannot_register_another_address(
    tmp_path: Path, shows: Callable[[str], None]
) -> None:
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
    shows(f"fake registrations {len(FAKES) + 4}, accepted 0; honest {len(HONEST)}, refused 0")


@pytest.mark.security("A-4")
def test_a_real_nsqd_can_register(tmp_path: Path) -> None:
    """With policy `peer`, a real nsqd may register its IP address, but no other name."""
    with spawn_nsqlookupd(tmp_path, "--allow-broadcast-address=peer") as server:
        with spawn_nsqd(tmp_path, "--broadcast-address=elsewhere.example", lookupds=(server,)):
            wait_for(lambda: "is not allowed" in server.log_text)
            assert [] == listed(server)
        with spawn_nsqd(tmp_path, lookupds=(server,), name="other") as nsqd:
            nsqd.post("/topic/create?topic=t")
            wait_for(lambda: listed(server) == ["127.0.0.1"])
            wait_for(lambda: server.request("GET", "/lookup?topic=t")[0] == 200)


@pytest.mark.security("A-4")
def test_registrations_and_connections_of_a_peer_are_limited(
    tmp_path: Path, shows: Callable[[str], None]
) -> None:
    """Registrations, names and connections per address are limited; other peers are served."""
    flags = (
        f"--max-registrations={REGISTRATIONS}",
        f"--max-names={NAMES}",
        f"--max-connections-per-address={PER_ADDRESS}",
    )
    with spawn_nsqlookupd(tmp_path, *flags) as server:
        refused = 0
        for turn in range(5):
            with Peer(server) as peer:
                peer.identify("127.0.0.1")
                count = 0
                while peer.ask(b"REGISTER t%d-%d c\n" % (turn, count)) == b"OK":
                    count += 1
                assert count <= REGISTRATIONS // 2
                refused += 1
        topics = server.get_json("/topics")["topics"]
        assert NAMES // 2 == len(topics)
        with Peer(server) as peer:
            peer.identify("127.0.0.1")
            assert b"OK" == peer.ask(b"REGISTER %s c\n" % topics[0].encode())
        refused += hoard(server)
    shows(f"refused {refused} > 0, names kept {NAMES} of at most {NAMES}")


def hoard(server: Server) -> int:
    """Open many connections from one address, while another is served; return the refusals."""
    peers = [Peer(server) for _ in range(PER_ADDRESS * 2)]
    try:
        answers = [peer.ask(b"PING\n") for peer in peers]
        assert 0 < answers.count(b"OK") <= PER_ADDRESS
        other = socket.create_connection(
            ("127.0.0.1", server.tcp_port), timeout=30, source_address=("127.0.0.3", 0)
        )
        with other:
            other.sendall(b"  V1PING\n")
            assert b"OK" == other.recv(100)[4:]
        return len(answers) - answers.count(b"OK")
    finally:
        for peer in peers:
            peer.__exit__()


@pytest.mark.security("A-4")
def test_tombstones_need_the_token(tmp_path: Path) -> None:
    """With a token set, tombstoning a producer or deleting a topic without it gets 401."""
    with spawn_nsqlookupd(tmp_path, "--http-token=t0ken") as server, Peer(server) as peer:
        peer.identify("127.0.0.1")
        assert b"OK" == peer.ask(b"REGISTER t c\n")
        for path in ("topic/tombstone?topic=t&node=127.0.0.1:4151", "topic/delete?topic=t"):
            assert 401 == server.request("POST", f"/{path}")[0]
        assert 1 == len(server.get_json("/lookup?topic=t")["producers"])


@pytest.mark.security("A-4")
def test_names_are_checked(tmp_path: Path) -> None:
    """An invalid topic or channel name gets an error and is not listed."""
    chance = random.Random(4)
    with spawn_nsqlookupd(tmp_path) as server:
        for _ in range(200):
            bad = bytes(chance.choices(b"ab./\\%$\0\x1b\xff<>\"'*", k=6)) + b"!"
            with Peer(server) as peer:
                peer.identify("127.0.0.1")
                command = chance.choice((b"REGISTER %s\n", b"REGISTER t %s\n", b"UNREGISTER %s\n"))
                assert peer.ask(command % bad).startswith((b"E_BAD_TOPIC", b"E_BAD_CHANNEL"))
        assert [] == server.get_json("/topics")["topics"]
