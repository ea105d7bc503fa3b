"""nsqd's HTTP endpoints (docs/http.md).

1. Checks run in NSQ's order, since clients see the first one that fails.
2. A publish is answered when its messages are stored, a change of topics or channels when it is on
   disk.
3. A publish that storage refuses gets 503 `PUB_FAILED: <reason>`; while nsqd stops it gets 503
   EXITING, while nsqd drains 503 DRAINING.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sparq.daemon.access.rules import Role
from sparq.daemon.debug import Debug
from sparq.daemon.http import JSON, TEXT, Call, Content, HttpError, Route, topic_channel
from sparq.daemon.prometheus_text import CONTENT_TYPE
from sparq.nsqd import metrics, stats_format
from sparq.nsqd.config import ConfigRoutes
from sparq.nsqd.draining import DrainRoutes
from sparq.nsqd.inspection import Inspection
from sparq.nsqd.message_actions import MessageActions
from sparq.nsqd.parameters import shown_time, target_of
from sparq.nsqd.policies import PolicyRoutes
from sparq.nsqd.turns import instant
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol import NSQ_VERSION
from sparq.protocol.errors import DRAINING, RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.names import is_valid_name
from sparq.protocol.runs import parse_body

if TYPE_CHECKING:
    from sparq.nsqd.reload import Reloader
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.instant import Instant

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_NEWLINE = 0x0A

DONE_SECONDS = 5.0
"""How long a change may wait for the disk before it is answered with 503 NOT_DONE."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class NsqdEndpoints:
    """The HTTP handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd, reloader: Reloader) -> None:
        self._nsqd = nsqd
        self._reloader = reloader
        self._broker = nsqd.broker
        self._limits = nsqd.limits
        self._start_ns = time.time_ns()
        self.debug = Debug()
        self._inspection = Inspection(nsqd)

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        broker = self._broker
        return [
            Route("GET", "/ping", self.ping, plain=True, log=False),
            Route("GET", "/live", lambda _call: "OK", plain=True, log=False),
            Route("GET", "/info", self.info),
            Route("GET", "/stats", self.stats, log=False),
            Route("GET", "/metrics", self.metrics, plain=True, log=False),
            Route("POST", "/pub", self.publish, log=False),
            Route("POST", "/mpub", self.multi_publish, log=False),
            *(
                Route("POST", f"/topic/{verb}", partial(self.change_topic, act, is_checked))
                for verb, act, is_checked in (
                    ("create", broker.create_topic, True),
                    # As in NSQ, these do not check the name.
                    ("delete", broker.delete_topic, False),
                    ("pause", partial(broker.pause_topic, paused=True), False),
                    ("unpause", partial(broker.pause_topic, paused=False), False),
                    # Messages that no channel may see yet.
                    ("empty", broker.empty_topic, True),
                )
            ),
            *(
                Route("POST", f"/channel/{verb}", partial(self.change_channel, act))
                for verb, act in (
                    ("create", broker.create_channel),
                    ("delete", broker.delete_channel),
                    # A range reader continues in a paused channel.
                    ("pause", partial(broker.pause_channel, paused=True)),
                    ("unpause", partial(broker.pause_channel, paused=False)),
                    # All messages, including those in flight.
                    ("empty", broker.empty_channel),
                )
            ),
            Route("POST", "/channel/seek", self.seek_channel),
            Route("POST", "/client/close", self.close_client),
            *self._inspection.routes(),
            *MessageActions(self._nsqd, self._inspection, self._change).routes(),
            *PolicyRoutes(self._nsqd).routes(),
            *DrainRoutes(self._nsqd).routes(),
            *ConfigRoutes(self._nsqd, self._reloader).routes(),
            *(self.debug.all_routes() if self._nsqd.options.http.debug_routes else ()),
        ]

    # Health, information, statistics

    def ping(self, _call: Call) -> str:
        """Return OK if nsqd is healthy; otherwise 500 with the reason."""
        health = self._broker.health()
        if health != "OK":
            raise HttpError(500, health)
        return health

    def info(self, _call: Call) -> dict[str, Any]:
        """Return names, ports and limits, for nsqadmin and clients."""
        nsqd, limits, broker = self._nsqd, self._limits, self._nsqd.options.broker
        return {
            "version": NSQ_VERSION,
            "broadcast_address": nsqd.options.lookupd.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": nsqd.http_port,
            "tcp_port": nsqd.tcp_port,
            "start_time": self._start_ns // SECOND,
            "max_heartbeat_interval": limits.max_heartbeat_interval_ms * MILLISECOND,
            "max_output_buffer_size": limits.max_output_buffer_size,
            "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * MILLISECOND,
            "max_deflate_level": limits.max_deflate_level,
            "topology_zone": broker.topology_zone,
            "topology_region": broker.topology_region,
        }

    async def stats(self, call: Call) -> Content:
        """Return the statistics of topics, channels and clients."""
        query, access = call.query, self._nsqd.access
        wanted = stats_format.StatsRequest(
            query.get("topic") or None,
            query.get("channel") or None,
            call.flag("include_clients", True),
            call.flag("include_mem", True),
            # Who may read one topic is not shown the clients of the others.
            all_producers=access is None or access.allows(call, Role.READ),
            client=query.get("client") or None,
        )
        as_json = query.get("format") == "json"
        pieces = (stats_format.json_pieces if as_json else stats_format.text_pieces)(
            self._broker, wanted, self._start_ns, instant()
        )
        body = b"".join(await stats_format.encoded(pieces))
        return Content(body, JSON if as_json else TEXT)

    async def metrics(self, _call: Call) -> Content:
        """Return the figures for Prometheus."""
        pieces = metrics.pieces(self._nsqd, self._start_ns, instant())
        return Content(b"".join(await stats_format.encoded(pieces)), CONTENT_TYPE)

    # Publishing

    async def publish(self, call: Call) -> str:
        """Publish one message."""
        body = await call.body(self._limits.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = valid_topic(call)
        return await self._publish(topic, BodySlices.of([body]), self._defer_ms(call))

    async def multi_publish(self, call: Call) -> str:
        """Publish many messages: one per line, or in MPUB's binary form."""
        if (call.request.content_length or 0) > self._limits.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        topic = valid_topic(call)
        defer_ms = self._defer_ms(call)
        read = self._read_binary if is_binary(call) else self._read_lines
        bodies = read(await call.body(self._limits.max_body_size, "BODY_TOO_BIG"))
        if "channel" in call.query:
            return await self._publish_to_channel(*topic_channel(call), bodies)
        if not len(bodies) and not self._broker.drains.refusal(topic):
            # As in NSQ, naming a topic creates it, even without a message.
            await self._change(topic, lambda now: self._broker.create_topic(topic, now))
            return "OK"
        return await self._publish(topic, bodies, defer_ms)

    def _defer_ms(self, call: Call) -> int:
        return defer_of(call.query, self._limits.max_req_timeout_ms)

    def _read_binary(self, body: bytes) -> BodySlices:
        try:
            return parse_body(body, self._limits.max_msg_size, self._limits.max_body_size)
        except RemoteError as error:
            raise HttpError(413, error.code.removeprefix("E_")) from error

    def _read_lines(self, body: bytes) -> BodySlices:
        bodies = lines_of(body)
        if len(bodies) and int(np.max(bodies.sizes)) > self._limits.max_msg_size:
            raise HttpError(413, "MSG_TOO_BIG")
        return bodies

    async def _publish(self, topic: str, bodies: BodySlices, defer_ms: int) -> str:
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            await self._nsqd.publish(topic, bodies, defer_ms)
        except RemoteError as error:
            raise publish_error(error) from error
        return "OK"

    async def _publish_to_channel(self, name: str, channel: str, bodies: BodySlices) -> str:
        """Publish to one channel only, for a topic that moves here (see `sparq admin move`).

        They cannot go to that channel alone if the topic does not pass messages on (it is paused,
        or waits for its channels from nsqlookupd), or if another channel is read by ranges (a range
        of the log contains every message).
        """
        topic = self._broker.topics.get(name)
        if topic is None or channel not in topic.channels:
            raise HttpError(404, "TOPIC_NOT_FOUND" if topic is None else "CHANNEL_NOT_FOUND")
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        if not len(bodies):
            return "OK"
        if not topic.flows:
            raise HttpError(400, f"INVALID_REQUEST: topic {name} is paused")
        for other in topic.channels.values():
            if other.name != channel and other.range_epoch:
                raise HttpError(400, f"INVALID_REQUEST: channel {other.name} is read by ranges")
        begin = partial(self._broker.publish, name, bodies, instant(), only=channel)
        try:
            await self._nsqd.ask(begin)
        except RemoteError as error:
            raise publish_error(error) from error
        return "OK"

    # Topics and channels

    async def change_topic(self, act: Callable[..., object], is_checked: bool, call: Call) -> None:
        """Create, delete, empty, pause or unpause a topic; `act` is the broker's method."""
        topic = valid_topic(call) if is_checked else call.argument("topic")
        await self._change(topic, lambda now: act(topic, now=now))

    async def change_channel(self, act: Callable[..., object], call: Call) -> None:
        """Create, delete, empty, pause or unpause a channel; `act` is the broker's method."""
        topic, channel = topic_channel(call)
        await self._change(topic, lambda now: act(topic, channel, now=now))

    async def seek_channel(self, call: Call) -> dict[str, Any]:
        """Move a channel's cursor; return its new place and how many messages come again.

        With `dry_run` the cursor stays where it is; with `may_skip=false`, also if unfinished
        messages would be skipped.
        """
        topic, channel = topic_channel(call)
        target = target_of(call.query.get("to"), time.time_ns())
        dry_run, may_skip = call.flag("dry_run", False), call.flag("may_skip", True)
        # Skipping unfinished messages has the effect of emptying, so it needs the same role.
        access = self._nsqd.access
        may_empty = access is None or access.allows(call, Role.ADMINISTER, topic)
        seek = await self._change(
            topic,
            lambda now: self._broker.seek(
                topic, channel, target, now, dry_run=dry_run, may_skip=may_skip and may_empty
            ),
        )
        if seek.landing is None and seek.error is None:
            # It had to read more than once.
            await self._change(topic, lambda _now: None)
        if seek.error is not None:
            raise HttpError(500, f"INTERNAL_ERROR: {seek.error.reason}")
        if seek.landing is None:  # the channel was deleted before the place was found
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        if seek.refused:
            skips = f"the seek skips {seek.landing.skipped} unfinished messages"
            if not may_empty:
                raise HttpError(403, f"FORBIDDEN: {skips}, which needs the role administer")
            raise HttpError(409, f"WOULD_SKIP: {skips}")
        landing, oldest = seek.landing, seek.landing.oldest_index
        return {
            "index": str(landing.index),
            "time": shown_time(landing.time_ns),
            "again": landing.again,
            "waiting": landing.waiting,
            "skipped": landing.skipped,
            "oldest_index": None if oldest is None else str(oldest),
            "oldest_time": shown_time(landing.oldest_time_ns),
            # So that "older ones are deleted" is not mistaken for "there were none".
            "older_are_gone": landing.older_are_gone,
        }

    # Clients

    async def close_client(self, call: Call) -> None:
        """Close the connection of a client, named by its remote address as in `/stats`."""
        address = call.argument("client")
        # Clients of a Unix socket have no address.
        if not address or not await self._nsqd.disconnect(address):
            raise HttpError(404, "CLIENT_NOT_FOUND")

    async def _change(self, topic: str, apply: Callable[[Instant], T]) -> T:
        """Apply a change to a topic; return its result once it is complete and on disk.

        Raises:
            HttpError: the change is refused; or 503 NOT_DONE with the reason, if the disk does not
                accept it in time. It is retried until it succeeds, also after a restart.
        """
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            result = apply(instant())
        except RemoteError as error:
            raise change_error(error) from error
        try:
            # One limit for all of it: the tasks of other topics come first, however slow they are.
            async with asyncio.timeout(DONE_SECONDS):
                await self._nsqd.turns.wait_until_complete(topic)
        except TimeoutError:
            reason = self._broker.not_durable_reason(topic) or "the disk is busy"
            raise HttpError(503, f"NOT_DONE: {reason}") from None
        return result


def valid_topic(call: Call) -> str:
    """Return the argument `topic`.

    Raises:
        HttpError: 400, it is missing or is not a legal name.
    """
    topic = call.argument("topic")
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    return topic


def defer_of(query: Mapping[str, str], longest_ms: int) -> int:
    """Return the parameter `defer` in milliseconds; 0 if it is missing.

    Raises:
        HttpError: 400 INVALID_DEFER, it is not a number from 0 to `longest_ms`.
    """
    text = query.get("defer")
    if text is None:
        return 0
    defer_ms = int(text) if _NUMBER.fullmatch(text) else -1
    if not 0 <= defer_ms <= longest_ms:
        raise HttpError(400, "INVALID_DEFER")
    return defer_ms


def is_binary(call: Call) -> bool:
    """Whether an /mpub is in binary form; any text that is not a boolean means yes, as in NSQ."""
    if "binary" not in call.query:
        return False
    binary = call.flag("binary", True)
    if call.query["binary"] not in ("true", "1", "false", "0"):
        logger.warning('deprecated value "%s" used for /mpub?binary=', call.query["binary"])
    return binary


def lines_of(body: bytes) -> BodySlices:
    """Split a body at newlines (only those) into messages; empty lines are left out."""
    # Not `splitlines`, which also splits at \r; not `split`, which copies each body. These are
    # slices of the one buffer.
    breaks = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)
    starts = np.concatenate(([0], breaks + 1)).astype(np.int64)
    sizes = np.concatenate((breaks, [len(body)])).astype(np.int64) - starts
    filled = sizes > 0
    return BodySlices(body, starts[filled], sizes[filled])


def publish_error(error: RemoteError) -> HttpError:
    """Return the HTTP error for a refused publish."""
    if error.drained:
        return HttpError(503, "DRAINING" if error.drained == DRAINING else "TOPIC_DRAINING")
    command = error.code.removeprefix("E_").removesuffix("_FAILED")
    reason = error.text.removeprefix(f"{command} failed ")
    if reason == "exiting":
        return HttpError(503, "EXITING")
    return HttpError(503, f"PUB_FAILED: {reason}")


def change_error(error: RemoteError) -> HttpError:
    """Return the HTTP error for a refused change: NSQ's code, with the reason unless nsqd stops."""
    code = error.code.removeprefix("E_")
    if code == "EXITING":
        return HttpError(error.http_status, code)
    return HttpError(error.http_status, f"{code}: {error.text}" if error.text else code)
