"""beanstalkd: put, reserve and delete, with its log on (`-b`).

It has no batches and no channels. A consumer sends a few reserves in advance, deletes each job
separately, and sends the next reserve with the delete. beanstalkd would process more reserves
before the first delete, and the last jobs of a queue would count without their deletes.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.peer import (
    Consuming,
    Dialogue,
    PatternAcknowledger,
    Peer,
    Program,
    Publishing,
    counting,
)

TIME_TO_RUN_SECONDS = 120
RESERVES_AHEAD = 4


ERRORS = (b"OUT_OF", b"BAD", b"INTERNAL", b"DRAINING", b"BURIED", b"UNKNOWN")


def put(body: bytes) -> bytes:
    """A put command."""
    return b"put 0 0 %d %d\r\n%s\r\n" % (TIME_TO_RUN_SECONDS, len(body), body)


class Beanstalkd(Peer):
    """beanstalkd."""

    needs = "beanstalkd"

    def make_program(self) -> Program:
        """beanstalkd, with its log in the folder."""
        place = ["-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder)]
        return Program(["beanstalkd", *place, *self.flags], self.folder, self.port)

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
        return Publishing(self.hello(f"use {topic}").done(), counting(b"\n", *ERRORS), put)

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Consume with up to RESERVES_AHEAD reserves in advance."""
        dialogue = self.hello(f"watch {topic}", "ignore default")
        acknowledger = PatternAcknowledger(rb"RESERVED (\d+) ", size, b"delete %s\r\nreserve\r\n")
        begin = b"reserve\r\n" * min(ready, RESERVES_AHEAD)
        return Consuming(dialogue.done(), begin, acknowledger)
