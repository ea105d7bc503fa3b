"""The layers between a socket and its commands or frames: TLS, compression, or both.

Bytes in, bytes out, for either end of a connection.

1. Output is compressed first and then encrypted; input is decrypted first and then decompressed.
2. Input is stored as it arrives; each ``read`` decodes at most about `compression.PIECE_BYTES`. So
   a decompression bomb uses only as much memory as its reader requests.
3. Bytes that arrived before a layer was added are passed to it with ``add``, and are read only
   through that layer.
4. Any invalid bytes raise `LayerError`: the connection cannot continue.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from typing import Final

from sparq.protocol.compression import PIECE_BYTES, Buffer, Compression, LayerError
from sparq.wire.errors import tls_reason

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

    def seal(self, parts: Sequence[Buffer]) -> bytes:
        """Encrypt plain bytes; return their records and any other pending TLS output.

        Raises:
            LayerError: this end is closed.
        """
        rest, sealed = memoryview(b"".join(parts)), []
        try:
            while rest:
                # Piece by piece: OpenSSL's buffer keeps the size that it once had.
                rest = rest[self.connection.write(rest[:SEALED_BYTES]) :]
                sealed.append(self._leaving.read())
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {tls_reason(error)}") from None
        return b"".join(sealed)

    def read(self) -> bytes:
        """Return the next plain bytes, at most `PIECE_BYTES`; empty: more input is needed.

        Raises:
            LayerError: a record is damaged, and no valid one came before it in this call.
        """
        records, size = [], 0
        try:
            while size < PIECE_BYTES and not self.ended:
                records.append(self.connection.read(PIECE_BYTES - size))
                size += len(records[-1])
                # No bytes: the peer's close_notify. If this end has sent its own as well, `ssl`
                # raises SSLZeroReturnError instead.
                self.ended = not records[-1]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            # Bytes before the damage are still returned; the next read raises the error.
            if not size:
                raise LayerError(f"TLS: {tls_reason(error)}") from None
        return b"".join(records)

    def close(self) -> bytes:
        """Return close_notify, to be sent last; the peer's close_notify is not awaited."""
        # `unwrap` writes our close_notify, and then raises if the peer's has not arrived.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self.connection.unwrap()
        return self._leaving.read()


class Layers:
    """The layers of one connection, from the socket inwards: TLS, compression, both or none.

    Attributes:
        tls: the TLS layer, if there is one.
    """

    __slots__ = ("_layers", "tls")

    def __init__(self) -> None:
        self.tls: Tls | None = None
        self._layers: list[Tls | Compression] = []

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def ended(self) -> bool:
        """Whether the peer has closed one of them, so that no more input follows."""
        return any(layer.ended for layer in self._layers)

    def add(self, layer: Tls | Compression, arrived: bytes) -> None:
        """Add the innermost layer; `arrived`, which the others have decoded, is its first input."""
        layer.feed(arrived)
        self._layers.append(layer)
        if isinstance(layer, Tls):
            self.tls = layer

    def feed(self, data: Buffer) -> None:
        """Store input from the socket; there must be a layer."""
        self._layers[0].feed(data)

    def read(self) -> bytes:
        """Return the next plain bytes; empty: more input is needed.

        Raises:
            LayerError: the input is damaged, or is not TLS or compressed data at all.
        """
        return self._read_through(len(self._layers))

    def _read_through(self, count: int) -> bytes:
        """Return the next bytes that the outer ``count`` layers have decoded."""
        if not count:
            return b""  # input from the socket is fed, never read
        layer = self._layers[count - 1]
        while not (data := layer.read()):
            if not (outer := self._read_through(count - 1)):
                return b""
            layer.feed(outer)
        return data

    def seal(self, parts: Sequence[Buffer]) -> bytes:
        """Compress and encrypt these parts; return the bytes for the socket.

        Raises:
            LayerError: a layer is closed.
        """
        for layer in reversed(self._layers):
            parts = (layer.seal(parts),)
        return b"".join(parts)

    def output(self) -> bytes:
        """Return TLS' own bytes to send: handshake, alerts."""
        return b"" if self.tls is None else self.tls.output()

    def close(self) -> bytes:
        """Return the last bytes to send."""
        return b"" if self.tls is None else self.tls.close()
