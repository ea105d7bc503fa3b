"""A proxy between a client and nsqd that records every byte the client sends.

It forwards everything unchanged.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

CHUNK_BYTES = 1 << 16


class Proxy:
    """Clients connect to `address`; `sent` has the bytes that each connection has sent so far."""

    def __init__(self, nsqd: str) -> None:
        host, port = nsqd.split(":")
        self._nsqd = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent: list[bytearray] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._nsqd)
                self._sockets += (client, server)
                self.sent.append(bytearray())
                self._start(self._up, client, server, self.sent[-1])
                self._start(self._down, client, server)

    def _up(self, client: socket.socket, server: socket.socket, sent: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(CHUNK_BYTES):
                sent += data
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    @staticmethod
    def _down(client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def conversation(self, word: bytes) -> bytes:
        """Return the bytes of the first connection that has sent `word`; b"" if none has."""
        return next((bytes(sent) for sent in self.sent if word in sent), b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()
