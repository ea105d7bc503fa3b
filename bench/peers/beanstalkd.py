"""beanstalkd: put, reserve and delete, with its log on (`-b`).

It has no batches and no channels. A consumer sends a few reserves in advance, deletes each job
separately, and sends the next reserve with the delete. beanstalkd would process more reserves
before the first delete, and the last jobs of a queue would count without their deletes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.peers.peer import (
    Consuming,
    Deliveries,
    Dialogue,
    Peer,
    Program,
    Publishing,
    RefusedError,
)

TIME_TO_RUN_SECONDS = 120
RESERVES_AHEAD = 4


def answers(data: bytes) -> int:
    """Count INSERTED lines.

    Raises:
        RefusedError: beanstalkd has sent an error.
    """
    lines = data.count(b"\r\n")
    if lines != data.count(b"INSERTED") and any(
        word in data
        for word in (b"OUT_OF", b"BAD", b"INTERNAL", b"DRAINING", b"BURIED", b"UNKNOWN")
    ):
        raise RefusedError(data.decode(errors="replace")[:200])
    return lines


def put(body: bytes) -> bytes:
    """A put command."""
    return b"put 0 0 %d %d\r\n%s\r\n" % (TIME_TO_RUN_SECONDS, len(body), body)


class BeanstalkAcknowledger:
    """Turns reserved jobs into deletes, each followed by the next reserve."""

    is_stamped = False

    def __init__(self, size: int) -> None:
        head = rb"RESERVED (\d+) %d\r\n(.{8}).{%d}\r\n" % (size, size - 8)
        self._pattern = re.compile(head, re.DOTALL)
        self._rest = b""

    def take(self, data: bytes) -> Deliveries:
        """Delete the complete jobs."""
        data = self._rest + data
        found = list(self._pattern.finditer(data))
        self._rest = data[found[-1].end() :] if found else data
        reply = b"".join([b"delete %s\r\nreserve\r\n" % match[1] for match in found])
        stamps = [int.from_bytes(match[2], "big") for match in found] if self.is_stamped else ()
        return Deliveries(len(found), reply, stamps)


class Beanstalkd(Peer):
    """beanstalkd that syncs after each write (`-f0`)."""

    sync: Sequence[str] = ("-f0",)

    def make_program(self) -> Program:
        """beanstalkd, with its log in the folder."""
        place = ["-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder)]
        return Program(["beanstalkd", *place, *self.sync], self.folder, self.port)

    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """Do nothing: a tube is created with its first job."""

    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Do nothing: a tube is deleted with its last job; remaining jobs stay."""

    def hello(self, *commands: str) -> Dialogue:
        """Connect, send commands, and read a line of answer to each."""
        dialogue = Dialogue(self.port)
        for text in commands:
            dialogue.send(f"{text}\r\n".encode())
            dialogue.line()
        return dialogue

    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """Publish by put, to the topic's tube."""
        return Publishing(self.hello(f"use {topic}").done(), answers, put)

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Consume with up to RESERVES_AHEAD reserves in advance."""
        dialogue = self.hello(f"watch {topic}", "ignore default")
        return Consuming(
            dialogue.done(),
            b"reserve\r\n" * min(ready, RESERVES_AHEAD),
            BeanstalkAcknowledger(size),
        )


class BeanstalkdLater(Beanstalkd):
    """beanstalkd with its default: a sync at most every 50 ms."""

    sync = ()
