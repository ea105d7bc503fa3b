"""A connection between an actor and the broker, including the network in between.

Bytes wait, arrive in pieces split anywhere, or are lost when the connection breaks. The broker's
output is read twice: by the truth at the moment it leaves, and by the actor once the same bytes
have arrived.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol

from tests.support.v2_client import FRAME_MESSAGE

from sparq.options.units import SECOND
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser

if TYPE_CHECKING:
    from proofs.simulate_parts.world import World
    from sparq.broker.session import V2Session
    from sparq.protocol.instant import Instant

HEAD = struct.Struct(">ii")
MESSAGE = struct.Struct(">qH16s")
Frame = tuple[int, bytes]


class Arriving(Protocol):
    """Something that is notified when the broker has received it."""

    def arrived(self, now: Instant, step: int) -> None:
        """Note that the broker has received its last byte."""


class Actor(Protocol):
    """The client at the other end."""

    def left(self, link: Link, frame: Frame) -> None:
        """Note that a frame leaves the broker."""

    def received(self, frame: Frame) -> None:
        """Handle a received frame."""

    def broken(self, link: Link) -> None:
        """Note that the connection is gone."""


class Link:
    """One connection.

    Attributes:
        number: number of the connection, within the run.
        still_until_ns: until then no byte moves.
        ended: whether the broker has sent all its output and closed the connection.
    """

    def __init__(self, world: World, actor: Actor, number: int) -> None:
        self.world = world
        self.actor = actor
        self.number = number
        self.still_until_ns = 0
        self.ended = False
        self.session: V2Session = world.broker.connect(f"10.0.0.1:{number}", world.clock.now())
        self._parser = CommandParser(world.broker.limits)
        self._up = bytearray()
        self._sent = self._arrived = 0
        self._marks: deque[tuple[int, Arriving]] = deque()
        self._down: deque[tuple[int, Frame]] = deque()
        self._left = self._read = 0

    # Towards the broker

    def send(self, data: bytes, what: Arriving | None = None) -> None:
        """Start sending bytes; `what` is notified when the last of them has arrived."""
        self._up += data
        self._sent += len(data)
        if what is not None:
            self._marks.append((self._sent, what))

    def pending_bytes(self) -> int:
        """Return the number of bytes on their way to the broker."""
        return len(self._up)

    def arrive(self, size: int) -> None:
        """Let the next bytes arrive, and have the commands that they complete executed."""
        data = bytes(self._up[:size])
        if not data or self.ended:
            return
        del self._up[:size]
        self._arrived += len(data)
        world, session, parser = self.world, self.session, self._parser
        now = world.clock.now()
        while self._marks and self._marks[0][0] <= self._arrived:
            self._marks.popleft()[1].arrived(now, world.step)
        parser.feed(data)
        try:
            while not session.closing and (command := parser.next()) is not None:
                world.broker.execute(session, command, now)
                world.truth.tally.operations += 1
                parser.state = session.state
        except RemoteError as error:
            world.broker.fail(session, error)

    # Towards the actor

    def flush(self) -> None:
        """Take the broker's output."""
        if self.ended:
            return
        output = b"".join(map(bytes, self.world.broker.take_output(self.session)))
        at = 0
        while at < len(output):
            size, kind = HEAD.unpack_from(output, at)
            frame = kind, output[at + HEAD.size : at + 4 + size]
            at += 4 + size
            self._down.append((self._left + at, frame))
            self.actor.left(self, frame)
        self._left += len(output)
        if self.session.closing and self.session.is_drained():
            self.ended = True
        self._balance()

    def read(self, size: int) -> None:
        """Let the actor receive the next bytes."""
        self._read = min(self._left, self._read + size)
        while self._down and self._down[0][0] <= self._read:
            self.actor.received(self._down.popleft()[1])
        self._balance()

    def unread_bytes(self) -> int:
        """Return the number of bytes on their way to the actor."""
        return self._left - self._read

    def _balance(self) -> None:
        """Stop messages at too many unread bytes until half are read, as the transport does."""
        most = self.world.weather.unread_bytes_max
        unread = self.unread_bytes()
        if not self.session.paused_writing and unread > most:
            self.session.paused_writing = True
        elif self.session.paused_writing and unread <= most // 2:
            self.session.paused_writing = False
            self.world.broker.writable(self.session)

    def is_still(self) -> bool:
        """Return whether no byte moves now."""
        return self.world.clock.mono_ns < self.still_until_ns

    def stall(self, seconds: float) -> None:
        """Let no byte move for a while."""
        self.still_until_ns = self.world.clock.mono_ns + int(seconds * SECOND)


def message(data: bytes) -> tuple[int, bytes, bytes]:
    """Return (attempts, id, body) of a message frame's data."""
    _, attempts, name = MESSAGE.unpack_from(data)
    return attempts, name, data[MESSAGE.size :]


def published_ns(data: bytes) -> int:
    """Return the publish time (wall ns) of a message frame's data."""
    stamp: int = MESSAGE.unpack_from(data)[0]
    return stamp


def is_message(frame: Frame) -> bool:
    """Return whether a frame is a message, not an answer."""
    return frame[0] == FRAME_MESSAGE
