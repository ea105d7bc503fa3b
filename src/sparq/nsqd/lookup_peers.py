"""Register topics and channels with every nsqlookupd, and ask them for a new topic's channels.

Each nsqlookupd has its own task and its own connection (docs/protocol.md, "How nsqd registers").

1. A peer that is slow, dead or sends wrong answers does not affect the other peers or the broker.
   Only a new topic's first delivery waits for the peers, for at most 5 s.
2. On each new connection everything is registered again; changes follow in order. Changes while a
   peer is disconnected are not queued: the next registration includes them. Otherwise a change is
   written at once, in the turn that makes it and before the turn's replies: who looks up a topic
   after the OK of its first publish finds it, also an #ephemeral one, whose OK waits for no disk.
3. A lost connection is noticed at once. The first retry comes after 0.1 s, later ones at growing
   intervals of at most 0.8 s (P16), so a restarted nsqlookupd knows this nsqd within a second. If
   the same error repeats, it is not logged as a warning again.
4. IDENTIFY says whether this nsqd drains. Later changes of drains are sent only to an nsqlookupd
   that has answered that it knows DRAIN: sparq's. Go's ends the connection for an unknown command,
   and ignores an unknown field.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections import deque
from collections.abc import Coroutine, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparq.broker.draining import NONE, Draining
from sparq.daemon import address
from sparq.nsqd.options import http_timeouts
from sparq.protocol import NSQ_VERSION, go_json, lookup
from sparq.protocol.bounded import collected
from sparq.protocol.names import is_ephemeral

if TYPE_CHECKING:
    import aiohttp

    from sparq.broker.turn import Change
    from sparq.nsqd.server import Nsqd

MAGIC = b"  V1"
PING_SECONDS = 15.0
CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 0.8

COMMANDS_AT_ONCE = 256
"""Commands sent before their answers are read.

One at a time would be a round trip each; all at once could fill the buffers of both sides, as
nsqlookupd reads no more while its answers are not read.
"""

ANSWER_SECONDS = 4.5
"""After this time a new topic gets the channels received so far (the broker waits 5 s)."""

logger = logging.getLogger(__name__)


class PeerError(Exception):
    """An nsqlookupd has broken the protocol."""


def command(name: str, topic: str | None, channel: str | None = None) -> bytes:
    """Return a command for a channel, for a topic, or for the whole nsqd."""
    return " ".join(word for word in (name, topic, channel) if word is not None).encode() + b"\n"


def drain_commands(before: Draining, now: Draining) -> list[bytes]:
    """Return the commands for all changes of the drains from `before` to `now`."""
    lines = []
    if (before.node is None) != (now.node is None):
        lines.append(command("UNDRAIN" if now.node is None else "DRAIN", None))
    changed = before.topics.keys() ^ now.topics.keys()
    return lines + [command("DRAIN" if t in now.topics else "UNDRAIN", t) for t in changed]


class Peer:
    """The connection to one nsqlookupd.

    Attributes:
        http_address: its HTTP address, from its answer to IDENTIFY; None while not connected.
        knows_drain: whether it accepts DRAIN and UNDRAIN.
        tried: set once the first attempt to connect has succeeded or failed.
    """

    def __init__(self, where: str, nsqd: Nsqd) -> None:
        self.where = where
        self.http_address: str | None = None
        self.knows_drain = False
        self.tried = asyncio.Event()
        self._nsqd = nsqd
        self._writer: asyncio.StreamWriter | None = None  # once everything has been registered
        self._news: deque[bytes] = deque()
        self._unanswered: deque[bytes] = deque()
        self._has_news = asyncio.Event()
        self._retry_seconds = RETRY_SECONDS_MIN
        self._trouble = ""

    def tell(self, line: bytes) -> None:
        """Send a command; it is dropped while the peer is disconnected (rule 2)."""
        if self.http_address is None:
            return
        self._news.append(line)
        self._has_news.set()
        if self._writer is not None and len(self._unanswered) < COMMANDS_AT_ONCE:
            self._send_news(self._writer)

    async def run(self) -> None:
        """Keep the connection open, reconnecting until the task is cancelled."""
        while True:
            try:
                await self._converse()
            # UnicodeError: Python refuses to resolve a name such as `a..b`.
            except (OSError, EOFError, TimeoutError, PeerError, UnicodeError) as error:
                trouble = str(error) or type(error).__name__
                level = logging.DEBUG if trouble == self._trouble else logging.WARNING
                logger.log(level, "LOOKUPD(%s): %s", self.where, trouble)
                self._trouble = trouble
            self.tried.set()
            await asyncio.sleep(self._retry_seconds)
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    async def _converse(self) -> None:
        host_port = address.split(self.where)
        async with asyncio.timeout(CONNECT_SECONDS):
            if host_port is None:
                reader, writer = await asyncio.open_unix_connection(self.where)
            else:
                reader, writer = await asyncio.open_connection(*host_port)
        broker = self._nsqd.broker
        try:
            introduced = await self._introduce(reader, writer)
            logger.info("LOOKUPD(%s): connected", self.where)
            self._trouble = ""
            self.tried.set()
            # Drains come first, so that nsqlookupd sends no producer here in between.
            if self.knows_drain:
                self._news.extend(drain_commands(introduced, broker.drains.now))
            # Each channel, and each topic without a channel.
            self._news.extend(
                command("REGISTER", topic, channel)
                for topic, having in broker.topics.items()
                for channel in (having.channels or (None,))
            )
            await self._settle(reader, writer)
            # Only now: one that accepts connections but no registration is retried less often, too.
            self._retry_seconds = RETRY_SECONDS_MIN
            self._writer = writer
            while True:
                first = await self._wait(reader)
                if not self._unanswered and not self._news:
                    self._news.append(b"PING\n")
                await self._settle(reader, writer, first)
        finally:
            self.http_address = self._writer = None
            self._news.clear()
            self._unanswered.clear()
            self._has_news.clear()
            writer.close()

    async def _introduce(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Draining:
        """Send IDENTIFY and read its answer; return the drains that the peer knows by it."""
        now = self._nsqd.broker.drains.now
        writer.write(MAGIC + introduction(self._nsqd, now))
        reply = await self._reply(reader)
        try:
            me = json.loads(reply)
            host, port = me["broadcast_address"], me["http_port"]
            self.knows_drain = me.get(lookup.KNOWS_DRAIN) is True
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise PeerError(f"answered IDENTIFY with {reply[:200]!r}") from None
        # From here on changes are queued; the registration that follows has the present state.
        self.http_address = address.join(str(host), port) if isinstance(port, int) else ""
        # IDENTIFY has no field for draining topics: they follow as commands.
        return Draining(now.node, {})

    async def _settle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b""
    ) -> None:
        """Send the queued commands and check that each command is answered with OK.

        `first` is the first byte of the first answer, if it has been read.
        """
        while self._unanswered or self._news:
            if not self._unanswered:
                self._send_news(writer)
            line = self._unanswered.popleft()
            reply, first = await self._reply(reader, first), b""
            if reply != b"OK":
                raise PeerError(f"answered {line.decode().strip()} with {reply[:200]!r}")
        self._has_news.clear()

    def _send_news(self, writer: asyncio.StreamWriter) -> None:
        """Send the next commands of the queue, in its order."""
        room = min(len(self._news), COMMANDS_AT_ONCE - len(self._unanswered))
        lines = [self._news.popleft() for _ in range(room)]
        writer.write(b"".join(lines))
        self._unanswered.extend(lines)

    async def _reply(self, reader: asyncio.StreamReader, first: bytes = b"") -> bytes:
        async with asyncio.timeout(REPLY_SECONDS):
            head = first + await reader.readexactly(4 - len(first))
            # As a size it would be 1.2 GB; the usual mistake is nsqlookupd's HTTP port in the flag.
            if head == b"HTTP":
                raise PeerError("speaks HTTP: use nsqlookupd's TCP port (4160 by default)")
            (size,) = struct.unpack(">i", head)
            size_max = self._nsqd.options.broker.limits.max_body_size
            if not 0 <= size <= size_max:
                raise PeerError(f"announced an answer of {size} bytes; the maximum is {size_max}")
            return without_token(self._nsqd, await reader.readexactly(size))

    async def _wait(self, reader: asyncio.StreamReader) -> bytes:
        """Wait until there is a command to send or to check, or a PING is due.

        Returns the first byte of an answer that has already arrived, else nothing.

        Raises:
            PeerError: the connection has ended, or the peer sends something unasked.
        """
        # Without the read, a lost connection would be noticed at the next PING, up to 15 s later.
        reading = asyncio.ensure_future(reader.read(1))
        news = asyncio.ensure_future(self._has_news.wait())
        both = (reading, news)
        try:
            await asyncio.wait(both, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Wait for the cancelled read, too: a stream lets only one coroutine read, and `_reply`
            # is next.
            for future in both:
                future.cancel()
            await asyncio.wait(both)
        if reading.cancelled():
            return b""
        first = reading.result()
        if first and self._unanswered:
            return first
        raise PeerError("sent unexpected data" if first else "closed the connection")


class LookupPeers:
    """All nsqlookupds of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker
        self._peers: dict[str, Peer] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: aiohttp.ClientSession | None = None
        self._told_of = NONE
        self._early: list[Change] = []
        nsqd.turns.on_changes = self._keep

    async def start(self) -> None:
        """Connect to every nsqlookupd, in the background."""
        options = self._nsqd.options
        self.set_addresses(options.lookupd.tcp_addresses)
        self._nsqd.turns.on_changes = self.tell
        self._keep()
        self._broker.changes.extend(self._early)
        self._nsqd.drain_watchers.append(self.send_drains)
        self.tell()
        self.send_drains()

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Connect to these nsqlookupds, keep existing connections, and close the others.

        A removed nsqlookupd forgets this nsqd at once; a new one gets all registrations.
        """
        wanted = dict.fromkeys(addresses)
        for where in self._peers.keys() - wanted.keys():
            # Release the tasks that wait for its first attempt to connect.
            self._peers[where].tried.set()
            self._runs.pop(where).cancel()
        for where in wanted.keys() - self._peers.keys():
            self._peers[where] = peer = Peer(where, self._nsqd)
            self._runs[where] = self._begin(peer.run())
        self._peers = {where: self._peers[where] for where in wanted}
        self._broker.set_has_lookupd(bool(wanted))

    async def stop(self) -> None:
        """Close the connections: the nsqlookupds forget this nsqd at once."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def _keep(self) -> None:
        """Keep changes until `start`: each turn would log again those that stay in the broker."""
        self._early += self._broker.changes
        self._broker.changes.clear()

    def tell(self) -> None:
        """Send registrations for the topics and channels that were created or deleted."""
        changes = self._broker.changes
        while changes:
            kind, topic, channel = changes.popleft()
            line = command("REGISTER" if kind == "created" else "UNREGISTER", topic, channel)
            for peer in self._peers.values():
                peer.tell(line)
            if kind == "created" and channel is None and self._peers:
                self._begin(self._ask_channels(topic))

    def send_drains(self) -> None:
        """Send the changes of the drains."""
        now = self._broker.drains.now
        lines, self._told_of = drain_commands(self._told_of, now), now
        for peer in self._peers.values():
            for line in lines if peer.knows_drain else ():
                peer.tell(line)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask_channels(self, topic: str) -> None:
        """Ask for the channels that a new topic has elsewhere, then let its messages flow."""
        names: set[str] = set()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                peers = self._peers.values()
                await asyncio.gather(*(self._ask_peer(peer, topic, names) for peer in peers))
        except TimeoutError:
            logger.warning(
                "LOOKUPD: not all nsqlookupds returned the channels of %s in time", topic
            )
        self._broker.channels_known(topic, sorted(names))
        self._nsqd.turns.schedule()

    async def _ask_peer(self, peer: Peer, topic: str, names: set[str]) -> None:
        """Add the topic's channels that a peer knows, without ephemeral ones, to `names`."""
        await peer.tried.wait()
        where = peer.http_address  # it is reset when the connection is lost
        if not where:
            return
        # Loaded with the first request, so that the start does not wait for it.
        loaded = await asyncio.to_thread(import_module, "aiohttp")
        self._http = self._http or loaded.ClientSession(
            timeout=http_timeouts(self._nsqd.options),
            headers=lookup.HEADERS,
            # A small compressed answer could expand to gigabytes.
            auto_decompress=False,
        )
        url = lookup.question(where, "channels", topic=topic)
        token = self._nsqd.lookupd_token
        shown = {"Authorization": f"Bearer {token}"} if token else None
        try:
            async with self._http.get(url, allow_redirects=False, headers=shown) as answer:
                body = await collected(answer.content.iter_any(), lookup.ANSWER_BYTES_MAX)
            # Into the shared set: if another peer is too slow, the names found so far count.
            names.update(channels_of(answer.status, without_token(self._nsqd, body)))
        except (OSError, TimeoutError, ValueError, loaded.ClientError) as error:
            logger.warning(
                "LOOKUPD(%s): could not get the channels of %s: %s", peer.where, topic, error
            )


def without_token(nsqd: Nsqd, answer: bytes) -> bytes:
    """Return an answer without the token, which an nsqlookupd may echo: answers may be logged."""
    token = nsqd.lookupd_token.encode()
    return answer.replace(token, b"***") if token else answer


def introduction(nsqd: Nsqd, drains: Draining = NONE) -> bytes:
    """Return the IDENTIFY command, with the addresses that consumers need to find this nsqd."""
    options = nsqd.options
    facts = {
        "version": NSQ_VERSION,
        "tcp_port": options.lookupd.broadcast_tcp_port or nsqd.tcp_port,
        "http_port": options.lookupd.broadcast_http_port or nsqd.http_port,
        "hostname": socket.gethostname(),
        "broadcast_address": options.lookupd.broadcast_address,
        "topology_zone": options.broker.topology_zone,
        "topology_region": options.broker.topology_region,
        "draining": drains.node is not None,
    }
    if nsqd.lookupd_token:  # Go's nsqlookupd ignores it
        facts["token"] = nsqd.lookupd_token
    body = go_json.to_bytes(facts)
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def channels_of(status: int, body: bytes) -> list[str]:
    """Return the channels in an nsqlookupd's answer to /channels, without ephemeral ones.

    Raises:
        ValueError: the answer is not valid.
    """
    names, _ = lookup.names(lookup.answer(status, body), "channels")
    return [name for name in names if not is_ephemeral(name)]
