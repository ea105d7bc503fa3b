"""NSQ's own JSON API, as NSQ's nsqadmin serves it (docs/nsqadmin.md).

1. Shapes are NSQ's: an empty list is null; a failure of some daemons is a warning in `message`. If
   no daemon answered, or none could report which nodes have a topic, the status is 502.
2. Unlike NSQ, an unknown channel is 404 CHANNEL_NOT_FOUND, an unknown node is refused with
   404 NODE_NOT_FOUND, and a client is in one list, not two.
3. Rights are checked before the body is read; an invalid body gets NSQ's error codes.
4. `/config/<option>` returns the value of any option; two options can be changed. Text is sent as
   it is, other values as JSON: durations in ns, a log level as its number. User, password and query
   of URLs are never shown, and neither is a token.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sparq.cluster import cluster_stats
from sparq.cluster.fleet import Gathered
from sparq.daemon.access.audit import entry_of
from sparq.daemon.access.rules import Role
from sparq.daemon.http import JSON, Call, Content, HttpError
from sparq.daemon.options import hidden, public
from sparq.daemon.reload import LEVEL_NUMBERS, new_value
from sparq.nsqadmin.access import AdminRoute
from sparq.nsqadmin.actions import ActionRequest, perform
from sparq.nsqadmin.graphite import Graphite
from sparq.nsqadmin.options import NsqadminOptions, base_of
from sparq.nsqadmin.services import Services
from sparq.options.declare import flags_of, replaced
from sparq.options.units import SECOND
from sparq.program import logging as log_lines
from sparq.protocol.names import is_valid_name

T = TypeVar("T")

REQUEST_BYTES_MAX: Final = 1 << 20
ACTIONS: Final = ("pause", "unpause", "empty")
LOOKUPDS: Final = "nsqlookupd_http_addresses"

_FLAGS: Final = {flag.key: flag for flag in flags_of(NsqadminOptions) if flag.key != "verbose"}
"""Flags by NSQ's names, without `verbose`, which Go's nsqadmin does not show."""

_SHOWN: dict[str, Callable[[Any], Any]] = {
    "log_level": LEVEL_NUMBERS.__getitem__,
    "upstream_token": hidden,
    "graphite_url": public,
    "notification_http_endpoint": public,
}

logger = logging.getLogger(__name__)


def routes(services: Services) -> list[AdminRoute]:
    """List the routes of NSQ's API."""
    api = NsqApi(services)
    topic, channel, node = "/api/topics/:topic", "/api/topics/:topic/:channel", "/api/nodes/:node"
    found = [
        AdminRoute(Role.READ, "GET", "/api/topics", api.topics),
        AdminRoute(Role.READ, "GET", topic, api.topic),
        AdminRoute(Role.READ, "GET", channel, api.channel),
        AdminRoute(Role.READ, "GET", "/api/nodes", api.nodes),
        AdminRoute(Role.READ, "GET", node, api.node),
        AdminRoute(Role.READ, "GET", "/api/counter", api.counter),
        AdminRoute(Role.READ, "GET", "/api/graphite", api.rate),
        AdminRoute(Role.OPERATE, "POST", "/api/topics", api.create),
        AdminRoute(Role.OPERATE, "POST", topic, api.change),
        AdminRoute(Role.OPERATE, "POST", channel, api.change),
        AdminRoute(Role.ADMINISTER, "DELETE", topic, api.change),
        AdminRoute(Role.ADMINISTER, "DELETE", channel, api.change),
        AdminRoute(Role.ADMINISTER, "DELETE", node, api.tombstone),
        AdminRoute(None, "GET", "/config/:opt", api.option),
        AdminRoute(None, "PUT", "/config/:opt", api.set_option),
    ]
    graphite = api.graphite
    if services.options.proxy_graphite and graphite is not None:
        render = AdminRoute(
            Role.READ, "GET", "/render", lambda call: graphite.render(call.raw_query)
        )
        found.append(render)
    return found


class NsqApi:
    """The handlers of NSQ's API."""

    def __init__(self, services: Services) -> None:
        self._services, self._fleet = services, services.fleet
        url = services.options.graphite_url
        seconds = services.options.http_client_connect_timeout_ns / SECOND
        self.graphite = Graphite(url, seconds) if url else None

    # Reads

    async def topics(self, call: Call) -> dict[str, Any]:
        """List topic names; with `inactive=true` topics that no node has, with their channels."""
        if call.query.get("inactive") == "true":
            idle = _needed(await self._fleet.without_producers())
            named = {topic: channels or None for topic, channels in idle.value.items()}
            return {"topics": named, "message": _warning(idle.text)}
        names = _needed(await self._fleet.topics())
        return {"topics": names.value or None, "message": _warning(names.text)}

    async def topic(self, call: Call) -> dict[str, Any]:
        """The figures of a topic, in total and by node."""
        topic = call.parameters["topic"]
        producers = _needed(await self._fleet.producers(topic))
        stats = _needed(await self._fleet.stats(topic, nodes=producers.value))
        found = cluster_stats.topic_of(topic, producers.value, stats.value, time.time())
        return {**found, "message": _warning(producers.text, stats.text)}

    async def channel(self, call: Call) -> dict[str, Any]:
        """The figures of a channel, in total and by node, with its clients."""
        topic, channel = call.parameters["topic"], call.parameters["channel"]
        producers = _needed(await self._fleet.producers(topic))
        stats = _needed(
            await self._fleet.stats(topic, channel, clients=True, nodes=producers.value)
        )
        found = cluster_stats.channel_of(topic, channel, producers.value, stats.value, time.time())
        if found is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return {**found, "message": _warning(producers.text, stats.text)}

    async def nodes(self, _call: Call) -> dict[str, Any]:
        """List the nsqds."""
        found = _needed(await self._fleet.nodes())
        listed = [node.document() for node in found.value]
        return {"nodes": listed or None, "message": _warning(found.text)}

    async def node(self, call: Call) -> dict[str, Any]:
        """One nsqd with its topics, channels and clients."""
        address = call.parameters["node"]
        found = _needed(await self._fleet.nodes())
        nodes = [node for node in found.value if node.address == address]
        if not nodes:
            raise HttpError(404, "NODE_NOT_FOUND")
        stats = _needed(await self._fleet.stats(clients=True, nodes=nodes))
        topics = cluster_stats.topics_at(nodes[0], stats.value[address], time.time())
        channels = [channel for topic in topics for channel in topic["channels"]]
        return {
            "node": address,
            "topics": topics or None,
            "total_messages": sum(topic["message_count"] for topic in topics),
            "total_clients": sum(len(channel["clients"] or ()) for channel in channels),
            "message": _warning(found.text),
        }

    async def counter(self, _call: Call) -> dict[str, Any]:
        """Message count of each channel at each node."""
        nodes = _needed(await self._fleet.nodes())
        stats = _needed(await self._fleet.stats(nodes=nodes.value))
        counted = {
            f"{topic.topic_name}:{channel.channel_name}:{address}": {
                "node": address,
                "topic_name": topic.topic_name,
                "channel_name": channel.channel_name,
                "message_count": channel.message_count,
            }
            for address, each in stats.value.items()
            for topic in each.topics
            for channel in topic.channels
        }
        return {"stats": counted, "message": _warning(nodes.text, stats.text)}

    async def rate(self, call: Call) -> dict[str, str]:
        """Fetch a rate from graphite."""
        if call.query.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = call.query.get("target")
        if target is None:
            raise HttpError(400, "INVALID_ARG_TARGET")
        if self.graphite is None:
            raise HttpError(500, "INTERNAL_ERROR")
        interval = self._services.options.statsd.interval_ns // SECOND
        return {"rate": await self.graphite.rate(target, interval)}

    # Actions

    async def create(self, call: Call) -> dict[str, str]:
        """Create a topic, and a channel if one is named."""
        topic, channel = await _fields(call, "topic", "channel")
        kind = "channel" if channel else "topic"
        return await self._done(call, ActionRequest(f"create_{kind}", topic, channel))

    async def change(self, call: Call) -> dict[str, str]:
        """Pause, unpause, empty or delete a topic or a channel."""
        topic, channel, action = (
            call.parameters["topic"],
            call.parameters.get("channel", ""),
            "delete",
        )
        if call.request.method != "DELETE":
            (action,) = await _fields(call, "action")
            if action not in ACTIONS:
                raise HttpError(400, "INVALID_ACTION")
        kind = "channel" if channel else "topic"
        return await self._done(call, ActionRequest(f"{action}_{kind}", topic, channel))

    async def tombstone(self, call: Call) -> dict[str, str]:
        """Hide a node from a topic's consumers, and delete the topic there."""
        try:
            (topic,) = await _fields(call, "topic")
        except HttpError as error:
            raise HttpError(error.status, "INVALID_BODY") from None
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        order = ActionRequest("tombstone_topic_producer", topic, node=call.parameters["node"])
        return await self._done(call, order)

    async def _done(self, call: Call, order: ActionRequest) -> dict[str, str]:
        report = await perform(self._services, call.request, order, must_type=False)
        if report.failed:
            raise HttpError(502, f"UPSTREAM_ERROR: {report.failed}")
        return {"message": _warning(report.text)}

    # Options

    def option(self, call: Call) -> Any:
        """The value of an option, as NSQ shows it."""
        return _value(self._services.options, call.parameters["opt"])

    async def set_option(self, call: Call) -> Any:
        """Change an option; returns its new value."""
        name = call.parameters["opt"]
        body = await call.body(REQUEST_BYTES_MAX, "INVALID_VALUE")
        if not body:
            # NSQ's status for an empty body as well as for one that is too large.
            raise HttpError(413, "INVALID_VALUE")
        if await self._services.audit.unavailable():
            raise HttpError(503, "AUDIT_UNAVAILABLE")
        if name not in (LOOKUPDS, "log_level"):
            raise HttpError(400, "INVALID_OPTION")
        key = "lookupd_http_addresses" if name == LOOKUPDS else "log.level"
        try:
            wanted = new_value(name, body)
            (self._fleet.set_lookupds if name == LOOKUPDS else log_lines.set_level)(wanted)
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        self._services.options = replaced(self._services.options, {key: wanted})
        value = _value(self._services.options, name)
        logger.warning("HTTP: %s is now %s", name, value)
        caller = self._services.access.decide(call.request)
        entry = entry_of(caller, f"config_{name}", "done", arguments={"value": value})
        await self._services.audit.record(entry)
        # As in Go: null empties the list, and is also the answer.
        return Content(b"null", JSON) if body.strip() == b"null" else value


def _needed(found: Gathered[T]) -> Gathered[T]:
    """Return the result unchanged.

    Raises:
        HttpError: 502 if no daemon answered.
    """
    if found.failed:
        raise HttpError(502, f"UPSTREAM_ERROR: {found.failure}")
    return found


def _warning(*texts: str) -> str:
    """The `message` of an answer; "" if nothing went wrong."""
    warnings = [text for text in texts if text]
    return f"WARNING: {'; '.join(warnings)}" if warnings else ""


async def _fields(call: Call, *names: str) -> list[str]:
    """Read text fields of the JSON object at the start of a body; "" for missing fields.

    Raises:
        HttpError: 400 with the reason if the body is invalid; 413 BODY_TOO_BIG.
    """
    text = (await call.body(REQUEST_BYTES_MAX, "BODY_TOO_BIG")).decode("utf-8", "replace").lstrip()
    if not text:
        raise HttpError(400, "EOF")
    try:
        # Not json.loads: as in Go's json.Decoder, which NSQ uses, text after the first value is
        # ignored.
        document, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise HttpError(400, "invalid JSON") from None
    # As in Go: null is read as an empty object, and keys are not case-sensitive.
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise HttpError(400, "invalid JSON: the body must be an object")
    folded: dict[str, Any] = {str(key).lower(): value for key, value in document.items()}
    found = [folded.get(name) or "" for name in names]
    for name, value in zip(names, found, strict=True):
        if not isinstance(value, str):
            raise HttpError(400, f"invalid JSON: {name} must be a string")
    return found


def _value(options: NsqadminOptions, name: str) -> Any:
    if name == "base_path":
        return base_of(options) or "/"
    if name not in _FLAGS:
        raise HttpError(400, "INVALID_OPTION")
    value = _FLAGS[name].value(options)
    return _SHOWN[name](value) if name in _SHOWN else value
