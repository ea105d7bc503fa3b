"""What lies between a connection's commands and its socket: TLS, compression, or both.

Layers of bytes without a socket: what arrived is fed in at the bottom, commands are read at the
top; what is to be sent is sealed from the top down, a whole flush at a time.

1. Bytes that arrived before a layer was there are held for that layer, and read by nobody else.
2. Reading is pulled, piece by piece; a reader that stops has inflated nothing for nobody.
3. Whatever is wrong with the bytes is a `BrokenLayer`: the connection cannot go on.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable
from typing import Final

from sparq.protocol.compression import Buffer, Compression, CompressionError

RECORD_BYTES: Final = 16 << 10
"""What a record of TLS holds at most, and what one read of it gives."""

READ_BYTES: Final = 64 << 10
"""Records are put together until there is so much: the parser likes long chunks."""


class BrokenLayer(Exception):
    """The peer's bytes are not what was agreed."""


class TlsLayer:
    """The server's side of TLS.

    Attributes:
        ended: the client has said that nothing follows (close_notify).
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.ended = False
        self._arrived, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._arrived, self._outgoing, server_side=True)

    def feed(self, data: Buffer) -> None:
        """Keep what arrived; nothing behind the client's close_notify."""
        if not self.ended:
            self._arrived.write(data)

    def shake_hands(self) -> bool:
        """Go on with the handshake; True when it is done.

        Raises:
            BrokenLayer: it failed; `outgoing` tells the client.
        """
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ValueError) as error:
            raise BrokenLayer(str(error)) from error
        return True

    def outgoing(self) -> bytes:
        """What the layer itself has to send: handshake, alerts."""
        return self._outgoing.read()

    def read(self) -> bytes:
        """The next plain bytes; empty when more has to arrive.

        Raises:
            BrokenLayer: a record is damaged; `outgoing` tells the client.
        """
        pieces: list[bytes] = []
        size = 0
        try:
            while size < READ_BYTES and not self.ended:
                piece = self.connection.read(RECORD_BYTES)
                self.ended = not piece
                pieces.append(piece)
                size += len(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            # What came before the damage counts; the next read meets it again.
            if not pieces:
                raise BrokenLayer(str(error)) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def seal(self, data: Buffer) -> bytes:
        """The records of some plain bytes.

        Raises:
            BrokenLayer: the layer is closed.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[self.connection.write(left) :]
        except ssl.SSLError as error:
            raise BrokenLayer(str(error)) from error
        return self._outgoing.read()

    def close(self) -> bytes:
        """Say that nothing follows; what is to be sent for it."""
        # The client's own close_notify is not waited for.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self.connection.unwrap()
        return self._outgoing.read()


class Layers:
    """The layers of one connection, TLS below compression."""

    def __init__(self) -> None:
        self._held = b""
        self.tls: TlsLayer | None = None
        self._compression: Compression | None = None

    @property
    def ended(self) -> bool:
        """Whether the client has closed one of the layers: nothing follows."""
        tls, compression = self.tls, self._compression
        return (tls is not None and tls.ended) or (compression is not None and compression.ended)

    def hold(self, data: bytes) -> None:
        """Keep what was read already, and belongs to the next layer."""
        self._held = data

    def add_tls(self, tls: TlsLayer) -> None:
        """Put TLS at the bottom; what was held is its first input."""
        tls.feed(self._held)
        self.tls, self._held = tls, b""

    def add_compression(self, compression: Compression) -> None:
        """Put compression on top; what was held is its first input."""
        compression.feed(self._held)
        self._compression, self._held = compression, b""

    def feed(self, data: bytes) -> None:
        """Take what arrived at the socket."""
        if self.tls is not None:
            self.tls.feed(data)
        elif self._compression is not None:
            self._compression.feed(data)
        else:
            self._held += data

    def read(self) -> bytes:
        """The next bytes of commands; empty when more has to arrive.

        Raises:
            BrokenLayer: what arrived is damaged.
        """
        tls, compression = self.tls, self._compression
        if compression is None:
            return b"" if tls is None else tls.read()
        try:
            while not (data := compression.read()):
                if tls is None or not (sealed := tls.read()):
                    break
                compression.feed(sealed)
        except CompressionError as error:
            raise BrokenLayer(str(error)) from error
        return data

    def seal(self, parts: Iterable[Buffer]) -> bytes:
        """Bytes for the socket that carry all of these.

        Raises:
            BrokenLayer: a layer is closed.
        """
        if self._compression is not None:
            try:
                data = self._compression.compress(parts)
            except CompressionError as error:
                raise BrokenLayer(str(error)) from error
        else:
            data = b"".join(parts)
        return data if self.tls is None else self.tls.seal(data)

    def outgoing(self) -> bytes:
        """What the layers themselves have to send."""
        return b"" if self.tls is None else self.tls.outgoing()

    def close(self) -> bytes:
        """Say that nothing follows; what is to be sent for it."""
        return b"" if self.tls is None else self.tls.close()
