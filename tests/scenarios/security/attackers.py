"""What hostile clients share: raw sockets, a look at a daemon's memory, and an honest client."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from sparq.protocol.commands import identify, pub
from tests.support.servers import Server
from tests.support.waiting import wait_for

SECONDS = 60.0
MAGIC = b"  V2"
OK = (0, b"OK")
ERROR = 1


class Raw:
    """A connection that says exactly what it is told, and reads when it is told."""

    def __init__(self, port: int, data: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arrived = bytearray()
        if data:
            self.say(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat: its type and data."""
        while True:
            size, kind = struct.unpack(">ii", self._exactly(8))
            data = self._exactly(size - 4)
            if data != b"_heartbeat_":
                return kind, data

    def _exactly(self, size: int) -> bytes:
        while len(self._arrived) < size:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            self._arrived += data
        taken = bytes(self._arrived[:size])
        del self._arrived[:size]
        return taken

    def some(self) -> bytes:
        """What has come behind the last frame, or what comes next: bytes of any kind."""
        taken = bytes(self._arrived) or self.socket.recv(1 << 16)
        self._arrived.clear()
        return taken

    def ask(self, data: bytes) -> tuple[int, bytes]:
        """Say something; what comes next."""
        self.say(data)
        return self.frame()

    def is_open(self) -> bool:
        """Whether the other side has not closed yet; what it says is thrown away."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def v2(server: Server) -> Raw:
    """A client that has said its magic bytes."""
    return Raw(server.tcp_port, MAGIC)


def introduced(server: Server, **asked: Any) -> tuple[Raw, dict[str, Any]]:
    """A client behind IDENTIFY, and what it was granted."""
    client = v2(server)
    body = json.dumps({"feature_negotiation": True, **asked}).encode()
    kind, answer = client.ask(identify(body))
    assert kind == 0, answer
    return client, json.loads(answer)


def sized(name: bytes, size: int) -> bytes:
    """A command that announces a body of this size."""
    return name + struct.pack(">i", size)


def until(condition: Callable[[], object], seconds: float = SECONDS) -> float:
    """Wait for a condition; how long that took."""
    began = time.monotonic()
    wait_for(condition, seconds, every=0.02)
    return time.monotonic() - began


def until_closed(connections: Iterable[Raw], seconds: float = SECONDS) -> float:
    """Wait until the other side has closed all of them; how long the last one took."""
    left = list(connections)

    def all_closed() -> bool:
        left[:] = [connection for connection in left if connection.is_open()]
        return not left

    return until(all_closed, seconds)


def refuses(condition: Callable[[], object]) -> bool:
    """Whether it ends in a closed connection."""
    try:
        condition()
    except ConnectionError:
        return True
    return False


# Memory


def memory_kib(server: Server, figure: str) -> int:
    """`VmRSS` or `VmHWM` of the daemon."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition(f"{figure}:")[2].split()[0])


class Growth:
    """The most memory that a daemon needs from here on, beyond what it has now."""

    def __init__(self, server: Server) -> None:
        self._server = server
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        self._before = memory_kib(server, "VmRSS")

    @property
    def mebibytes(self) -> float:
        """Up to now."""
        return max(0, memory_kib(self._server, "VmHWM") - self._before) / 1024


def cpu_seconds(server: Server) -> float:
    """Processor time that the daemon has used."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# Somebody honest


class Honest:
    """Publishes one message after the other, all the while; each must be answered by OK.

    Attributes:
        count: how many were.
        failure: what went wrong; None: nothing.
    """

    def __init__(self, server: Server, topic: str) -> None:
        self.count = 0
        self.failure: Exception | None = None
        self._connection = v2(server)
        self._command = pub(topic, b"honest")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                assert self._connection.ask(self._command) == OK
                self.count += 1
                self._stop.wait(0.002)
        except Exception as error:
            self.failure = error

    def close(self) -> None:
        """Leave."""
        self._stop.set()
        self._thread.join()
        self._connection.socket.close()


@contextlib.contextmanager
def honest(server: Server, topic: str = "honest") -> Iterator[Honest]:
    """Somebody who must not be hurt, and who must get on, by what is done meanwhile."""
    found = Honest(server, topic)
    try:
        until(lambda: found.count > 10 or found.failure)
        before = found.count
        yield found
        until(lambda: found.count > before + 10 or found.failure)
    finally:
        found.close()
    assert found.failure is None, found.failure
