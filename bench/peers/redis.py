"""Redis Streams: XADD to publish, a consumer group for each channel, XREADGROUP and XACK.

A batch is a MULTI of XADDs, which is what MPUB is: all or nothing, in one answer. A consumer keeps
two reads under way, each for half of what it may hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.peers.peer import Consuming, Dialogue, Peer, Program, Publishing, RefusedError, Taken

FIELD = b"b"


def command(*words: bytes) -> bytes:
    """A command as Redis reads it."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Answers:
    """Counts answers of one kind: to XADD an id (`$`), to a MULTI the array of its EXEC (`*`)."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark

    def __call__(self, data: bytes) -> int:
        """How many began.

        Raises:
            RefusedError: an error among them.
        """
        if b"-" in data and (b"-ERR" in data or b"-EXEC" in data or b"-MISCONF" in data):
            raise RefusedError(data.decode(errors="replace")[:200])
        return data.count(self._mark)


class RedisTaker:
    """Entries into one XACK for each read, and the next XREADGROUP for each that is whole."""

    is_stamped = False

    def __init__(self, topic: bytes, channel: bytes, size: int, read: bytes) -> None:
        entry = rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$%d\r\n(.{8}).{%d}\r\n"
        head = rb"\$%d\r\n%s\r\n\*(\d+)\r\n" % (len(topic), re.escape(topic))
        self._pattern = re.compile(entry % (size, size - 8) + b"|" + head, re.DOTALL)
        self._prefix = command(b"XACK", topic, channel).partition(b"\r\n")[2]
        self._read = read
        self._rest = b""
        self._due = 0

    def take(self, data: bytes) -> Taken:
        """Acknowledge whole entries; read again where a read was answered in full."""
        data = self._rest + data
        found = list(self._pattern.finditer(data))
        if not found:
            self._rest = data
            return Taken(0, b"")
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
            return Taken(0, b"")
        reply = b"*%d\r\n%s%s" % (len(ids) + 3, self._prefix, b"".join(ids))
        return Taken(len(ids), reply + self._read * reads, stamps)


class Redis(Peer):
    """Redis with an append-only file that is never rewritten."""

    can = frozenset({"batch", "channels"})
    sync = "always"

    def make_program(self) -> Program:
        """Told everything by flags."""
        flags = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": self.sync,
            "auto-aof-rewrite-percentage": "0",
            "loglevel": "warning",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        return Program(["redis-server", *words], self.folder, self.port)

    def ask(self, *words: bytes) -> None:
        """One command."""
        dialogue = Dialogue(self.port)
        dialogue.send(command(*words))
        answer = dialogue.line()
        dialogue.close()
        if answer.startswith(b"-"):
            raise RefusedError(answer.decode())

    def start(self) -> None:
        """Once it has loaded its file, which it does while it listens."""
        super().start()
        while True:
            try:
                return self.ask(b"PING")
            except RefusedError as error:
                if "LOADING" not in str(error):
                    raise

    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """A stream with groups; one without groups comes with its first message."""
        for channel in channels:
            words = (b"XGROUP", b"CREATE", topic.encode(), channel.encode(), b"0", b"MKSTREAM")
            self.ask(*words)

    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Freed beside the loop."""
        self.ask(b"UNLINK", topic.encode())

    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """XADD, or XADDs in a MULTI."""

        def one(body: bytes) -> bytes:
            return command(b"XADD", topic.encode(), b"*", FIELD, body)

        def many(body: bytes, count: int) -> bytes:
            return command(b"MULTI") + one(body) * count + command(b"EXEC")

        return Publishing(Dialogue(self.port).done(), Answers(b"*" if batches else b"$"), one, many)

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """XREADGROUP that waits when there is nothing."""
        dialogue = Dialogue(self.port)
        name = b"consumer-%d" % dialogue.sock.getsockname()[1]
        names = topic.encode(), channel.encode()
        half = b"%d" % ((ready + 1) // 2)
        group = (b"XREADGROUP", b"GROUP", names[1], name, b"COUNT", half, b"BLOCK", b"0")
        read = command(*group, b"STREAMS", names[0], b">")
        begin = read * min(2, ready)
        return Consuming(dialogue.done(), begin, RedisTaker(*names, size, read))


class RedisEverySecond(Redis):
    """Redis that syncs once a second."""

    sync = "everysec"
