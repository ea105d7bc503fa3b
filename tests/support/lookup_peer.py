"""A simulated nsqd at the TCP port of an nsqlookupd."""

from __future__ import annotations

import json
import socket
import struct
from typing import Protocol, Self


class Listening(Protocol):
    """A server that a peer connects to."""

    @property
    def tcp_port(self) -> int: ...


class LookupPeer:
    """A simulated nsqd's connection to an nsqlookupd."""

    def __init__(self, server: Listening) -> None:
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
