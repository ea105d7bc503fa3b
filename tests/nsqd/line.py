"""A blocking V2 connection to an nsqd process, by hand: what was answered, what was delivered.

1. Answers and messages come mixed; whoever waits for one kind finds the other kept.
2. Every wait has a deadline.
3. The commands are the witness's own (`proofs.wire`), not those of sparq's client.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Self

from proofs.wire import FRAME_MESSAGE, FRAME_RESPONSE, HEARTBEAT, Message, message, mpub, pub, sub

from tests.support.servers import NsqdServer

__all__ = ["OK", "Line", "Message", "dpub", "drain", "fin", "mpub", "pub", "rdy", "sub"]

OK = (FRAME_RESPONSE, b"OK")
_HEAD = struct.Struct(">ii")
QUIET_SECONDS = 0.1


def dpub(topic: str, body: bytes, defer_ms: int) -> bytes:
    return f"DPUB {topic} {defer_ms}\n".encode() + struct.pack(">i", len(body)) + body


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(*messages: Message) -> bytes:
    return b"".join(b"FIN %s\n" % found.id for found in messages)


class Line:
    """One connection."""

    def __init__(self, server: NsqdServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.tcp_port), timeout=15)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._answers: deque[tuple[int, bytes]] = deque()
        self._messages: deque[Message] = deque()
        self.say(b"  V2")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, data: bytes) -> tuple[int, bytes]:
        """Say something and return what is answered: (frame type, text)."""
        self.say(data)
        while not self._answers:
            self._read()
        return self._answers.popleft()

    def messages(self, count: int) -> list[Message]:
        """The next so many messages."""
        while len(self._messages) < count:
            self._read()
        return [self._messages.popleft() for _ in range(count)]

    def messages_within(self, seconds: float) -> list[Message]:
        """What has come, or comes first within this time; empty: nothing did."""
        self._socket.settimeout(seconds)
        try:
            while not self._messages:
                self._read()
        except TimeoutError:
            return []
        finally:
            self._socket.settimeout(15)
        return self.messages(len(self._messages))

    def _read(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("nsqd closed the connection")
        self._buffer += data
        at = 0
        while at + _HEAD.size <= len(self._buffer):
            size, kind = _HEAD.unpack_from(self._buffer, at)
            if at + 4 + size > len(self._buffer):
                break
            frame = bytes(self._buffer[at + _HEAD.size : at + 4 + size])
            at += 4 + size
            if kind == FRAME_MESSAGE:
                self._messages.append(message(frame))
            elif frame != HEARTBEAT:
                self._answers.append((kind, frame))
        del self._buffer[:at]


def drain(server: NsqdServer, topic: str, channel: str) -> list[bytes]:
    """The bodies that the channel has for a consumer, each finished, until it has no more."""
    bodies: list[bytes] = []
    with Line(server) as line:
        assert line.ask(sub(topic, channel)) == OK
        line.say(rdy(500))
        while True:
            found = line.messages_within(QUIET_SECONDS)
            line.say(fin(*found))
            bodies += [one.body for one in found]
            if not found:
                figures = server.channel(topic, channel)
                if not figures["depth"] + figures["in_flight_count"] + figures["deferred_count"]:
                    assert line.ask(b"CLS\n") == (FRAME_RESPONSE, b"CLOSE_WAIT")
                    return bodies
