"""What lies between a socket and its commands or frames: TLS, compression, or both.

Bytes in, bytes out, for either end of a connection.

1. Sending goes through the compression first and TLS then, receiving the other way round.
2. What arrives is kept as it came; each ``read`` makes some of it plain, at most about
   `compression.PIECE_BYTES`. A bomb costs what its reader takes.
3. Bytes that arrived before a layer was there are given to it with ``add_...``, and read by nobody
   else.
4. Whatever is wrong with the bytes is a `LayerError`: the connection cannot go on.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from sparq.protocol.compression import PIECE_BYTES, Buffer, Compression, CompressionError
from sparq.wire.errors import LayerError, tls_reason

RECORD_BYTES: Final = 16 << 10
"""What a record of TLS holds at most: OpenSSL gives no more at a time."""


class Tls:
    """One end of a TLS connection.

    Args:
        context: how TLS is spoken.
        host: the name that the server's certificate is to have; None: none is checked.
        is_server: whether this is the server's end.

    Attributes:
        ended: the peer has said that nothing follows (close_notify).
        connection: what OpenSSL knows of it.
    """

    def __init__(
        self, context: ssl.SSLContext, host: str | None = None, *, is_server: bool = False
    ) -> None:
        self.ended = False
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._arrived, self._leaving, is_server, host)

    def shake_hands(self) -> bool:
        """Go on with the handshake; True when it is over, False when more has to arrive.

        Raises:
            LayerError: it failed; ``output`` tells the peer.
        """
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise LayerError(tls_reason(error)) from None
        except ValueError as error:  # a certificate that cannot be read at all
            raise LayerError(str(error)) from None
        return True

    def feed(self, data: Buffer) -> None:
        """Keep what arrived; nothing behind the peer's farewell."""
        if not self.ended:
            self._arrived.write(data)

    def output(self) -> bytes:
        """What TLS itself has to send: its handshake, alerts."""
        return self._leaving.read()

    def seal(self, data: Buffer) -> bytes:
        """The records of some plain bytes, and whatever else is to be sent.

        Raises:
            LayerError: this end is closed.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.connection.write(rest) :]
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {tls_reason(error)}") from None
        return self._leaving.read()

    def read(self) -> bytes:
        """The next plain bytes, at most `PIECE_BYTES`; empty when more has to arrive.

        Raises:
            LayerError: a record is damaged, and no whole one was before it.
        """
        pieces: list[bytes] = []

        def receive(size: int) -> int:
            pieces.append(self.connection.read(min(size, RECORD_BYTES)))
            return len(pieces[-1])

        self._records(PIECE_BYTES, receive)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, room: memoryview) -> int:
        """Plain bytes into the room; how many there were, 0 when more has to arrive.

        Raises:
            LayerError: as for ``read``.
        """
        # Given room, it returns a count; typeshed knows the other way only.
        read = cast(Callable[[int, memoryview], int], self.connection.read)
        size = len(room)
        return self._records(size, lambda left: read(left, room[size - left :]))

    def _records(self, size: int, receive: Callable[[int], int]) -> int:
        """Receive record after record, up to so many bytes."""
        left = size
        try:
            while left and not self.ended:
                count = receive(left)
                self.ended = not count
                left -= count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            # What came before the damage counts; the next read meets it again.
            if left == size:
                raise LayerError(f"TLS: {tls_reason(error)}") from None
        return size - left

    def close(self) -> bytes:
        """The farewell, to be sent as the last; the peer's own is not waited for."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self.connection.unwrap()
        return self._leaving.read()


class Layers:
    """The layers of one connection; there may be either, both or none of them.

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
        """Whether the peer has closed one of them: nothing follows."""
        return any(layer.ended for layer in (self.tls, self.compression) if layer is not None)

    def add_tls(self, tls: Tls, arrived: bytes) -> Tls:
        """Put TLS at the bottom; what has arrived is its first input."""
        tls.feed(arrived)
        self.tls = tls
        return tls

    def add_compression(self, compression: Compression, arrived: bytes) -> None:
        """Put compression on top; what has arrived, and is plain otherwise, is its first input."""
        compression.feed(arrived)
        self.compression = compression

    def feed(self, data: Buffer) -> None:
        """Keep what came from the socket; there is a layer."""
        if self.tls is not None:
            self.tls.feed(data)
        elif self.compression is not None:
            self.compression.feed(data)

    def read(self) -> bytes:
        """The next plain bytes; empty when more has to arrive.

        Raises:
            LayerError: what arrived is damaged, or is no TLS or compression at all.
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
        """Plain bytes into the room; how many there were, 0 when more has to arrive.

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
        """Bytes for the socket that carry all of these.

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
        """What TLS itself has to send, unasked."""
        return b"" if self.tls is None else self.tls.output()

    def close(self) -> bytes:
        """What is sent as the last."""
        return b"" if self.tls is None else self.tls.close()
