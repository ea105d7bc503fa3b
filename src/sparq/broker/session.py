"""One client connection as the broker sees it: its RDY window, its options and its output.

1. Replies leave in the order of the commands, although commits finish out of order: each reply
   takes a slot at once, and the slot is filled later. Messages may overtake replies, except for the
   reply to a SUB.
2. Output leaves only through `take_output`, which is called after the turn's disk writes.
3. After `closing` is set, no command is executed any more; replies that have a slot are still sent.
4. A session knows neither its channel nor its topic: the broker does. Channels call sessions;
   sessions call neither channels nor topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from sparq.broker.options import BrokerOptions
from sparq.options.units import MILLISECOND
from sparq.protocol import layout
from sparq.protocol.commands import STATE_INIT
from sparq.protocol.errors import RemoteError
from sparq.protocol.identify import Granted
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.permissions import Permissions

Buffer = bytes | bytearray | memoryview


class Proximity(IntEnum):
    """Where a consumer is relative to this nsqd; a smaller value is nearer."""

    ZONE = 0
    REGION = 1
    OTHER = 2


class Slot:
    """A place in the order of replies; `data` is None until the answer is known.

    Attributes:
        data: the first bytes of the answer, or all of it.
        more: the rest, if the answer is too large to be copied into one buffer.
    """

    # One slot is made per publish: class defaults avoid the cost of calling an `__init__`.
    data: Buffer | None = None
    more: Sequence[Buffer] = ()


class TlsFacts(NamedTuple):
    """The result of a TLS handshake, named as in `/stats`."""

    cipher_suite: str = ""
    version: str = ""
    negotiated_protocol: str = ""
    negotiated_protocol_is_mutual: bool = False
    common_name: str = ""
    """Common name of the client's verified certificate."""


class V2Session:
    """A connected client.

    Attributes:
        state: 0 before SUB, 3 subscribed, 4 after CLS (the numbers of `/stats`); the parser checks
            the next command against it.
        ready_count: the client's RDY; messages are delivered while `in_flight_count` is below it.
        nearness: the client's location relative to this nsqd; None: not used for delivery.
        owner: the number that identifies this session in its channel.
        uncommitted_bytes: size of its publishes that are not on disk yet.
        tls, deflate, snappy: the layers in use with the client, for `/stats`.
        upgrade: layers granted by IDENTIFY that the I/O layer must switch to after the reply; no
            command is executed until it has. The I/O layer then resets this to None.
        auth_identity, auth_identity_url: the client's identity from authd; empty without AUTH.
        permissions: the permissions from authd; None before AUTH.
        takes_envelopes: whether it receives dead letters in their envelopes.
        paused_writing: set by the I/O layer while the client reads too slowly.
        closing: whether the connection ends as soon as `is_drained` is true.
    """

    def __init__(
        self, session_id: int, remote_address: str, now: Instant, options: BrokerOptions
    ) -> None:
        self.id = session_id
        self.remote_address = remote_address
        self.connect_wall_ns = now.wall_ns
        self.state = STATE_INIT
        self.closing = False
        self.identified = False
        self.heartbeat_interval_ms = options.limits.heartbeat_interval_ms
        self.msg_timeout_ns = options.limits.msg_timeout_ms * MILLISECOND
        self.sample_rate = 0
        self.takes_envelopes = False
        host = remote_address.rpartition(":")[0].strip("[]")
        self.client_id = host
        self.hostname = host
        self.user_agent = ""
        self.topology_region = ""
        self.topology_zone = ""
        self.nearness: Proximity | None = None
        self.tls: TlsFacts | None = None
        self.deflate = self.snappy = False
        self.upgrade: Granted | None = None
        self.authed = False
        self.auth_identity = self.auth_identity_url = ""
        self.permissions: Permissions | None = None
        self.owner = 0
        self.ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.pub_counts: dict[str, int] = {}
        self.uncommitted_bytes = 0
        self._replies: deque[Slot] = deque()
        self._messages_behind: Slot | None = None
        self._outbox: list[Buffer] = []
        self.outbox_bytes = 0
        self._output_bytes_max = options.output_bytes_max
        self.paused_writing = False

    def identify(self, granted: Granted) -> None:
        """Apply what IDENTIFY negotiated; delivery options only the first time.

        The source of this rule is docs/protocol.md, "States".

        Raises:
            RemoteError: it requests a layer under or next to one that is active already.
        """
        is_compressed = self.deflate or self.snappy
        if granted.upgrades:
            # NSQ would start the second layer and damage the connection (docs/differences.md).
            if is_compressed or (granted.tls_v1 and self.tls is not None):
                raise RemoteError("E_IDENTIFY_FAILED", "IDENTIFY failed already upgraded")
            self.upgrade = granted
        self.client_id = granted.client_id
        self.hostname = granted.hostname
        self.user_agent = granted.user_agent
        self.topology_region = granted.topology_region
        self.topology_zone = granted.topology_zone
        if not self.identified:
            self.identified = True
            self.heartbeat_interval_ms = granted.heartbeat_interval_ms
            self.msg_timeout_ns = granted.msg_timeout_ms * MILLISECOND
            self.sample_rate = granted.sample_rate
            self.takes_envelopes = granted.dead_letter_envelopes

    def window(self) -> int:
        """How many more messages the client may receive now."""
        if self.paused_writing or self.closing or self.outbox_bytes >= self._output_bytes_max:
            return 0
        # No message may overtake the OK of SUB, and the OK waits for all replies before it. Replies
        # to later commands count as well, but only until the OK has been taken.
        if self._messages_behind is not None and any(slot.data is None for slot in self._replies):
            return 0
        return self.ready_count - self.in_flight_count

    def is_blocked(self) -> bool:
        """Whether taking output may open the window: it is full or waits for the reply to SUB."""
        return self._messages_behind is not None or self.outbox_bytes >= self._output_bytes_max

    def room_bytes(self) -> int:
        """How many more bytes of output may be queued for this client."""
        return self._output_bytes_max - self.outbox_bytes

    def limit_output(self, size_bytes: int) -> None:
        """Queue at most this much output from now on."""
        self._output_bytes_max = min(self._output_bytes_max, size_bytes)

    def reply(self, data: Buffer) -> None:
        """Answer a command now; the reply follows those of earlier commands."""
        self.slot().data = data

    def reply_error(self, error: RemoteError) -> None:
        """Answer a command with an error; a fatal error also ends the connection after it."""
        self.slot().data = layout.error(error.frame_text())
        if error.fatal:
            self.closing = True

    def slot(self) -> Slot:
        """Reserve the place of an answer that comes later."""
        slot = Slot()
        self._replies.append(slot)
        return slot

    def hold_messages(self) -> None:
        """Hold messages back until the newest answer, the one to SUB, has been sent."""
        self._messages_behind = self._replies[-1]

    def send(self, run: Buffer, size_bytes: int, count: int) -> None:
        """Queue a run of messages as output; they count as in flight from now on."""
        # In flight before it is written, as in NSQ: if the connection breaks, it waits for its
        # timeout.
        self._outbox.append(run)
        self.outbox_bytes += size_bytes
        self.in_flight_count += count
        self.message_count += count

    def has_answers(self) -> bool:
        """Whether some answer is known but not yet taken."""
        return any(slot.data is not None for slot in self._replies)

    def is_drained(self) -> bool:
        """Whether all commands have been answered and all output has been taken."""
        return not self._replies and not self._outbox

    def take_output(self) -> list[Buffer]:
        """Return what to send now: replies in order, then messages; removes it from the queues."""
        replies = self._replies
        output: list[Buffer] = []
        while replies and (data := replies[0].data) is not None:
            output.append(data)
            output += replies[0].more
            if replies.popleft() is self._messages_behind:
                self._messages_behind = None
        if self._outbox:
            output += self._outbox
            self._outbox = []
            self.outbox_bytes = 0
        return output
