"""Flags of statsd, checked with a UDP socket that records packets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.flag_rows import FlagDaemons, FlagServer, Row
from tests.support.waiting import wait_for

PUSHES = 3


class Statsd:
    """Records the packets that arrive."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while packet := self._socket.recv(1 << 16):
            self.packets.append(packet)

    def close(self) -> None:
        """Stop by sending an empty packet."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            host, _, port = self.place.partition(":")
            last.sendto(b"", (host, int(port)))
        self._thread.join()
        self._socket.close()


def pushed(server: FlagServer) -> list[str]:
    """Return the packets of this nsqd as text, after several pushes of a topic."""
    statsd: Statsd = server.helpers["statsd"]
    prefix = f"here.{server.places['name']}_{server.http_port}.".replace(".example", "_example")
    for topic in ("a%23ephemeral", "z"):
        server.post(f"/topic/create?topic={topic}")
        server.post(f"/channel/create?topic={topic}&channel=c")
    server.post("/channel/create?topic=z&channel=c%23ephemeral")
    seen = len(statsd.packets)

    def of_this() -> list[str]:
        return [p.decode() for p in statsd.packets[seen:] if p.startswith(prefix.encode())]

    wait_for(lambda: "".join(of_this()).count(f"{prefix}topic.z.depth:0|g\n") >= PUSHES)
    return of_this()


def statsd_address(server: FlagServer) -> None:
    """Statistics arrive at this address with the prefix, long before the default 60 s."""
    assert ".topic.z.channel.c.depth:0|g\n" in "".join(pushed(server))


def statsd_mem_stats(server: FlagServer) -> None:
    """No memory statistics are sent."""
    assert ".mem." not in "".join(pushed(server))


def statsd_udp_packet_size(server: FlagServer) -> None:
    """No packet is larger; each consists of whole lines, and some have several."""
    packets = pushed(server)
    assert max(map(len, packets)) <= 130
    assert all(packet.endswith("\n") for packet in packets)
    assert any(packet.count("\n") > 1 for packet in packets)


def statsd_exclude_ephemeral(server: FlagServer) -> None:
    """Ephemeral topics and channels are left out."""
    assert "ephemeral" not in "".join(pushed(server))


GROUPS = {
    "statsd": [
        Row("broadcast-address", "{name}", statsd_address),
        Row("statsd-address", "{statsd}", statsd_address),
        Row("statsd-interval", "300ms", statsd_address),
        Row("statsd-prefix", "here.%s", statsd_address),
        Row("statsd-mem-stats", False, statsd_mem_stats),
        Row("statsd-udp-packet-size", 130, statsd_udp_packet_size),
        Row("statsd-exclude-ephemeral", True, statsd_exclude_ephemeral),
    ]
}


@contextlib.contextmanager
def neighbours(daemons: FlagDaemons) -> Iterator[None]:
    """Run a statsd server."""
    statsd = Statsd()
    daemons.helpers["statsd"] = statsd
    daemons.places["statsd"] = statsd.place
    try:
        yield
    finally:
        statsd.close()
