"""Helpers for hostile clients: connections, measurements of a daemon's memory, an honest client."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sparq.protocol.commands import identify, pub
from tests.support.servers import Server
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

SECONDS = 60.0


def raw(port: int, data: bytes = b"") -> V2Client:
    """Connect to any port and send only this data."""
    return V2Client(port, data, seconds=SECONDS)


def v2(server: Server) -> V2Client:
    """A V2 client that has sent its magic bytes."""
    return V2Client(server, seconds=SECONDS)


def introduced(server: Server, **asked: Any) -> tuple[V2Client, dict[str, Any]]:
    """Return a client after IDENTIFY, and nsqd's answer."""
    client = v2(server)
    body = json.dumps({"feature_negotiation": True, **asked}).encode()
    kind, answer = client.ask(identify(body))
    assert kind == 0, answer
    return client, json.loads(answer)


def sized(name: bytes, size: int) -> bytes:
    """Encode a command that announces a body of this size."""
    return name + struct.pack(">i", size)


def until(condition: Callable[[], object], seconds: float = SECONDS) -> float:
    """Wait for a condition; return the seconds it took."""
    began = time.monotonic()
    wait_for(condition, seconds, every=0.02)
    return time.monotonic() - began


def until_closed(connections: Iterable[V2Client], seconds: float = SECONDS) -> float:
    """Wait until the daemon has closed all connections; return the seconds it took."""
    left = list(connections)

    def all_closed() -> bool:
        left[:] = [connection for connection in left if connection.is_open()]
        return not left

    return until(all_closed, seconds)


# Memory


def memory_kib(server: Server, figure: str) -> int:
    """Return `VmRSS` or `VmHWM` of the daemon."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition(f"{figure}:")[2].split()[0])


class Growth:
    """A daemon's peak memory from now on, beyond its current memory."""

    def __init__(self, server: Server) -> None:
        self._server = server
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        self._before = memory_kib(server, "VmRSS")

    @property
    def mebibytes(self) -> float:
        """The growth until now."""
        return max(0, memory_kib(self._server, "VmHWM") - self._before) / 1024


def cpu_seconds(server: Server) -> float:
    """Return the CPU time that the daemon has used."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# An honest client


class HonestClient:
    """Publishes messages continuously, one at a time; each must be answered with OK.

    Attributes:
        count: number of OKs.
        failure: the error that ended it; None: no error.
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
        """Stop and disconnect."""
        self._stop.set()
        self._thread.join()
        self._connection.close()


@contextlib.contextmanager
def honest(server: Server, topic: str = "honest") -> Iterator[HonestClient]:
    """Run an honest client during the block: it must not fail, and must make progress."""
    found = HonestClient(server, topic)
    try:
        until(lambda: found.count > 10 or found.failure)
        before = found.count
        yield found
        until(lambda: found.count > before + 10 or found.failure)
    finally:
        found.close()
    assert found.failure is None, found.failure
