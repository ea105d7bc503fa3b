"""What lies between a socket and its frames: TLS and compression, without the socket.

Bytes in, bytes out, for a connection with an event loop and for a blocking one alike.

1. Sending goes through the compression first and TLS then, receiving the other way round.
2. What arrives is kept as it came; each ``read`` makes some of it plain, at most about
   `compression.PIECE_BYTES`. A bomb costs what its reader takes.
3. Behind a `LayerError` nothing can be read: the connection is closed.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Final, cast

from sparq.client.layer_options import tls_reason
from sparq.protocol.compression import PIECE_BYTES, Buffer, Compression, CompressionError

RECORD_BYTES: Final = 16 << 10
"""What a record of TLS holds at most: OpenSSL gives no more at a time."""


class LayerError(Exception):
    """The peer's bytes are not what was agreed."""


class Tls:
    """The client's side of a TLS connection.

    Args:
        context: how TLS is spoken.
        host: the name that the peer's certificate is to have; None: none is checked.
    """

    def __init__(self, context: ssl.SSLContext, host: str | None) -> None:
        self.ended = False
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._arrived, self._leaving, server_hostname=host)

    def shake_hands(self) -> bool:
        """Go on with the handshake; True when it is over, False when more has to arrive.

        Raises:
            LayerError: the peer is not trusted, or does not trust us.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise LayerError(tls_reason(error)) from None
        return True

    def feed(self, data: Buffer) -> None:
        """Keep what arrived."""
        self._arrived.write(data)

    def output(self) -> bytes:
        """What is to be sent."""
        return self._leaving.read()

    def seal(self, parts: Iterable[Buffer]) -> bytes:
        """All parts encrypted, and whatever else is to be sent."""
        write = self._object.write
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[write(rest) :]
        return self._leaving.read()

    def read(self) -> bytes:
        """The next plain bytes; empty when more has to arrive."""
        pieces: list[bytes] = []

        def receive(size: int) -> int:
            pieces.append(self._object.read(min(size, RECORD_BYTES)))
            return len(pieces[-1])

        self._records(PIECE_BYTES, receive)
        return b"".join(pieces)

    def read_into(self, room: memoryview) -> int:
        """Plain bytes into the room; how many there were, 0 when more has to arrive."""
        # Given room, it returns a count; typeshed knows the other way only.
        read = cast(Callable[[int, memoryview], int], self._object.read)
        size = len(room)
        return self._records(size, lambda left: read(left, room[size - left :]))

    def _records(self, size: int, receive: Callable[[int], int]) -> int:
        """Receive record after record, up to so many bytes."""
        left = size
        try:
            while left and (count := receive(left)):
                left -= count
            self.ended = bool(left)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {tls_reason(error)}") from None
        return size - left

    def close(self) -> bytes:
        """The farewell, to be sent as the last."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own farewell is not waited for
            self._object.unwrap()
        return self._leaving.read()


class Layers:
    """The layers of one connection; there may be either, both or none of them.

    Attributes:
        tls: the outer layer.
        compression: the inner one.
    """

    def __init__(self) -> None:
        self.tls: Tls | None = None
        self.compression: Compression | None = None
        self._piece = memoryview(b"")

    def __bool__(self) -> bool:
        return self.tls is not None or self.compression is not None

    @property
    def ended(self) -> bool:
        """Whether the peer has said that nothing follows."""
        return any(layer.ended for layer in (self.tls, self.compression) if layer is not None)

    def seal(self, parts: Iterable[Buffer]) -> bytes:
        """All parts as they go to the socket."""
        if self.compression is not None:
            parts = (self.compression.compress(parts),)
        return b"".join(parts) if self.tls is None else self.tls.seal(parts)

    def feed(self, data: Buffer) -> None:
        """Keep what came from the socket."""
        layer = self.compression if self.tls is None else self.tls
        assert layer is not None
        layer.feed(data)

    def read(self) -> bytes:
        """The next plain bytes; empty when more has to arrive.

        Raises:
            LayerError: what arrived is damaged, or is no TLS or compression at all.
        """
        compression, tls = self.compression, self.tls
        if compression is None:
            return b"" if tls is None else tls.read()
        try:
            while not (data := compression.read()) and tls is not None:
                compressed = tls.read()
                if not compressed:
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

    def output(self) -> bytes:
        """What TLS itself has to say, unasked."""
        return b"" if self.tls is None else self.tls.output()

    def close(self) -> bytes:
        """What is sent as the last."""
        return b"" if self.tls is None else self.tls.close()
