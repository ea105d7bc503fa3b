"""A small nsqd that can be made to fail: range commands and MPUB over one log in memory.

It uses the real command parser and serves stored batches. Its attributes set which errors it
makes. Each connection has a thread, so that blocking clients can be tested in one process.
"""

import contextlib
import json
import socket
import struct
import threading

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands, layout
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser
from tests.spark.stored import NODE, stored_batch
from tests.support.servers import free_port


class RangeServer:
    """An nsqd with one topic, `clicks`, and one channel.

    Attributes:
        log: the log's id.
        batches: (first index, bodies) of each stored batch, in order.
        first: the first index of the log; earlier messages are deleted.
        committed: the index of the channel's cursor.
        epoch: epoch of the newest ATTACH.
        lost: number of messages lost to damage that each READ reports.
        read_batches_max: maximum number of batches in the answer to one READ.
        refuse: by command name, the error with which the command is refused.
        ranges: the announced version of range reading; 0: no range reading.
        times: by wall time in ns, the index to return for it; other times return the log's end.
        hang_up_after: by command name, how many such commands are answered before the connection
            is closed without an answer; counts down.
        refuse_after: by command name, how many such commands are answered before one is refused,
            with the error.
        published: (topic, body) of each published message.
        deferred: the delay in ms of each deferred message, by (topic, body).
        heard: the received commands, in order.
    """

    def __init__(self, port: int = 0, ranges: int = 2) -> None:
        self.log = "ab" * 16
        self.batches: list[tuple[int, list[bytes]]] = []
        self.first = 0
        self.committed = 0
        self.epoch = 100
        self.lost = 0
        self.read_batches_max = 2
        self.refuse: dict[str, RemoteError] = {}
        self.hang_up_after: dict[str, int] = {}
        self.times: dict[int, int] = {}
        self.refuse_after: dict[str, tuple[int, RemoteError]] = {}
        self.published: list[tuple[str, bytes]] = []
        self.deferred: dict[tuple[str, bytes], int] = {}
        self.heard: list[commands.Command] = []
        self.ranges = ranges
        self._sockets: list[socket.socket] = []
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    # Start and stop

    def start(self) -> None:
        """Listen; after `stop`, on the same port."""
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def stop(self) -> None:
        """Close the listening socket and all connections, as a kill does."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._sockets.clear()

    def __enter__(self) -> "RangeServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self._sockets.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        parser = CommandParser(IdentifyLimits())
        with connection, contextlib.suppress(OSError):
            if connection.recv(4, socket.MSG_WAITALL) != commands.MAGIC_V2:
                return  # the client has disconnected, or the server was stopped
            while data := connection.recv(1 << 20):
                parser.feed(data)
                while (command := parser.next()) is not None:
                    name = type(command).__name__
                    self.heard.append(command)
                    if name in self.hang_up_after:
                        self.hang_up_after[name] -= 1
                        if self.hang_up_after[name] < 0:
                            del self.hang_up_after[name]
                            connection.shutdown(socket.SHUT_RDWR)
                            return
                    connection.sendall(self._answer(name, command))

    def _answer(self, name: str, command: commands.Command) -> bytes:
        try:
            if name in self.refuse:
                raise self.refuse[name]
            if name in self.refuse_after:
                left, refusal = self.refuse_after[name]
                self.refuse_after[name] = left - 1, refusal
                if not left:
                    raise refusal
            return getattr(self, f"_{name.lower()}")(command)
        except RemoteError as refusal:
            return layout.error(refusal.frame_text())

    # The log

    def add(self, bodies: list[bytes], gap: int = 0) -> None:
        """Append a stored batch; `gap` indexes before it belong to no message."""
        self.batches.append((self.end + gap, bodies))

    @property
    def end(self) -> int:
        """The index after the last message."""
        if not self.batches:
            return self.first
        index, bodies = self.batches[-1]
        return index + len(bodies)

    def ordinal_at(self, index: int) -> int:
        """Number of messages before an index."""
        return sum(min(len(bodies), max(0, index - at)) for at, bodies in self.batches)

    def _index_at(self, ordinal: int) -> int:
        for at, bodies in self.batches:
            if ordinal < len(bodies):
                return at + ordinal
            ordinal -= len(bodies)
        return self.end

    # Commands

    def _identify(self, _: commands.Identify) -> bytes:
        reply = {"version": "1.3.0", "max_rdy_count": 2500}
        if self.ranges:
            reply |= {"sparq_range": self.ranges, "sparq_version": "0.1.0"}
        return layout.response(json.dumps(reply).encode())

    def _ends_object(self) -> dict[str, object]:
        return {
            "log": self.log,
            "node": NODE,
            "first": str(self.first),
            "end": str(self.end),
            "first_ordinal": self.ordinal_at(self.first),
            "end_ordinal": self.ordinal_at(self.end),
        }

    def _attach(self, _: commands.Attach) -> bytes:
        self.epoch += 1
        own = {
            "epoch": self.epoch,
            "committed": str(self.committed),
            "committed_ordinal": self.ordinal_at(self.committed),
            "created": False,
        }
        return layout.response(json.dumps(self._ends_object() | own).encode())

    def _readends(self, command: commands.ReadEnds) -> bytes:
        answer = self._ends_object()
        if command.kind == "after":
            ordinal = self.ordinal_at(max(command.value, self.first))  # earlier ones are deleted
            at = self._index_at(ordinal + command.count)
            answer |= {"from_ordinal": ordinal, "at": str(at), "at_ordinal": self.ordinal_at(at)}
        elif command.kind == "time":
            at = self.times.get(command.value, self.end)
            answer |= {"at": str(at), "at_ordinal": self.ordinal_at(at)}
        elif command.kind == "within":
            answer |= self._within(command.value, command.count)
        return layout.response(json.dumps(answer).encode())

    def size_of(self, position: int) -> int:
        """Size of a stored batch in bytes."""
        at, bodies = self.batches[position]
        return len(stored_batch(bodies, at))

    def _within(self, first: int, max_bytes: int) -> dict[str, object]:
        """Answer a READENDS "within"; each batch is an extent."""
        reached, size = first, 0
        for position, (at, bodies) in enumerate(self.batches):
            if at + len(bodies) <= max(first, self.first):
                continue
            more = self.size_of(position)
            if size and size + more > max_bytes:
                break
            reached, size = at + len(bodies), size + more
        ordinal = self.ordinal_at(max(first, self.first))
        answer = {"at": str(reached), "at_ordinal": self.ordinal_at(reached), "size": size}
        return {**answer, "from_ordinal": ordinal}

    def _read(self, command: commands.Read) -> bytes:
        if command.log != self.log:
            raise RemoteError("E_RANGE_FAILED", f"READ failed log {self.log} is not {command.log}")
        if command.first < self.first:
            raise RemoteError(
                "E_RANGE_FAILED",
                f"READ failed index {command.first} is before the first index, {self.first}",
            )
        chosen = [
            (at, bodies)
            for at, bodies in self.batches
            if at < command.end and at + len(bodies) > command.first
        ]
        served, rest = chosen[: self.read_batches_max], chosen[self.read_batches_max :]
        following = rest[0][0] if rest else command.end
        data = b"".join(stored_batch(bodies, at) for at, bodies in served)
        return layout.frame(3, struct.pack(">qq", following, self.lost) + data)

    def _commitrange(self, command: commands.CommitRange) -> bytes:
        if command.epoch != self.epoch:
            raise RemoteError(
                "E_COMMIT_FAILED",
                f"COMMIT failed epoch {command.epoch} was superseded by {self.epoch}",
            )
        self.committed = command.index
        return layout.response(b"OK")

    def _topicneeded(self, _: commands.TopicNeeded) -> bytes:
        return b""

    def _multipublish(self, command: commands.MultiPublish) -> bytes:
        self.published += [(command.topic, bytes(body)) for body in command.bodies]
        return layout.response(b"OK")

    def _deferredpublish(self, command: commands.DeferredPublish) -> bytes:
        (body,) = command.bodies
        self.published.append((command.topic, bytes(body)))
        self.deferred[self.published[-1]] = command.defer_ms
        return layout.response(b"OK")


def key(server: RangeServer) -> str:
    """The key of the server's log in an offset."""
    return f"{server.address}/{server.log}"


def at(server: RangeServer, index: int, address: str = "") -> dict[str, object]:
    """The offset up to an index of the server's log, first found at `address`."""
    place = {"index": index, "ordinal": server.ordinal_at(index)}
    return {f"{address or server.address}/{server.log}": place}
