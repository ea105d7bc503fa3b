"""The interface between the bench and a broker: its processes, and the bytes of its protocol.

1. A peer runs on a free loopback port, with its data below the bench's folder, and ends with it.
2. Topics, queues and log-ins are set up over blocking sockets, before anything is measured.
3. During a measurement a peer consists of functions over bytes: requests are built before,
   `answers` counts the answers, and an `Acknowledger` turns deliveries into acknowledgements. No
   peer uses the event loop.
4. Each message is acknowledged separately, as in NSQ, even if a broker can acknowledge several.
"""

from __future__ import annotations

import abc
import contextlib
import os
import random
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.support.servers import free_port

from bench.measure import cpu_seconds, memory_mib
from sparq.program.supervised import SupervisedProcess

START_SECONDS = 300.0
SOCKET_BYTES = 1 << 20


class RefusedError(Exception):
    """A broker answered with an error."""


def random_body(size: int) -> bytes:
    """A message body of random bytes, which does not compress."""
    return random.Random(7).randbytes(size)


class Deliveries(NamedTuple):
    """The result of one read: messages, their acknowledgements as bytes, their stamps if wanted."""

    messages: int
    reply: bytes
    stamps: Sequence[int] = ()


class Acknowledger(Protocol):
    """Turns the bytes of one consumer's connection into acknowledgements."""

    is_stamped: bool
    """Whether the first eight bytes of each body are to be read."""

    def take(self, data: bytes) -> Deliveries:
        """Process received bytes, in pieces of any size."""


class PatternAcknowledger:
    """Acknowledges each message of `size` bytes by a reply with its id.

    Args:
        head: pattern of what precedes a body; its only group is the id.
        reply: has `%s` for the id.
    """

    is_stamped = False

    def __init__(self, head: bytes, size: int, reply: bytes) -> None:
        body = rb"%d\r\n(.{8}).{%d}\r\n" % (size, size - 8)
        self._pattern = re.compile(head + body, re.DOTALL)
        self._reply = reply
        self._rest = b""

    def take(self, data: bytes) -> Deliveries:
        """Acknowledge the complete messages."""
        data = self._rest + data
        found = list(self._pattern.finditer(data))
        self._rest = data[found[-1].end() :] if found else data
        reply = b"".join([self._reply % match[1] for match in found])
        stamps = [int.from_bytes(match[2], "big") for match in found] if self.is_stamped else ()
        return Deliveries(len(found), reply, stamps)


def no_batches(body: bytes, count: int) -> bytes:
    """`Publishing.many` of a broker that publishes one message at a time."""
    raise RefusedError("publishes one message at a time")


def counting(mark: bytes, *errors: bytes) -> Callable[[bytes], int]:
    """`Publishing.answers` of a broker whose answers each have a mark, and whose errors another."""

    def count(data: bytes) -> int:
        if any(error in data for error in errors):
            raise RefusedError(data.decode(errors="replace")[:200])
        return data.count(mark)

    return count


class Publishing(NamedTuple):
    """A connection that is ready to publish.

    Attributes:
        answers: counts the requests that bytes from the server answer; raises RefusedError.
        one: the request that publishes a body.
        many: the request that publishes a body several times.
    """

    sock: socket.socket
    answers: Callable[[bytes], int]
    one: Callable[[bytes], bytes]
    many: Callable[[bytes, int], bytes] = no_batches


class Consuming(NamedTuple):
    """A connection that is ready to consume once `begin` is sent."""

    sock: socket.socket
    begin: bytes
    acknowledger: Acknowledger


class Dialogue:
    """A blocking connection with requests and answers in turn, for the setup before a run."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self.sock.sendall(data)

    def exactly(self, size: int) -> bytes:
        """Read exactly this number of bytes."""
        while len(self._data) < size:
            self._receive()
        found, self._data = self._data[:size], self._data[size:]
        return found

    def line(self) -> bytes:
        """Read a line, without its end."""
        while b"\r\n" not in self._data:
            self._receive()
        found, _, self._data = self._data.partition(b"\r\n")
        return found

    def _receive(self) -> None:
        data = self.sock.recv(65_536)
        if not data:
            raise RefusedError("the broker closed the connection")
        self._data += data

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def done(self) -> socket.socket:
        """Return the socket, non-blocking for the event loop."""
        assert not self._data, self._data[:200]
        self.sock.setblocking(False)
        return self.sock


class Program(SupervisedProcess):
    """A server process that listens on `port` once it has started, and all that it starts."""

    def __init__(self, command: Sequence[str], folder: Path, port: int) -> None:
        variables, log = dict(os.environ), folder / "output.txt"
        super().__init__(command[0], [*command], log, environment=variables, folder=folder)
        self.port = port

    def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            RefusedError: it ended or did not listen in time; with the end of its output.
        """
        super().start()
        if not self.wait_until(self._listens, START_SECONDS):
            self.kill()
            text = self.log.read_text(errors="replace")[-2000:]
            raise RefusedError(f"{self.name} did not start:\n{text}")

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def pids(self) -> list[int]:
        """Return the process and its descendants."""
        found = [self.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found


class Peer(abc.ABC):
    """A broker under one setting, which `flags` make."""

    can: frozenset[str] = frozenset()
    """Of "batch", "channels" and "http": what a broker must be able to do for some lines."""

    needs = ""
    """The program that it needs; "": none."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.flags = flags
        self.port = free_port()
        self.program = self.make_program()

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run here; "" if it can."""
        return f"needs {cls.needs}" if cls.needs and not shutil.which(cls.needs) else ""

    @abc.abstractmethod
    def make_program(self) -> Program:
        """Return the program that runs the server."""

    def start(self) -> None:
        """Start the server."""
        self.program.start()

    def close(self) -> None:
        """Kill the server and delete its data."""
        self.program.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server; keep its data."""
        self.program.kill()

    def cpu_seconds(self) -> float:
        """CPU time of all its processes."""
        return sum(map(cpu_seconds, self.program.pids()))

    def cost(self) -> float:
        """The measured work of the server so far: CPU seconds, unless a subclass counts others."""
        return self.cpu_seconds()

    def memory_mib(self) -> float:
        """Resident memory of all its processes."""
        return sum(map(memory_mib, self.program.pids()))

    @abc.abstractmethod
    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """Create a topic with channels that each allow `ready` messages in flight."""

    @abc.abstractmethod
    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Delete the topic, as far as the broker can."""

    @abc.abstractmethod
    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """Connect for requests of one kind: `many` if `batches`, else `one`."""

    @abc.abstractmethod
    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Connect to consume messages of one size, with at most `ready` in flight."""
