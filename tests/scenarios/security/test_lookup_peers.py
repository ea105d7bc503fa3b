"""A-4: nsqlookupd can restrict broadcast addresses, and limit what each peer uses."""

from __future__ import annotations

from pathlib import Path

from tests.support.lookup_peer import LookupPeer
from tests.support.servers import Server, spawn_nsqlookupd

FAKES = [
    *("169.254.169.254", "localhost", "127.0.0.2", "0.0.0.0", "0", "127.1", "2130706433", "::"),
    *("0x7f000001", "[::1]", "::1", "::ffff:127.0.0.2", "127.0.0.1.evil.org", "127.0.0.1@evil.org"),
    *("127.0.0.1/x", "127.0.0.1:80", "127.0.0.1#", "127.0.0.1 ", " 127.0.0.1", "127.0.0.1\n"),
    *("127.0.0.1\0", "http://127.0.0.1", "//127.0.0.1", "evil.nsq.example/", "nsq.example", "."),
    *("a@b.nsq.example", "\x1b[31m.nsq.example", "..nsq.example", "ⓝ.nsq.example", "*", "peer"),
]
HONEST = ["127.0.0.1", "::ffff:127.0.0.1", "one.nsq.example", "TWO.nsq.example."]


def listed(server: Server) -> list[str]:
    """The broadcast addresses that nsqlookupd returns."""
    return [found["broadcast_address"] for found in server.get_json("/nodes")["producers"]]


def test_a_peer_cannot_register_another_address(tmp_path: Path) -> None:
    """With --allow-broadcast-address, other addresses get E_INVALID; without, all are accepted."""
    flags = ("--allow-broadcast-address=peer", "--allow-broadcast-address=*.nsq.example")
    with spawn_nsqlookupd(tmp_path, *flags) as server:
        for fake in FAKES:
            with LookupPeer(server) as peer:
                assert peer.identify(fake).startswith(b"E_INVALID IDENTIFY broadcast"), fake
                assert b"" == peer.ask(b"REGISTER t\n")
                assert [] == listed(server)
        for ports in ((0, 4151), (4150, 65536), (-1, 4151), (4150, 1 << 62)):
            with LookupPeer(server) as peer:
                assert peer.identify("127.0.0.1", *ports).startswith(b"E_"), ports
        assert 404 == server.request("GET", "/lookup?topic=t")[0]
        for honest in HONEST:
            with LookupPeer(server) as peer:
                assert b"OK" in peer.identify(honest) + peer.ask(b"REGISTER t\n")
                assert honest in listed(server)
    with spawn_nsqlookupd(tmp_path, name="open") as server, LookupPeer(server) as peer:
        assert b"OK" in peer.identify("169.254.169.254") + peer.ask(b"REGISTER t\n")
        assert ["169.254.169.254"] == listed(server)
