"""One V2 connection over a blocking socket, for programs without an event loop.

Spark's tasks and its driver-side source send one command, wait for the answer and go on: a plain
socket with timeouts suits them better than an event loop.

1. The constructor returns a connected and identified connection or raises. After any exception but
   a non-fatal `RemoteError` the connection is closed and cannot be reused; its owner makes a new
   one. This includes `KeyboardInterrupt`: the next command would take a late answer for its own.
2. Every wait has a timeout. Heartbeats are off: a task may be busy for minutes between two
   commands and could not answer them.
3. The size of a frame is checked before memory is allocated for it. All frames are received into
   the same buffer: the result of `receive` is valid until the next command.
4. Without TLS and compression, bytes are received directly into that buffer, without a copy.
"""

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sparq.client.arguments import parse_nsqd
from sparq.client.errors import SparqClientError, WrongPeerError
from sparq.protocol import commands
from sparq.protocol.address import Address
from sparq.protocol.compression import LayerError
from sparq.protocol.errors import RemoteError
from sparq.protocol.layout import FRAME_ERROR, FRAME_HEADER_SIZE, FRAME_RESPONSE
from sparq.wire.client import HEARTBEAT, ClientConnection, Stage
from sparq.wire.errors import remote_error
from sparq.wire.layer_options import PLAIN, LayerOptions

FRAME_BYTES_MAX: Final = 64 << 20
"""The largest accepted frame; a stored batch is at most one MPUB, 5 MiB by nsqd's default."""

TIMEOUT_SECONDS: Final = 15.0
CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""A host that drops all packets must not delay the other nsqds of a cluster for long."""

BUFFER_BYTES: Final = 64 << 10
"""Initial size of the receive buffer; a larger frame makes it grow to that frame's size."""

SEALED_BYTES: Final = 256 << 10
"""Bytes read from the socket at a time, with TLS or compression."""

_HEADER: Final = struct.Struct(">iI")

Parts = bytes | bytearray | memoryview


class BlockingConnection:
    """A connection to one nsqd.

    Attributes:
        address: the nsqd's ``host:port`` or path, as given.
        identity: nsqd's answer to IDENTIFY.
        authorization: nsqd's answer to AUTH; ``{}`` if it does not require AUTH.
    """

    def __init__(
        self,
        address: str,
        *,
        user_agent: str = "sparq",
        layers: LayerOptions = PLAIN,
        timeout_seconds: float = TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        """Connect, identify, and set up TLS, compression and AUTH.

        Raises:
            OSError: the nsqd cannot be reached, or closed the connection.
            WrongPeerError: the peer is not an nsqd.
            TlsError, AuthRequiredError: see there; a retry does not help.
            RemoteError: nsqd refused the connection, or the secret.
        """
        self.address = address
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._sealed = self._piece = memoryview(b"")
        place = parse_nsqd(address)
        hostname = socket.gethostname()
        identity = {
            "client_id": hostname.partition(".")[0],
            "hostname": hostname,
            "user_agent": user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": -1,
        }
        self._wire = ClientConnection(str(place), layers, identity, FRAME_BYTES_MAX)
        self._socket = _dial(place, connect_timeout_seconds)
        self._receive_into: Callable[[memoryview], int] = self._socket.recv_into
        try:
            self._socket.settimeout(timeout_seconds)
            self._shake_hands()
        except BaseException:
            self.close()
            raise
        self.identity, self.authorization = self._wire.facts, self._wire.authorization

    def _shake_hands(self) -> None:
        wire = self._wire
        self._socket.sendall(wire.output())
        while wire.stage is not Stage.READY:
            data = self._socket.recv(BUFFER_BYTES)
            if not data:
                raise self._lost(f" ({wire.stage})")
            try:
                wire.feed(data)
            except (RemoteError, SparqClientError):
                with contextlib.suppress(OSError):
                    self._socket.sendall(wire.output())  # the TLS alert for the peer
                raise
            self._socket.sendall(wire.output())
        if rest := wire.receiver.take_rest():
            raise self._unexpected(f"{rest[:80]!r} before any request")
        if wire.layers:
            self._sealed = memoryview(bytearray(SEALED_BYTES))
            self._receive_into = self._unseal_into

    # Commands

    def ask(self, *parts: Parts) -> bytes:
        """Send a command and return its response.

        Raises:
            RemoteError: nsqd refused it; after a non-fatal error the connection stays open.
            OSError: the connection was lost or timed out.
            WrongPeerError: the answer is not a response frame.
        """
        with self.closed_after_failure():
            self.send(*parts)
            frame_type, data = self.receive()
            if frame_type != FRAME_RESPONSE:
                raise self._unexpected(f"a frame of type {frame_type} instead of a response")
            return bytes(data)

    def ask_json(self, *parts: Parts) -> Mapping[str, Any]:
        """Send a command and return its response, a JSON object; errors as for ``ask``."""
        data = self.ask(*parts)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise self._unexpected(f"{data[:80]!r} instead of a JSON object")
        return answer

    def send(self, *parts: Parts) -> None:
        """Send bytes; if the peer closed the connection with an error frame, raise that error."""
        try:
            for part in parts if self._wire.is_plain else (self._wire.layers.seal(parts),):
                self._socket.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            # nsqd refuses some commands before it has read them completely, and hangs up.
            self.receive()
            raise

    def receive(self) -> tuple[int, memoryview]:
        """Return the next frame that is neither a heartbeat nor an error: (type, data).

        The data are valid until the next command. One buffer serves all frames, since the first
        access to fresh memory is slow.
        """
        while True:
            size, frame_type = _HEADER.unpack(self._receive_exactly(FRAME_HEADER_SIZE))
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise self._unexpected(f"a frame of {size} bytes (at most {FRAME_BYTES_MAX})")
            data = self._receive_exactly(size - 4)
            if frame_type == FRAME_ERROR:
                raise remote_error(bytes(data))
            # One byte more than a heartbeat: a longer response may begin like one.
            if frame_type == FRAME_RESPONSE and bytes(data[: len(HEARTBEAT) + 1]) == HEARTBEAT:
                self.send(commands.nop())
                continue
            return frame_type, data

    @contextlib.contextmanager
    def closed_after_failure(self) -> Iterator[None]:
        """Close the connection after any exception in the block but a non-fatal refusal."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, RemoteError) or error.fatal:
                self.close()
            if isinstance(error, LayerError):
                # Most likely damage in transit: a retry on a new connection may succeed.
                raise ConnectionAbortedError(f"nsqd {self.address}: {error}") from None
            raise

    @property
    def closed(self) -> bool:
        """Whether it is closed, by ``close`` or after an exception."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()

    # Bytes

    def _receive_exactly(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        data = rest = self._buffer[:size]
        while rest:
            count = self._receive_into(rest)
            if not count:
                raise self._lost()
            rest = rest[count:]
        return data

    def _unseal_into(self, buffer: memoryview) -> int:
        """Receive through the layers, as the socket's ``recv_into``; 0: the peer has closed."""
        layers = self._wire.layers
        while not (piece := self._piece or memoryview(layers.read())):
            if output := layers.output():
                self._socket.sendall(output)
            size = 0 if layers.ended else self._socket.recv_into(self._sealed)
            if not size:
                return 0
            # The layers have consumed their previous input, so its buffer can be reused.
            layers.feed(self._sealed[:size])
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        self._piece = piece[count:]
        return count

    # Errors

    def _lost(self, during: str = "") -> ConnectionResetError:
        return ConnectionResetError(f"nsqd {self.address} closed the connection{during}")

    def _unexpected(self, what: str) -> WrongPeerError:
        return WrongPeerError(f"{self.address} answered with {what}")


def _dial(place: Address, timeout_seconds: float) -> socket.socket:
    if place.is_path:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(timeout_seconds)
            connected.connect(place.host)
        except BaseException:
            connected.close()
            raise
        return connected
    connected = socket.create_connection(place, timeout_seconds)
    # Nagle's algorithm would delay the last part of a command that is sent in parts.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected
