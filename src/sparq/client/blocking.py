"""One V2 connection over a blocking socket, for programs that have no event loop.

Spark's tasks and its driver-side source ask one thing, wait for its answer and go on: a plain
socket with a deadline serves them better than a loop of their own.

1. A connection is made whole (connected, identified) or not at all; after any `OSError` or
   `WrongPeerError` it is closed and of no more use. Whoever owns it makes a new one.
2. Every wait has a deadline. Heartbeats are off: a task may be busy for minutes between two
   questions, with nobody to answer them.
3. A frame is held to a size before memory is taken for it. All frames are received into the same
   memory: what `receive` gives is valid until the next question.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from sparq.client.address import parse_address
from sparq.client.errors import WrongPeerError
from sparq.protocol import commands
from sparq.protocol.errors import ERRORS, RemoteError
from sparq.protocol.frames import FRAME_ERROR, FRAME_HEADER_SIZE, FRAME_RESPONSE

FRAME_BYTES_MAX: Final = 64 << 20
"""The largest frame taken; a stored batch is at most one MPUB, 5 MiB by nsqd's default."""

TIMEOUT_SECONDS: Final = 15.0
CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""A host that swallows packets must not hold up the others of a fleet for long."""

ROOM_BYTES: Final = 64 << 10
"""What a connection has room for at first; a larger frame makes it grow, once."""

_HEADER: Final = struct.Struct(">iI")
_HTTP: Final = b"HTTP"
_HEARTBEAT: Final = b"_heartbeat_"

Parts = bytes | bytearray | memoryview


class BlockingConnection:
    """A connection to one nsqd.

    Attributes:
        address: the nsqd's ``host:port``, as given.
        identity: what nsqd answered to IDENTIFY.
    """

    def __init__(
        self,
        address: str,
        *,
        user_agent: str = "sparq",
        timeout_seconds: float = TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        """Connects and identifies.

        Raises:
            OSError: the nsqd cannot be reached, or went away.
            WrongPeerError: what listens there is no nsqd.
            RemoteError: nsqd refused the connection.
        """
        self.address = address
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._socket = socket.create_connection(parse_address(address), connect_timeout_seconds)
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.identity = self._identify(user_agent)
        except BaseException:
            self.close()
            raise

    def _identify(self, user_agent: str) -> Mapping[str, Any]:
        hostname = socket.gethostname()
        asked = {
            "client_id": hostname.partition(".")[0],
            "hostname": hostname,
            "user_agent": user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": -1,
        }
        body = json.dumps(asked).encode()
        return self.ask_json(commands.MAGIC_V2, commands.identify(body))

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
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._unexpected(f"{data[:80]!r} where a JSON object was due")
        return answer

    def send(self, *parts: Parts) -> None:
        """Sends bytes; when the peer hung up with an error frame, that error is raised."""
        try:
            for part in parts:
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
            if frame_type == FRAME_RESPONSE and bytes(data[: len(_HEARTBEAT) + 1]) == _HEARTBEAT:
                self.send(commands.nop())
                continue
            return frame_type, data

    def close(self) -> None:
        """Closes the socket; harmless when it is closed."""
        self._socket.close()

    # Bytes

    def _receive_frame(self) -> tuple[int, memoryview]:
        head = bytes(self._receive_exactly(FRAME_HEADER_SIZE))
        if head.startswith(_HTTP):
            raise self._unexpected("HTTP: this is an HTTP port, nsqd's TCP port is needed")
        size, frame_type = _HEADER.unpack(head)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise self._unexpected(f"a frame of {size} bytes (at most {FRAME_BYTES_MAX})")
        return frame_type, self._receive_exactly(size - 4)

    def _receive_exactly(self, size: int) -> memoryview:
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        data = rest = self._room[:size]
        while rest:
            try:
                count = self._socket.recv_into(rest)
            except OSError:
                self.close()
                raise
            if not count:
                self.close()
                raise ConnectionResetError(f"nsqd {self.address} closed the connection")
            rest = rest[count:]
        return data

    # Errors

    def _refusal(self, text: bytes) -> RemoteError:
        code, _, detail = text.decode("utf-8", "surrogateescape").partition(" ")
        kind = ERRORS.get(code)
        fatal = kind is None or kind.fatal
        if fatal:
            self.close()
        return RemoteError(code, detail, fatal)

    def _unexpected(self, what: str) -> WrongPeerError:
        self.close()
        return WrongPeerError(f"{self.address} answered {what}")
