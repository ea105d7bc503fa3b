"""Redis Streams: XADD to publish, a consumer group for each channel, XREADGROUP and XACK.

A batch is a MULTI of XADDs, which corresponds to MPUB: all or nothing, with one answer. A consumer
has two pending reads, each for half of its RDY count.
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
    counting,
)

FIELD = b"b"


def command(*words: bytes) -> bytes:
    """A command in Redis' protocol."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class RedisAcknowledger:
    """Turns entries into XACKs, and adds an XREADGROUP for each completed read."""

    is_stamped = False

    def __init__(self, topic: bytes, channel: bytes, size: int, read: bytes) -> None:
        entry = rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$%d\r\n(.{8}).{%d}\r\n"
        head = rb"\$%d\r\n%s\r\n\*(\d+)\r\n" % (len(topic), re.escape(topic))
        self._pattern = re.compile(entry % (size, size - 8) + b"|" + head, re.DOTALL)
        self._prefix = command(b"XACK", topic, channel).partition(b"\r\n")[2]
        self._read = read
        self._rest = b""
        self._due = 0

    def take(self, data: bytes) -> Deliveries:
        """Acknowledge the complete entries; start a new read for each completed one."""
        data = self._rest + data
        found = list(self._pattern.finditer(data))
        if not found:
            self._rest = data
            return Deliveries(0, b"")
        self._rest = data[found[-1].end() :]
        ids: list[bytes] = []
        stamps: list[int] = []
        reads = 0
        for entry_id, stamp, count in (match.groups() for match in found):
            if count:
                self._due += int(count)
                continue
            ids.append(b"$%d\r\n%s\r\n" % (len(entry_id), entry_id))
            self._due -= 1
            reads += not self._due
            if self.is_stamped:
                stamps.append(int.from_bytes(stamp, "big"))
        if not ids:
            return Deliveries(0, b"")
        reply = b"*%d\r\n%s%s" % (len(ids) + 3, self._prefix, b"".join(ids))
        return Deliveries(len(ids), reply + self._read * reads, stamps)


class Redis(Peer):
    """Redis with an append-only file that is never rewritten."""

    can = frozenset({"batch", "channels"})
    needs = "redis-server"

    def make_program(self) -> Program:
        """Redis, configured by flags only."""
        settings = (
            f"--bind 127.0.0.1 --port {self.port} --appendonly yes --loglevel warning "
            "--auto-aof-rewrite-percentage 0 --save"
        )
        words = [*settings.split(), "", "--dir", str(self.folder), *self.flags]
        return Program(["redis-server", *words], self.folder, self.port)

    def ask(self, *words: bytes) -> None:
        """Send a command, and check the answer.

        Raises:
            RefusedError: the answer is an error.
        """
        dialogue = Dialogue(self.port)
        dialogue.send(command(*words))
        answer = dialogue.line()
        dialogue.close()
        if answer.startswith(b"-"):
            raise RefusedError(answer.decode())

    def start(self) -> None:
        """Start, and wait until it has loaded its file; it listens before that."""
        super().start()
        while True:
            try:
                return self.ask(b"PING")
            except RefusedError as error:
                if "LOADING" not in str(error):
                    raise

    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """Create a stream with groups; one without groups is created with its first message."""
        for channel in channels:
            words = (b"XGROUP", b"CREATE", topic.encode(), channel.encode(), b"0", b"MKSTREAM")
            self.ask(*words)

    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Delete the stream; UNLINK frees its memory in another thread."""
        self.ask(b"UNLINK", topic.encode())

    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """Publish by XADD, or by XADDs in a MULTI."""

        def one(body: bytes) -> bytes:
            return command(b"XADD", topic.encode(), b"*", FIELD, body)

        def many(body: bytes, count: int) -> bytes:
            return command(b"MULTI") + one(body) * count + command(b"EXEC")

        # The first byte of an answer: to XADD an id, to EXEC an array.
        answers = counting(b"*" if batches else b"$", b"-ERR", b"-EXEC", b"-MISCONF")
        return Publishing(Dialogue(self.port).done(), answers, one, many)

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Consume by XREADGROUP, which blocks while there are no entries."""
        dialogue = Dialogue(self.port)
        name = b"consumer-%d" % dialogue.sock.getsockname()[1]
        names = topic.encode(), channel.encode()
        half = b"%d" % ((ready + 1) // 2)
        group = (b"XREADGROUP", b"GROUP", names[1], name, b"COUNT", half, b"BLOCK", b"0")
        read = command(*group, b"STREAMS", names[0], b">")
        begin = read * min(2, ready)
        return Consuming(dialogue.done(), begin, RedisAcknowledger(*names, size, read))
