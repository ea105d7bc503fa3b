"""nsqd's side of a handshake without sockets: bytes in, bytes out, to test `wire.client`.

It accepts the features in ``facts``, upgrades in the order of NSQ's specification, and records
every command with the layers through which it arrived.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any

from sparq.protocol.compression import Compression, Deflate, Snappy


def frame(kind: int, data: bytes) -> bytes:
    """A frame as nsqd sends it."""
    return struct.pack(">ii", len(data) + 4, kind) + data


class Counterpart:
    """The nsqd's side of one connection.

    Attributes:
        received: (layers, command line, body) of each command, in order.
        layers: the active layers: "tls", "snappy", "deflate".
        after_identify: bytes sent unencrypted directly after the answer to IDENTIFY.
        after_handshake: frames sent directly after the last answer of the handshake.
        before_auth: frames sent before the answer to AUTH.
        ended: the client has closed TLS (close_notify).
    """

    def __init__(self, facts: dict[str, Any], context: ssl.SSLContext | None = None) -> None:
        self.facts = facts
        self.received: list[tuple[tuple[str, ...], bytes, bytes]] = []
        self.layers: tuple[str, ...] = ()
        self.after_identify = b""
        self.after_handshake = b""
        self.before_auth = b""
        self.ended = False
        self.on_auth: Callable[[bytes], bytes] = lambda secret: frame(0, b'{"identity":"me"}')
        self._context = context
        self._compression: Compression | None = None
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._shaken = False
        self._plain = b""
        self._out = b""
        self._steps = self._serve()
        next(self._steps)

    def receive(self, data: bytes) -> bytes:
        """Process bytes from the client; return the bytes to send to it."""
        if self._tls is not None:
            self._arrived.write(data)
        else:
            self._inflate(data)
        if self._tls is not None:
            self._decrypt()
        next(self._steps)
        out, self._out = self._out, b""
        return out

    def _decrypt(self) -> None:
        assert self._tls is not None
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self.send(frame(0, b"OK"))
                self._compress()
            while data := self._tls.read(1 << 20):
                self._inflate(data)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        finally:
            self._out += self._leaving.read()

    def _inflate(self, data: bytes) -> None:
        if self._compression is None:
            self._plain += data
            return
        self._compression.feed(data)
        while piece := self._compression.read():
            self._plain += piece

    def close_tls(self) -> bytes:
        """Close TLS; return the bytes of the close_notify."""
        assert self._tls is not None
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._leaving.read()

    def send(self, data: bytes) -> None:
        """Queue plain bytes, encoded by the active layers."""
        if self._compression is not None:
            data = self._compression.seal([data])
        if self._tls is None:
            self._out += data
        else:
            self._tls.write(data)
            self._out += self._leaving.read()

    def _serve(self) -> Iterator[None]:
        yield from self._take(4)
        while True:
            line = yield from self._line()
            body = b""
            if line in (b"IDENTIFY", b"AUTH"):
                (size,) = struct.unpack(">i", (yield from self._take(4)))
                body = yield from self._take(size)
            self.received.append((self.layers, line, body))
            if line == b"IDENTIFY":
                self._identified(json.loads(body))
            elif line == b"AUTH":
                self.send(self.before_auth + self.on_auth(body) + self.after_handshake)

    def _identified(self, asked: dict[str, Any]) -> None:
        self.send(frame(0, json.dumps(self.facts).encode()) + self.after_identify)
        self._asked = asked
        if asked["tls_v1"] and self.facts.get("tls_v1"):
            assert self._context is not None
            self._tls = self._context.wrap_bio(self._arrived, self._leaving, server_side=True)
            self.layers = ("tls",)
        else:
            self._compress()

    def _compress(self) -> None:
        for name in ("snappy", "deflate"):
            if self._asked[name] and self.facts.get(name):
                self._compression = Snappy() if name == "snappy" else Deflate()
                self.layers += (name,)
                self.send(frame(0, b"OK"))
        if not self.facts.get("auth_required"):
            self.send(self.after_handshake)

    def _take(self, size: int) -> Any:
        while len(self._plain) < size:
            yield
        taken, self._plain = self._plain[:size], self._plain[size:]
        return taken

    def _line(self) -> Any:
        while b"\n" not in self._plain:
            yield
        line, _, self._plain = self._plain.partition(b"\n")
        return line
