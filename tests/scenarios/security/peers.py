"""Hostile servers that a daemon queries: an auth server and an nsqlookupd with a given answer text.

Each runs in a thread, accepts any number of connections, and ends with its block.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from typing import Self

SECONDS = 30.0


class Fake:
    """A server on a free loopback port; `answered` counts its answers."""

    def __init__(self) -> None:
        self.answered = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._open = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        with contextlib.suppress(OSError):
            socket.create_connection(self._socket.getsockname(), timeout=SECONDS).close()
        self._thread.join(SECONDS)
        self._socket.close()

    def _run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if not self._open:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(SECONDS)
            self.talk(connection)

    def talk(self, connection: socket.socket) -> None:
        """Serve one connection."""


class FakeAuthd(Fake):
    """Answers each request with `text` in every field, or in place of the JSON."""

    text = ""

    def talk(self, connection: socket.socket) -> None:
        """Serve one request."""
        while b"\r\n\r\n" not in connection.recv(1 << 16):
            pass
        entry = {"topic": self.text, "channels": [self.text], "permissions": [self.text]}
        bodies = [
            json.dumps({"ttl": 60, "identity": self.text, "authorizations": [entry]}).encode(),
            json.dumps({"ttl": self.text}).encode(),
            self.text.encode(),
        ]
        body = bodies[self.answered % len(bodies)]
        self.answered += 1
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


class FakeLookupd(Fake):
    """Answers IDENTIFY with `text` in every field, and other commands with it as an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def talk(self, connection: socket.socket) -> None:
        """Serve one nsqd until it disconnects."""
        while data := connection.recv(1 << 16):
            facts = dict.fromkeys(("broadcast_address", "version", "hostname"), self.text)
            body = json.dumps({**facts, "tcp_port": 1, "http_port": 2}).encode()
            for _ in range(max(1, data.count(b"\n"))):
                answer = f"E_{self.text}".encode() if self.answered % 3 else body
                connection.sendall(struct.pack(">i", len(answer)) + answer)
                self.answered += 1
