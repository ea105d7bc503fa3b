"""A disk without space: publishes are refused with the reason, consumers continue.

When there is space again, publishes work again. The tests use real nsqd processes on a real, small
file system (P7; NSQ's losses L5). Every body is random and unique; the delivered bodies are
compared with the acknowledged ones.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparq.cluster.figures import read
from sparq.protocol.commands import dpub, mpub, pub, rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, Message, V2Client, drain, fin_each
from tests.support.waiting import wait_for

MIB = 1 << 20
REASON = "no space left on device"
CLOSE_WAIT = (0, b"CLOSE_WAIT")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 24 MiB, 16 MiB of which another program uses."""
    with SmallDisk(tmp_path / "nsqd", "24m") as disk:
        disk.ballast(16 * MIB)
        yield disk


@pytest.fixture
def server(disk: SmallDisk, tmp_path: Path) -> Iterator[NsqdServer]:
    """An nsqd on that disk, with small files, so that finished ones are deleted."""
    flags = (f"--max-bytes-per-file={MIB}", "--msg-timeout=10m")
    with spawn_nsqd(tmp_path, *flags, prefix=disk.prefix) as server:
        server.post("/topic/create?topic=t")
        server.post("/channel/create?topic=t&channel=c")
        yield server


@dataclass
class Publisher:
    """Publishes with every command, and records which bodies were acknowledged or refused."""

    server: NsqdServer
    line: V2Client
    topic: str = "t"
    acknowledged: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    reason: str = REASON
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def bodies(self, count: int, size: int) -> list[bytes]:
        return [self.chance.randbytes(size) for _ in range(count)]

    def _note(self, answer: tuple[int, bytes], refusal: tuple[int, bytes], *sent: bytes) -> bool:
        assert answer in ((0, b"OK"), (200, b"OK"), refusal)
        (self.refused if answer == refusal else self.acknowledged).extend(sent)
        return answer != refusal

    def _tcp(self, name: str, command: bytes, *sent: bytes) -> bool:
        refusal = f"E_{name}_FAILED {name} failed {self.reason}"
        return self._note(self.line.ask(command), (1, refusal.encode()), *sent)

    def _http(self, path: str, data: bytes, *sent: bytes) -> bool:
        refusal = f'{{"message":"PUB_FAILED: {self.reason}"}}'
        answer = self.server.request("POST", f"{path}?topic={self.topic}", data)
        return self._note(answer, (503, refusal.encode()), *sent)

    def pub(self, size: int = 3000) -> bool:
        """PUB; returns whether it was acknowledged."""
        (body,) = self.bodies(1, size)
        return self._tcp("PUB", pub(self.topic, body), body)

    def dpub(self) -> bool:
        """DPUB with a delay of 1 ms."""
        (body,) = self.bodies(1, 3000)
        return self._tcp("DPUB", dpub(self.topic, 1, body), body)

    def mpub(self, count: int = 25, size: int = 3000) -> bool:
        """MPUB."""
        bodies = self.bodies(count, size)
        return self._tcp("MPUB", mpub(self.topic, bodies), *bodies)

    def http_pub(self) -> bool:
        """POST /pub."""
        (body,) = self.bodies(1, 3000)
        return self._http("/pub", body, body)

    def http_mpub(self) -> bool:
        """POST /mpub, binary."""
        bodies = self.bodies(25, 3000)
        items = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        data = struct.pack(">i", len(bodies)) + items
        answer = self.server.request("POST", f"/mpub?topic={self.topic}&binary=true", data)
        refusal = f'{{"message":"PUB_FAILED: {self.reason}"}}'
        return self._note(answer, (503, refusal.encode()), *bodies)

    def small_pub(self) -> bool:
        """PUB of 12 bytes, about the smallest body that is still unique."""
        return self.pub(12)

    def forms(self) -> list[Callable[[], bool]]:
        return [self.mpub, self.http_mpub, self.dpub, self.pub, self.http_pub, self.small_pub]

    def fill(self) -> None:
        """Publish with each command until it is refused."""
        for form in self.forms():
            for _ in range(2000):
                if not form():
                    break
            else:
                raise AssertionError("the disk does not fill up")


@pytest.fixture
def publisher(server: NsqdServer) -> Iterator[Publisher]:
    with V2Client(server) as line:
        yield Publisher(server, line)


def ping(server: NsqdServer) -> tuple[int, bytes]:
    return server.request("GET", "/ping")


def node_state(server: NsqdServer) -> str:
    """The node's state, as `sparq admin list --nodes`, `sparq top` and nsqadmin show it."""
    return read(server.request("GET", "/stats?format=json")[1]).state


def receive_all(server: NsqdServer, line: V2Client, count: int) -> list[Message]:
    """Subscribe and receive the channel's `count` messages; finish none."""
    assert line.ask(sub("t", "c")) == OK
    line.send(rdy(2500))
    messages = line.messages(count)
    assert server.channel("t", "c")["depth"] == 0
    return messages


@pytest.mark.behaviour("TestHealth", "TestChannelHealth")
def test_every_form_of_publish_is_refused_with_the_reason(
    server: NsqdServer, disk: SmallDisk, publisher: Publisher
) -> None:
    """PUB, MPUB, DPUB, /pub and /mpub are refused with the reason, which /ping and /stats report.

    The connection stays open. Exactly the acknowledged messages are delivered. When there is space
    again, publishing works without further action.
    """
    assert ping(server) == (200, b"OK")
    publisher.fill()

    assert [form() for form in publisher.forms()] == [False] * 6
    status, text = ping(server)
    assert (status, text[: len(f"NOK - {REASON}; ")]) == (500, f"NOK - {REASON}; ".encode())
    assert server.request("GET", "/live") == (200, b"OK")
    assert server.get_json("/stats?format=json")["health"] == text.decode()
    assert len(publisher.acknowledged) > 1000
    assert server.log_text.count(REASON) < 20, "one line each time it begins, not one a refusal"

    server.restart()  # kill -9 on the full disk
    with V2Client(server) as line:
        publisher.line = line
        assert not publisher.mpub()
        disk.drop_ballast()
        assert [form() for form in publisher.forms()] == [True] * 6
        assert ping(server) == (200, b"OK")
    assert Counter(drain(server, "t", "c")) == Counter(publisher.acknowledged)


def test_fins_are_recorded_while_publishers_retry(server: NsqdServer, publisher: Publisher) -> None:
    """Publishers cannot use the space reserved for the ledger.

    Each FIN before an answered command is in force after kill -9, however often publishes are
    tried, and no other message is finished.
    """
    publisher.fill()
    finished = set()
    with V2Client(server) as line:
        messages = receive_all(server, line, len(publisher.acknowledged))
        for number, message in enumerate(messages[::2]):
            line.send(fin_each([message]))
            publisher.small_pub()
            if number % 10 == 0:
                publisher.mpub(4)
            finished.add(message.body)
        assert line.ask(b"CLS\n") == CLOSE_WAIT
        server.restart()

    left = Counter(publisher.acknowledged) - Counter(finished)
    assert len(finished) > 500
    assert Counter(drain(server, "t", "c")) == left


def test_health_recovers_without_a_publish(
    server: NsqdServer, disk: SmallDisk, publisher: Publisher
) -> None:
    """/ping reports OK soon after there is space, without a publish.

    A load balancer that uses /ping to stop publishes needs that. Until then, lists of nodes do not
    say that the node is up.
    """
    publisher.fill()
    assert ping(server)[0] == 500
    assert node_state(server) == "disk full"
    disk.drop_ballast()

    wait_for(lambda: ping(server) == (200, b"OK"))
    assert node_state(server) == "up"

    assert [form() for form in publisher.forms()] == [True] * 6
