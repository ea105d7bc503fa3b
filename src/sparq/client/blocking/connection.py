"""One V2 connection over a blocking socket, for programs that have no event loop.

Spark's tasks and its driver-side source ask one thing, wait for its answer and go on: a plain
socket with a deadline serves them better than a loop of their own.

1. A connection is made whole (connected, identified) or not at all; after any `OSError` or
   `WrongPeerError` it is closed and of no more use. Whoever owns it makes a new one.
2. Every wait has a deadline. Heartbeats are off: a task may be busy for minutes between two
   questions, with nobody to answer them.
3. A frame is held to a size before memory is taken for it. All frames are received into the same
   memory: what `receive` gives is valid until the next question.
4. Without TLS and compression the bytes go from the socket to that memory and nowhere between.
"""

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from sparq.client.address import parse_nsqd
from sparq.client.errors import SparqClientError, WrongPeerError
from sparq.client.layer_options import PLAIN, LayerOptions
from sparq.protocol import commands
from sparq.protocol.address import Address
from sparq.protocol.errors import RemoteError
from sparq.protocol.layout import FRAME_ERROR, FRAME_HEADER_SIZE, FRAME_RESPONSE
from sparq.wire.client import HEARTBEAT, ClientConnection, Stage
from sparq.wire.errors import LayerError, remote_error

FRAME_BYTES_MAX: Final = 64 << 20
"""The largest frame taken; a stored batch is at most one MPUB, 5 MiB by nsqd's default."""

TIMEOUT_SECONDS: Final = 15.0
CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""A host that swallows packets must not hold up the others of a fleet for long."""

ROOM_BYTES: Final = 64 << 10
"""What a connection has room for at first; a larger frame makes it grow, once."""

SEALED_BYTES: Final = 256 << 10
"""What is received of TLS or compressed bytes at a time."""

_HEADER: Final = struct.Struct(">iI")

Parts = bytes | bytearray | memoryview


class Connection:
    """A connection to one nsqd.

    Attributes:
        address: the nsqd's ``host:port`` or path, as given.
        identity: what nsqd answered to IDENTIFY.
        authorization: what it answered to AUTH; ``{}`` from one that asks for none.
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
        """Connects, identifies and agrees on layers.

        Raises:
            OSError: the nsqd cannot be reached, or went away.
            WrongPeerError: what listens there is no nsqd.
            TlsError, AuthRequiredError: see there; trying again is of no use.
            RemoteError: nsqd refused the connection, or the secret.
        """
        self.address = address
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._sealed = memoryview(b"")
        place = parse_nsqd(address)
        self._wire = ClientConnection(str(place), layers, _identity(user_agent), FRAME_BYTES_MAX)
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
            data = self._socket.recv(ROOM_BYTES)
            if not data:
                raise self._lost(f" ({wire.stage})")
            try:
                wire.feed(data)
            except (RemoteError, SparqClientError):
                with contextlib.suppress(OSError):
                    self._socket.sendall(wire.output())  # what TLS does not like
                raise
            self._socket.sendall(wire.output())
        if rest := wire.receiver.take_rest():
            raise self._unexpected(f"{rest[:80]!r} without a question")
        if wire.layers:
            self._sealed = memoryview(bytearray(SEALED_BYTES))
            self._receive_into = self._unseal_into

    # Asking

    def ask(self, *parts: Parts) -> bytes:
        """Sends a command and returns its response.

        Raises:
            RemoteError: nsqd refused; a non-fatal refusal leaves the connection in use.
            OSError: the connection broke or took too long.
            WrongPeerError: the answer is no response.
        """
        self.send(*parts)
        frame_type, data = self.receive()
        if frame_type != FRAME_RESPONSE:
            raise self._unexpected(f"a frame of type {frame_type} where a response was due")
        return bytes(data)

    def ask_json(self, *parts: Parts) -> Mapping[str, Any]:
        """Sends a command and returns its response, a JSON object."""
        data = self.ask(*parts)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._unexpected(f"{data[:80]!r} where a JSON object was due")
        return answer

    def send(self, *parts: Parts) -> None:
        """Sends bytes; when the peer hung up with an error frame, that error is raised."""
        try:
            for part in parts if self._wire.is_plain else (self._wire.layers.seal(parts),):
                self._socket.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            # nsqd refuses some commands before it has read all of them, then closes.
            self.receive()
            raise
        except OSError:
            self.close()
            raise

    def receive(self) -> tuple[int, memoryview]:
        """The next frame that is neither a heartbeat nor an error: (type, data).

        The data are valid until the next question: memory is touched for the first time only once.
        """
        while True:
            frame_type, data = self._receive_frame()
            if frame_type == FRAME_ERROR:
                raise self._refusal(bytes(data))
            if frame_type == FRAME_RESPONSE and bytes(data[: len(HEARTBEAT) + 1]) == HEARTBEAT:
                self.send(commands.nop())
                continue
            return frame_type, data

    def close(self) -> None:
        """Closes the socket; harmless when it is closed."""
        self._socket.close()

    # Bytes

    def _receive_frame(self) -> tuple[int, memoryview]:
        size, frame_type = _HEADER.unpack(self._receive_exactly(FRAME_HEADER_SIZE))
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise self._unexpected(f"a frame of {size} bytes (at most {FRAME_BYTES_MAX})")
        return frame_type, self._receive_exactly(size - 4)

    def _receive_exactly(self, size: int) -> memoryview:
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        data = rest = self._room[:size]
        while rest:
            try:
                count = self._receive_into(rest)
            except OSError:
                self.close()
                raise
            except LayerError as error:
                # Damage on the way, most likely: another connection may do better.
                self.close()
                raise ConnectionAbortedError(f"nsqd {self.address}: {error}") from None
            if not count:
                raise self._lost()
            rest = rest[count:]
        return data

    def _unseal_into(self, room: memoryview) -> int:
        """As the socket's ``recv_into``, by way of the layers; 0 when the peer has closed."""
        layers = self._wire.layers
        while not (count := layers.read_into(room)):
            if output := layers.output():
                self._socket.sendall(output)
            size = 0 if layers.ended else self._socket.recv_into(self._sealed)
            if not size:
                return 0
            # The layers have used up what they were fed before: the memory may be used again.
            layers.feed(self._sealed[:size])
        return count

    # Errors

    def _refusal(self, text: bytes) -> RemoteError:
        error = remote_error(text)
        if error.fatal:
            self.close()
        return error

    def _lost(self, during: str = "") -> ConnectionResetError:
        self.close()
        return ConnectionResetError(f"nsqd {self.address} closed the connection{during}")

    def _unexpected(self, what: str) -> WrongPeerError:
        self.close()
        return WrongPeerError(f"{self.address} answered {what}")


def _identity(user_agent: str) -> dict[str, Any]:
    hostname = socket.gethostname()
    return {
        "client_id": hostname.partition(".")[0],
        "hostname": hostname,
        "user_agent": user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": -1,
    }


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
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected
