"""Protocol V1 between nsqd and nsqlookupd: lines in, length-prefixed answers out.

`CommandHandlers` is the protocol itself, bytes in and bytes out; `LookupConnection` adds the
socket. Rules (docs/protocol.md, "V1: nsqd and nsqlookupd"):

1. Every command gets one answer, in order. An error is answered, then the connection ends.
2. A peer's input is limited: the length of a line, the size of IDENTIFY's body, and the time until
   its magic bytes. A body is refused by its announced size, before it is stored. `guard` decides
   which names and addresses a peer may register.
3. While a peer does not read its answers, nothing is read from it.
4. When a connection ends, its producer is removed from the registry at once.
5. DRAIN and UNDRAIN, for a topic or for the whole nsqd, are sparq's own commands. An nsqd that
   knows them says in IDENTIFY whether it drains. Only the answer to such an IDENTIFY says that
   nsqlookupd knows them, too (`protocol.lookup.KNOWS_DRAIN`); other nsqds get NSQ's original
   answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import time
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec

from sparq.daemon.access.rules import Caller
from sparq.daemon.address import peer_text
from sparq.nsqlookupd.guard import Guard
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.registry import RegisteredNsqd, Registry
from sparq.protocol.address import bare_host
from sparq.protocol.go_json import to_bytes
from sparq.protocol.instant import Instant
from sparq.protocol.lookup import KNOWS_DRAIN
from sparq.protocol.names import is_valid_name, quote

MAGIC = b"  V1"
MAGIC_SECONDS = 60.0
LINE_BYTES_MAX = 16 << 10
"""The same as nsqd's limit for a command line."""

IDENTIFY_BYTES_MAX = 64 << 10
"""An IDENTIFY body is under 1 KiB; names of hosts and zones are short."""

WRITE_HIGH_WATER_BYTES = 64 << 10
LINGER_SECONDS = 1.0
SHOWN_MAX = 100
"""Maximum characters of a peer's input that an error repeats."""

REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")
"""The required fields of IDENTIFY."""

DRAINING_TOPICS_MAX = 10_000

logger = logging.getLogger(__name__)


class Introduction(msgspec.Struct):
    """The body of IDENTIFY. `draining` None: the nsqd does not support draining."""

    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    http_port: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    draining: bool | None = None
    token: Any = ""


class ClientError(Exception):
    """A peer's mistake; the text is sent as the answer."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.text = text if isinstance(text, bytes) else text.encode()


def instant() -> Instant:
    """Read both clocks."""
    return Instant(time.time_ns(), time.monotonic_ns())


def reply(data: bytes) -> bytes:
    """Encode an answer as `i32 size | data`."""
    return struct.pack(">i", len(data)) + data


def host_of(remote_address: str) -> str:
    """Return the IP address of a peer; empty for a unix socket."""
    return remote_address.rpartition(":")[0].strip("[]")


class CommandHandlers:
    """The protocol with one peer, without a socket.

    `feed` takes bytes as they arrive and returns the answers to the commands that they complete.
    After it, `greeted` says whether correct magic bytes have arrived, and `ended` whether the
    connection has to be closed.
    """

    def __init__(
        self,
        registry: Registry,
        me: dict[str, Any],
        remote_address: str,
        peer_id: str,
        now: Callable[[], Instant],
        *,
        guard: Guard | None = None,
    ) -> None:
        self.greeted = False
        self.ended = False
        self.producer: RegisteredNsqd | None = None
        self._caller: Caller | None = None
        self._registry = registry
        self._me = me
        self._remote_address = remote_address
        self._peer_id = peer_id
        self._now = now
        self._guard = guard or Guard(NsqlookupdOptions())
        self._buffer = bytearray()
        self._searched = 0
        self._body_size: int | None = None
        # Reads the next bytes: a step returns an answer, or None if it needs more bytes.
        self._step: Callable[[], bytes | None] = self._read_magic
        self._commands: dict[bytes, Callable[[str, list[bytes]], None]] = {
            b"PING": self._ping,
            b"REGISTER": self._register,
            b"UNREGISTER": self._unregister,
            b"DRAIN": self._drain,
            b"UNDRAIN": self._drain,
        }

    def feed(self, data: bytes) -> bytes:
        """Process bytes; return the answers to the commands that they complete."""
        answers = []
        self._buffer += data
        try:
            while not self.ended and (answer := self._step()) is not None:
                answers.append(answer)
        except ClientError as error:
            logger.error("[%s] - %s", self._remote_address, error.text.decode("utf-8", "replace"))
            answers.append(reply(error.text))
            self.close()
        return b"".join(answers)

    def feed_eof(self) -> bytes:
        """Process the end of the input; return an error if it ends within a command's body."""
        is_cut = not self.ended and self._step == self._read_body
        what = "body size" if self._body_size is None else "body"
        self.close()
        return reply(f"E_BAD_BODY IDENTIFY failed to read {what}".encode()) if is_cut else b""

    def close(self) -> None:
        """End the protocol, and remove the producer from the registry."""
        self.ended = True
        self._buffer.clear()
        if self.producer is not None:
            logger.info("DB: client(%s) disconnected", self._remote_address)
            self._registry.remove(self.producer)
            self.producer = None

    def review(self, *, again: bool) -> bool:
        """Whether the peer's token is still valid; `again`: the token file was read again."""
        if self._caller is not None:
            self._caller = self._guard.review(self._caller, again=again)
            return self._caller is not None
        return True

    # Bytes

    def _read_magic(self) -> bytes | None:
        if len(self._buffer) < len(MAGIC):
            return None
        if self._buffer[: len(MAGIC)] != MAGIC:
            raise ClientError("E_BAD_PROTOCOL")
        del self._buffer[: len(MAGIC)]
        self.greeted = True
        self._step = self._read_line
        return b""

    def _read_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        if (end if end >= 0 else len(self._buffer)) >= LINE_BYTES_MAX:
            # As nsqd does with a line longer than its buffer: close without an answer.
            self.close()
            return b""
        if end < 0:
            # So a line that arrives byte by byte is not searched from its beginning each time.
            self._searched = len(self._buffer)
            return None
        words = bytes(self._buffer[:end]).strip().split(b" ")
        del self._buffer[: end + 1]
        self._searched = 0
        return self._execute(words[0], words[1:])

    def _read_body(self) -> bytes | None:
        buffer = self._buffer
        if self._body_size is None:
            if len(buffer) < 4:
                return None
            (size,) = struct.unpack_from(">i", buffer)
            del buffer[:4]
            if not 0 <= size <= IDENTIFY_BYTES_MAX:
                raise ClientError("E_BAD_BODY IDENTIFY failed to read body")
            self._body_size = size
        if len(buffer) < self._body_size:
            return None
        body = bytes(buffer[: self._body_size])
        del buffer[: self._body_size]
        self._body_size = None
        self._step = self._read_line
        return self._identify(body)

    # Commands

    def _execute(self, name: bytes, arguments: list[bytes]) -> bytes:
        if name == b"IDENTIFY":
            if self.producer is not None:
                raise ClientError("E_INVALID cannot IDENTIFY again")
            self._step = self._read_body
            return b""
        command = self._commands.get(name)
        if command is None:
            raise ClientError(b"E_INVALID invalid command " + name)
        command(name.decode(), arguments)
        return reply(b"OK")

    def _ping(self, _command: str, _arguments: list[bytes]) -> None:
        if self.producer is not None:
            now = self._now()
            silent_ns = now.mono_ns - self.producer.last_update.mono_ns
            logger.debug("CLIENT(%s): pinged (last ping %d ns)", self._remote_address, silent_ns)
            self.producer.last_update = now

    def _identify(self, body: bytes) -> bytes:
        producer, shown = read_producer(body, self._peer_id, self._remote_address, self._now())
        self._caller, reason = self._guard.identify(shown, self._remote_address)
        if reason:
            raise ClientError(f"E_UNAUTHORIZED IDENTIFY {reason}")
        producer.authenticated = self._caller is not None
        address, ports = producer.broadcast_address, (producer.tcp_port, producer.http_port)
        if not self._guard.may_claim(address, ports, host_of(self._remote_address)):
            where = f"{quote(address[:SHOWN_MAX])} {ports[0]} {ports[1]}"
            raise ClientError(f"E_INVALID IDENTIFY broadcast address {where} is not allowed")
        self.producer = producer
        self._registry.add(producer)
        logger.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            *(self._remote_address, address, *ports, producer.version),
        )
        # Go's nsqd gets NSQ's answer, byte for byte (rule 5).
        me = self._me if producer.draining is None else {**self._me, KNOWS_DRAIN: True}
        return reply(to_bytes(me))

    def _register(self, command: str, arguments: list[bytes]) -> None:
        producer, topic, channel = self._topic_channel(command, arguments)
        if reason := self._guard.refusal(self._registry, producer, topic, channel):
            raise ClientError(f"E_INVALID REGISTER {reason}")
        if not self._guard.may_register(self._caller, topic):
            raise ClientError("E_UNAUTHORIZED REGISTER this token may not register this topic")
        self._registry.register(producer, topic, channel)

    def _unregister(self, command: str, arguments: list[bytes]) -> None:
        producer, topic, channel = self._topic_channel(command, arguments)
        if channel:
            self._registry.unregister_channel(producer, topic, channel)
        else:
            self._registry.unregister_topic(producer, topic)

    def _drain(self, command: str, arguments: list[bytes]) -> None:
        """Note that an nsqd, or one of its topics, begins or stops refusing publishes."""
        begins = command == "DRAIN"
        if arguments:
            producer, topic, _ = self._topic_channel(command, arguments)
            if not begins:
                producer.draining_topics.discard(topic)
            # A topic may drain without being registered, so --max-registrations does not limit
            # these.
            elif len(producer.draining_topics) < DRAINING_TOPICS_MAX:
                producer.draining_topics.add(topic)
            else:
                raise ClientError(f"E_INVALID {command} too many topics")
        elif self.producer is None:
            raise ClientError("E_INVALID client must IDENTIFY")
        else:
            self.producer.draining = begins
            logger.info("DB: client(%s) %s", self._remote_address, command)

    def _topic_channel(
        self, command: str, arguments: list[bytes]
    ) -> tuple[RegisteredNsqd, str, str]:
        """Check and log a command for a topic, or for one of its channels (else "")."""
        if self.producer is None:
            raise ClientError("E_INVALID client must IDENTIFY")
        if not arguments:
            raise ClientError(f"E_INVALID {command} insufficient number of params")
        topic, channel = arguments[0], arguments[1] if len(arguments) > 1 else b""
        for what, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name) and (name or what == "topic"):
                error = f"E_BAD_{what.upper()} {command} {what} name '"
                raise ClientError(error.encode() + name + b"' is not valid")
        found = topic.decode(), channel.decode()
        logger.info("DB: client(%s) %s %s %s", self._remote_address, command, *found)
        return self.producer, *found


def read_producer(
    body: bytes, peer_id: str, remote_address: str, now: Instant
) -> tuple[RegisteredNsqd, str]:
    """Parse the body of IDENTIFY; return the nsqd and its token, "" without one.

    Raises:
        ClientError: it is not a JSON object, or a field is missing or has a wrong type.
    """
    try:
        given = json.loads(body)
        # Go accepts JSON keys in any case, so nsqds may send them so.
        given = {} if given is None else given
        fields = {key.lower(): value for key, value in given.items() if value is not None}
        facts = msgspec.convert(fields, Introduction)
    except (ValueError, RecursionError, AttributeError):
        raise ClientError("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
    if not all(getattr(facts, name) for name in REQUIRED):
        raise ClientError("E_BAD_BODY IDENTIFY missing fields")
    # Go's nsqd sends `--broadcast-address=[::1]` with its brackets; consumers add their own.
    facts.broadcast_address = bare_host(facts.broadcast_address)
    known = msgspec.structs.asdict(facts)
    token = known.pop("token")
    producer = RegisteredNsqd(peer_id, remote_address, **known, last_update=now)
    return producer, token if isinstance(token, str) else ""


class LookupConnection(asyncio.Protocol):
    """The socket of a `CommandHandlers`."""

    def __init__(
        self,
        registry: Registry,
        me: dict[str, Any],
        connections: set[LookupConnection],
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._host = ""
        self._registry = registry
        self._me = me
        self._connections = connections
        self._transport: asyncio.Transport
        self._conversation: CommandHandlers
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the magic bytes, with a deadline."""
        # uvloop's transports are not registered as asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        remote = peer_text(transport.get_extra_info("peername"))
        self._host = host_of(remote)
        # Peers on a unix socket have no address; the connection serves as their identity.
        peer_id = remote or f"unix:{id(self):x}"
        self._conversation = CommandHandlers(
            self._registry, self._me, remote, peer_id, instant, guard=self._guard
        )
        if not self._guard.admit(self._host):
            self._conversation.close()
            transport.abort()
            return
        self._connections.add(self)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._arm(MAGIC_SECONDS)
        logger.info("TCP: new client(%s)", remote)

    def data_received(self, data: bytes) -> None:
        """Process input, and send the answers to complete commands."""
        if self._conversation.ended:
            return
        answers = self._conversation.feed(data)
        # From here on there is no deadline: a silent nsqd is no longer listed, but may come back.
        if self._conversation.greeted:
            self._arm(None)
        self._transport.write(answers)
        if self._conversation.ended:
            # Closing at once, with input unread, would lose the error by a reset.
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._arm(LINGER_SECONDS)

    def eof_received(self) -> bool:
        """Send the answer to an unfinished command, then close."""
        if answer := self._conversation.feed_eof():
            self._transport.write(answer)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection, and its producer from the registry."""
        # `guard` refused it, so it was not counted.
        if self not in self._connections:
            return
        self._guard.forget(self._host)
        self._arm(None)
        self._conversation.close()
        self._connections.discard(self)

    def pause_writing(self) -> None:
        """Pause reading: the peer does not read its answers (rule 3)."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading: the peer reads again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection, when nsqlookupd stops."""
        self._transport.close()

    def review(self, *, again: bool) -> None:
        """Close if the peer's token is no longer valid; `again`: the token file was read again."""
        if not self._conversation.ended and not self._conversation.review(again=again):
            self._conversation.close()
            self._transport.close()

    def _arm(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._transport.abort)
