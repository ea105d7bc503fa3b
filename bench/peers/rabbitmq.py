"""RabbitMQ: durable classic queues, persistent messages, publisher confirms, AMQP 0-9-1.

A topic is a fanout exchange, a channel is a queue bound to it, and a RDY count is a consumer's
prefetch. A topic without channels has one queue, since an exchange without queues drops messages.
The Erlang port mapper that a node needs is started by the bench, too.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.support.servers import free_port

from bench.peers.nsq import stamps_of
from bench.peers.peer import (
    Consuming,
    Deliveries,
    Dialogue,
    Peer,
    Program,
    Publishing,
    RefusedError,
)

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
METHOD, HEADER, BODY, END = 1, 2, 3, b"\xce"
HEAD = struct.Struct(">BHI")
ACK = (60, 80)
ACK_BYTES = 21
PERSISTENT = 2
ALONE = "queue"
TAG = "c"


def short(text: str) -> bytes:
    """A short string of AMQP: its length in one byte, then the text."""
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame."""
    return HEAD.pack(kind, channel, len(payload)) + payload + END


def method(channel: int, numbers: tuple[int, int], arguments: bytes = b"") -> bytes:
    """A method frame."""
    return frame(METHOD, channel, struct.pack(">HH", *numbers) + arguments)


class Confirms:
    """Counts publishes that basic.ack confirms, singly or all up to a tag."""

    def __init__(self) -> None:
        self._rest = b""
        self._all_up_to = 0
        self._alone: set[int] = set()

    def __call__(self, data: bytes) -> int:
        """Return the number of publishes confirmed by this data.

        Raises:
            RefusedError: a frame is not a basic.ack.
        """
        data = self._rest + data
        whole = len(data) // ACK_BYTES * ACK_BYTES
        self._rest = data[whole:]
        count = 0
        for at in range(0, whole, ACK_BYTES):
            numbers = struct.unpack_from(">HH", data, at + HEAD.size)
            if numbers != ACK:
                raise RefusedError(f"method {numbers}: {data[at : at + 200]!r}")
            tag, has_all = struct.unpack_from(">QB", data, at + HEAD.size + 4)
            count += self._confirm(tag, bool(has_all))
        return count

    def _confirm(self, tag: int, has_all: bool) -> int:
        if not has_all:
            self._alone.add(tag)
            return 1
        known = {number for number in self._alone if number <= tag}
        count = tag - self._all_up_to - len(known)
        self._alone -= known
        self._all_up_to = tag
        return count


class AmqpAcknowledger:
    """Turns deliveries of one size into one basic.ack each."""

    is_stamped = False

    def __init__(self, topic: str, size: int) -> None:
        arguments = 4 + len(short(TAG)) + 8 + 1 + len(short(topic)) + len(short(""))
        self._tag_at = HEAD.size + 4 + len(short(TAG))
        header = HEAD.size + 14 + 1 + 1
        self._body_at = HEAD.size + arguments + 1 + header + HEAD.size
        self._width = self._body_at + size + 1
        self._ack = np.frombuffer(method(1, ACK, bytes(9)), np.uint8)
        self._rest = b""

    def take(self, data: bytes) -> Deliveries:
        """Acknowledge the complete deliveries."""
        data = self._rest + data
        count = len(data) // self._width
        self._rest = data[count * self._width :]
        if not count:
            return Deliveries(0, b"")
        frames = np.frombuffer(data, np.uint8, count * self._width).reshape(count, self._width)
        assert (frames[:, 0] == METHOD).all()
        acks = np.tile(self._ack, (count, 1))
        acks[:, HEAD.size + 4 : HEAD.size + 12] = frames[:, self._tag_at : self._tag_at + 8]
        stamps = frames[:, self._body_at : self._body_at + 8]
        return Deliveries(count, acks.tobytes(), stamps_of(stamps) if self.is_stamped else ())


class Rabbitmq(Peer):
    """A RabbitMQ node with its own port mapper."""

    can = frozenset({"channels"})
    needs = "epmd"

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run; "" if it can."""
        return super().missing() if SERVER.is_file() else "needs rabbitmq-server"

    def make_program(self) -> Program:
        """The node; its settings keep it apart from any other node on the machine."""
        mapper_port = free_port()
        command = ["epmd", "-address", "127.0.0.1", "-port", str(mapper_port)]
        self._mapper = Program(command, self.folder, mapper_port)
        (self.folder / "plugins").write_text("[].")
        (self.folder / "bench.conf").touch()
        loopback = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
        environment = {
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "bench"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        }
        return Program([str(SERVER)], self.folder, self.port, environment)

    def start(self) -> None:
        """Start the mapper, then the node, and wait until a login succeeds.

        A node without a mapper would start one that keeps running after the node's end.
        """
        self._mapper.start()
        super().start()
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.hello().close()
            except (RefusedError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def kill(self) -> None:
        """Kill the node, then the mapper."""
        super().kill()
        self._mapper.kill()

    def close(self) -> None:
        """End the node and the mapper, and delete the data."""
        self.kill()
        super().close()

    def answer(self, dialogue: Dialogue, wanted: tuple[int, int]) -> bytes:
        """Read the next frame, which must be the wanted method; return its arguments."""
        kind, _, size = HEAD.unpack(dialogue.exactly(HEAD.size))
        payload = dialogue.exactly(size + 1)[:-1]
        numbers = struct.unpack_from(">HH", payload)
        if (kind, numbers) != (METHOD, wanted):
            raise RefusedError(f"{numbers} for {wanted}: {payload[:200]!r}")
        return payload[4:]

    def ask(self, dialogue: Dialogue, numbers: tuple[int, int], arguments: bytes = b"") -> None:
        """Call a method on channel 1; its answer must have the next method number."""
        dialogue.send(method(1, numbers, arguments))
        self.answer(dialogue, (numbers[0], numbers[1] + 1))

    def hello(self) -> Dialogue:
        """Open a connection: logged in as guest, channel 1 open, no heartbeats."""
        dialogue = Dialogue(self.port)
        dialogue.send(b"AMQP\x00\x00\x09\x01")
        self.answer(dialogue, (10, 10))
        login = struct.pack(">I", 12) + b"\0guest\0guest"
        dialogue.send(method(0, (10, 11), bytes(4) + short("PLAIN") + login + short("en_US")))
        self.answer(dialogue, (10, 30))
        dialogue.send(method(0, (10, 31), struct.pack(">HIH", 16, 131_072, 0)))
        dialogue.send(method(0, (10, 40), short("/") + b"\0\0"))
        self.answer(dialogue, (10, 41))
        self.ask(dialogue, (20, 10), b"\0")
        # channel.open-ok contains a long string, which is ignored.
        return dialogue

    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """Create a durable exchange, and a durable queue for each channel."""
        dialogue = self.hello()
        exchange = b"\0\0" + short(topic) + short("fanout") + b"\x02" + bytes(4)
        self.ask(dialogue, (40, 10), exchange)
        for channel in channels or (ALONE,):
            queue = short(f"{topic}.{channel}")
            self.ask(dialogue, (50, 10), b"\0\0" + queue + b"\x02" + bytes(4))
            self.ask(dialogue, (50, 20), b"\0\0" + queue + short(topic) + short("") + bytes(5))
        dialogue.close()

    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Delete the queues and the exchange."""
        dialogue = self.hello()
        for channel in channels or (ALONE,):
            self.ask(dialogue, (50, 40), b"\0\0" + short(f"{topic}.{channel}") + b"\0")
        self.ask(dialogue, (40, 20), b"\0\0" + short(topic) + b"\0")
        dialogue.close()

    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """Publish by basic.publish with header and body, in confirm mode."""
        dialogue = self.hello()
        self.ask(dialogue, (85, 10), b"\0")
        head = method(1, (60, 40), b"\0\0" + short(topic) + short("") + b"\0")

        def one(body: bytes) -> bytes:
            content = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, PERSISTENT)
            return head + frame(HEADER, 1, content) + frame(BODY, 1, body)

        return Publishing(dialogue.done(), Confirms(), one)

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Set the prefetch now; basic.consume, without an answer, starts the deliveries."""
        dialogue = self.hello()
        self.ask(dialogue, (60, 10), struct.pack(">IHB", 0, ready, 0))
        queue = short(f"{topic}.{channel}")
        begin = method(1, (60, 20), b"\0\0" + queue + short(TAG) + b"\x08" + bytes(4))
        return Consuming(dialogue.done(), begin, AmqpAcknowledger(topic, size))
