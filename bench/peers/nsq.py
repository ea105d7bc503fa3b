"""NSQ's protocol for the bench; sparq and Go's nsqd differ only in their start.

Go's nsqd is the path in NSQD_GO, or an `nsqd` on the PATH that is not sparq's. Its best case is in
memory, so the targets are ratios to that. `--mem-queue-size=0` and `--sync-every=1` make it as
durable as it can be: it sends OK before it syncs, but processes the next message only after that.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.support.servers import free_port

from bench.peers.peer import (
    Consuming,
    Deliveries,
    Dialogue,
    Peer,
    Program,
    Publishing,
    RefusedError,
    counting,
)

MAGIC = b"  V2"
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
FRAME_OVERHEAD, FIN_SIZE = 34, 21
ID = slice(18, 34)
STAMP = slice(FRAME_OVERHEAD, FRAME_OVERHEAD + 8)
LEAVE_SECONDS = 10.0
POLL_SECONDS = 0.005
IDENTIFY = json.dumps({"heartbeat_interval": 60_000}).encode()
HELLO = MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(IDENTIFY)) + IDENTIFY


class Oks:
    """Counts OKs, which all have the same size."""

    def __init__(self) -> None:
        self._received = 0

    def __call__(self, data: bytes) -> int:
        """Return the number of OKs completed by this data.

        Raises:
            RefusedError: nsqd has sent an error frame.
        """
        if b"E_" in data:
            raise RefusedError(data.decode(errors="replace")[:200])
        answers, self._received = divmod(self._received + len(data), len(OK))
        return answers


class NsqAcknowledger:
    """Turns message frames of one size into FINs, one read at a time."""

    is_stamped = False

    def __init__(self, size: int) -> None:
        self._width = size + FRAME_OVERHEAD
        self._rest = b""

    def take(self, data: bytes) -> Deliveries:
        """Make a FIN for each complete frame."""
        if self._rest:
            data = self._rest + data
        count = len(data) // self._width
        self._rest = data[count * self._width :]
        if not count:
            return Deliveries(0, b"")
        frames = np.frombuffer(data, np.uint8, count * self._width).reshape(count, self._width)
        fins = np.empty((count, FIN_SIZE), np.uint8)
        fins[:, :4] = np.frombuffer(b"FIN ", np.uint8)
        fins[:, 4:20] = frames[:, ID]
        fins[:, 20] = ord("\n")
        stamps = stamps_of(frames[:, STAMP]) if self.is_stamped else ()
        return Deliveries(count, fins.tobytes(), stamps)


def stamps_of(columns: np.ndarray) -> list[int]:
    """Eight columns of bytes as big-endian integers, one per row."""
    found: list[int] = np.ascontiguousarray(columns).view(">i8").ravel().tolist()
    return found


class NsqPeer(Peer):
    """A daemon with nsqd's flags."""

    can = frozenset({"batch", "channels", "http"})
    command: Sequence[str] = ()

    def make_program(self) -> Program:
        """The daemon, with its data in the folder."""
        self.http_port = free_port()
        places = (
            f"--tcp-address=127.0.0.1:{self.port}",
            f"--http-address=127.0.0.1:{self.http_port}",
            "--broadcast-address=127.0.0.1",
            f"--data-path={self.folder}",
        )
        return Program((*self.command, *places, *self.flags), self.folder, self.port)

    def start(self) -> None:
        """Start, and wait until it answers over HTTP, too."""
        super().start()
        deadline = time.monotonic() + LEAVE_SECONDS
        while True:
            try:
                self.request("GET", "/ping")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def request(self, method: str, path: str) -> str:
        """Send a request, and return the answer's body.

        Raises:
            RefusedError: the status is not 200.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            connection.close()
        if answer.status != 200:
            raise RefusedError(f"{path}: {answer.status} {text}")
        return text

    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """Create the topic and its channels over HTTP."""
        self.request("POST", f"/topic/create?topic={topic}")
        for channel in channels:
            self.request("POST", f"/channel/create?topic={topic}&channel={channel}")

    def consumers(self, topic: str) -> int:
        """Number of consumers of all channels of a topic."""
        path = f"/stats?format=json&include_clients=false&topic={topic}"
        stats = json.loads(self.request("GET", path))
        return sum(
            channel["client_count"] for found in stats["topics"] for channel in found["channels"]
        )

    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Delete the topic with its channels when all consumers have left.

        Go's nsqd panics if FINs arrive while a topic is deleted (`inFlightPqueue.Swap`).
        """
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.consumers(topic) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self.request("POST", f"/topic/delete?topic={topic}")

    def hello(self) -> Dialogue:
        """Open a connection; its first heartbeat arrives only after the run."""
        dialogue = Dialogue(self.port)
        self.ask(dialogue, HELLO)
        return dialogue

    def ask(self, dialogue: Dialogue, command: bytes) -> None:
        """Send a command, and check that the answer is OK."""
        dialogue.send(command)
        size = struct.unpack(">i", dialogue.exactly(4))[0]
        answer = dialogue.exactly(size)
        if answer != OK[4:]:
            raise RefusedError(answer.decode(errors="replace"))

    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """Publish by PUB and MPUB."""
        one, many = (f"{name} {topic}\n".encode() for name in ("PUB", "MPUB"))
        return Publishing(
            self.hello().done(),
            Oks(),
            lambda body: one + sized(body),
            lambda body, count: many + sized(batch(body, count)),
        )

    def publishing_http(self, topic: str) -> Publishing:
        """Publish by POST /pub and, in binary mode, /mpub."""
        return Publishing(
            Dialogue(self.http_port).done(),
            counting(b"HTTP/1.1 200", b"HTTP/1.1 4", b"HTTP/1.1 5"),
            lambda body: http_post(f"/pub?topic={topic}", body),
            lambda body, count: http_post(f"/mpub?topic={topic}&binary=true", batch(body, count)),
        )

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Send SUB now; RDY starts the deliveries."""
        dialogue = self.hello()
        self.ask(dialogue, f"SUB {topic} {channel}\n".encode())
        return Consuming(dialogue.done(), f"RDY {ready}\n".encode(), NsqAcknowledger(size))


def sized(body: bytes) -> bytes:
    """The body, preceded by its size."""
    return struct.pack(">i", len(body)) + body


def batch(body: bytes, count: int) -> bytes:
    """The body of an MPUB of equal messages."""
    return struct.pack(">i", count) + sized(body) * count


def http_post(path: str, body: bytes) -> bytes:
    """A complete request on a persistent connection."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Sparq(NsqPeer):
    """sparq with its defaults: fdatasync before each OK."""

    command: Sequence[str] = (sys.executable, "-m", "sparq.nsqd")


MEMORY_MESSAGES = 600_000
"""More than any line queues, but not so many that Go's garbage collector scans empty queues."""


@functools.cache
def go_path() -> str:
    """Path of Go's nsqd; "" if there is none."""
    for candidate in (os.environ.get("NSQD_GO", ""), shutil.which("nsqd") or ""):
        if candidate and Path(candidate).is_file():
            said = subprocess.run([candidate, "--version"], capture_output=True, check=False)
            if b"built w/go" in said.stdout:
                return str(Path(candidate).resolve())
    return ""


class GoNsqd(NsqPeer):
    """Go's nsqd."""

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run; "" if it can."""
        return "" if go_path() else "needs Go's nsqd (NSQD_GO=path)"

    def make_program(self) -> Program:
        """Go's nsqd; its path is determined only now."""
        self.command = (go_path(), "--log-level=error")
        return super().make_program()
