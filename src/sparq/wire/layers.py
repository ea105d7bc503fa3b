"""The layers between a socket and its commands or frames: TLS, compression, or both.

Bytes in, bytes out, for either end of a connection.

1. Output is compressed first and then encrypted; input is decrypted first and then decompressed.
2. Input is stored as it arrives; each ``read`` decodes at most about `compression.PIECE_BYTES`. So
   a decompression bomb uses only as much memory as its reader requests.
3. Bytes that arrived before a layer was added are passed to it with ``add_...``, and are read only
   through that layer.
4. Any invalid bytes raise `LayerError`: the connection cannot continue.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from sparq.protocol.compression import PIECE_BYTES, Buffer, Compression, CompressionError
from sparq.wire.errors import LayerError, tls_reason

TLS_VERSIONS: Final = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
"""The versions by their names in options."""

SEALED_BYTES: Final = 64 << 10
"""Plain bytes that are encrypted at a time."""


class Tls:
    """One end of a TLS connection.

    Args:
        context: the TLS context.
        host: the name that the server's certificate must have; None: no check of the name.
        is_server: whether this is the server's end.

    Attributes:
        ended: whether the peer has ended its data (close_notify).
        connection: the `ssl` object of the connection.
    """

    def __init__(
        self, context: ssl.SSLContext, host: str | None = None, *, is_server: bool = False
    ) -> None:
        self.ended = False
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._arrived, self._leaving, is_server, host)

    def shake_hands(self) -> bool:
        """Continue the handshake; True: it is complete, False: more input is needed.

        Raises:
            LayerError: it failed; ``output`` has the alert for the peer.
        """
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise LayerError(tls_reason(error)) from None
        except ValueError as error:  # a certificate that cannot be parsed at all
            raise LayerError(str(error)) from None
        return True

    def feed(self, data: Buffer) -> None:
        """Store input; input after the peer's close_notify is dropped."""
        if not self.ended:
            self._arrived.write(data)

    def output(self) -> bytes:
        """Return TLS' own bytes to send: handshake, alerts."""
        return self._leaving.read()

    def seal(self, data: Buffer) -> bytes:
        """Encrypt plain bytes; return their records and any other pending TLS output.

        Raises:
            LayerError: this end is closed.
        """
        rest, sealed = memoryview(data), []
        try:
            while rest:
                # Piece by piece: OpenSSL's buffer keeps the size that it once had.
                rest = rest[self.connection.write(rest[:SEALED_BYTES]) :]
                sealed.append(self._leaving.read())
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {tls_reason(error)}") from None
        return sealed[0] if len(sealed) == 1 else b"".join(sealed)

    def read(self) -> bytes:
        """Return the next plain bytes, at most `PIECE_BYTES`; empty: more input is needed.

        Raises:
            LayerError: a record is damaged, and no valid one came before it in this call.
        """
        room = memoryview(bytearray(PIECE_BYTES))
        return bytes(room[: self.read_into(room)])

    def read_into(self, room: memoryview) -> int:
        """Read plain bytes into `room`; return their number, 0: more input is needed.

        Raises:
            LayerError: as for ``read``.
        """
        # With a buffer it returns a count; typeshed declares only the form without one.
        read = cast(Callable[[int, memoryview], int], self.connection.read)
        size = 0
        try:
            while size < len(room) and not self.ended:  # a record at a time
                count = read(len(room) - size, room[size:])
                # No bytes: the peer's close_notify. If this end has sent its own as well, `ssl`
                # raises SSLZeroReturnError instead.
                self.ended = not count
                size += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            # Bytes before the damage are still returned; the next read raises the error.
            if not size:
                raise LayerError(f"TLS: {tls_reason(error)}") from None
        return size

    def close(self) -> bytes:
        """Return close_notify, to be sent last; the peer's close_notify is not awaited."""
        # `unwrap` writes our close_notify, and then raises if the peer's has not arrived.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self.connection.unwrap()
        return self._leaving.read()


class Layers:
    """The layers of one connection: TLS, compression, both or none.

    Attributes:
        tls: the outer layer.
        compression: the inner one.
    """

    __slots__ = ("_piece", "compression", "tls")

    def __init__(self) -> None:
        self.tls: Tls | None = None
        self.compression: Compression | None = None
        self._piece = memoryview(b"")

    def __bool__(self) -> bool:
        return self.tls is not None or self.compression is not None

    @property
    def ended(self) -> bool:
        """Whether the peer has closed one of them, so that no more input follows."""
        return any(layer.ended for layer in (self.tls, self.compression) if layer is not None)

    def add_tls(self, tls: Tls, arrived: bytes) -> None:
        """Add TLS as the outer layer; `arrived` is its first input."""
        tls.feed(arrived)
        self.tls = tls

    def add_compression(self, compression: Compression, arrived: bytes) -> None:
        """Add compression as the inner layer; `arrived`, already decrypted, is its first input."""
        compression.feed(arrived)
        self.compression = compression

    def feed(self, data: Buffer) -> None:
        """Store input from the socket; there must be a layer."""
        if self.tls is not None:
            self.tls.feed(data)
        elif self.compression is not None:
            self.compression.feed(data)

    def read(self) -> bytes:
        """Return the next plain bytes; empty: more input is needed.

        Raises:
            LayerError: the input is damaged, or is not TLS or compressed data at all.
        """
        compression, tls = self.compression, self.tls
        if compression is None:
            return b"" if tls is None else tls.read()
        try:
            while not (data := compression.read()):
                if tls is None or not (compressed := tls.read()):
                    break
                compression.feed(compressed)
        except CompressionError as error:
            raise LayerError(str(error)) from None
        return data

    def read_into(self, room: memoryview) -> int:
        """Read plain bytes into `room`; return their number, 0: more input is needed.

        Raises:
            LayerError: as for ``read``.
        """
        if self.compression is None and self.tls is not None:
            return self.tls.read_into(room)
        piece = self._piece or memoryview(self.read())
        count = min(len(piece), len(room))
        room[:count] = piece[:count]
        self._piece = piece[count:]
        return count

    def seal(self, parts: Sequence[Buffer]) -> bytes:
        """Compress and encrypt these parts; return the bytes for the socket.

        Raises:
            LayerError: a layer is closed.
        """
        if self.compression is None:
            joined = parts[0] if len(parts) == 1 else b"".join(parts)
        else:
            try:
                joined = self.compression.compress(parts)
            except CompressionError as error:
                raise LayerError(str(error)) from None
        return bytes(joined) if self.tls is None else self.tls.seal(joined)

    def output(self) -> bytes:
        """Return TLS' own bytes to send: handshake, alerts."""
        return b"" if self.tls is None else self.tls.output()

    def close(self) -> bytes:
        """Return the last bytes to send."""
        return b"" if self.tls is None else self.tls.close()
