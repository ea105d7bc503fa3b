"""Actions and the audit log in the API.

`nsqadmin.actions` performs the actions, checks roles and requires typed names. This module converts
bodies to orders and reports to answers. An action that failed everywhere is a 502 with its report.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from sparq.cluster import draining
from sparq.cluster.actions import Report
from sparq.cluster.fleet import UnknownNode
from sparq.cluster.upstream import UpstreamError
from sparq.daemon.access.audit import FILTERS
from sparq.daemon.http import JSON, Call, HttpError
from sparq.nsqadmin.actions import ActionRequest, error_of
from sparq.nsqadmin.messages.asking import nodes_of
from sparq.nsqadmin.messages.peek import by_node
from sparq.nsqadmin.messages.times import check_place
from sparq.nsqadmin.policies import is_gos
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.endpoints import ApiEndpoints, Arguments, Parameter, text_in, texts_in
from sparq.nsqadmin.v2.schemas import plain
from sparq.nsqadmin.v2.stats import LIMIT
from sparq.protocol.go_json import to_bytes

UNWRITTEN: Final = {503: "the audit log cannot be written"}
ENDPOINTS: Final = ApiEndpoints()


@ENDPOINTS.add(
    "POST",
    "/actions",
    "perform an action: pause, empty, delete, publish, requeue messages, close a client, ...",
    "Report",
    body="Action",
    errors=UNWRITTEN,
)
async def _act(services: Services, call: Call, arguments: Arguments) -> Any:
    body = arguments["body"]
    details: dict[str, Any] = {}
    try:
        if "messages" in body:
            details["ids"] = by_node(texts_in(body, "messages"))
    except ValueError as error:
        raise HttpError(400, f"INVALID_BODY: {error}") from None
    for name in ("to", "client"):
        if name in body:
            details[name] = text_in(body, name)
    if "nodes" in body:
        details["nodes"] = texts_in(body, "nodes")
    names = ("action", "topic", "channel", "node", "typed")
    action, topic, channel, node, typed = (text_in(body, name) for name in names)
    published = _published(body)
    if action == "publish_message":
        details["bytes"] = len(published)
    order = ActionRequest(action, topic, channel, node, details, typed, published)
    return await performed(services, call, order)


def _published(body: dict[str, Any]) -> bytes:
    """The message to publish, in the form in which the API shows messages."""
    text, encoding = text_in(body, "body"), text_in(body, "encoding") or "text"
    try:
        return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except ValueError as error:
        raise HttpError(400, f"INVALID_BODY: body: {error}") from None


@ENDPOINTS.add(
    "POST", "/seek", "move a channel to a place in the log", "Report", body="Seek", errors=UNWRITTEN
)
async def _seek(services: Services, call: Call, arguments: Arguments) -> Any:
    body = arguments["body"]
    topic, channel, to = (text_in(body, name) for name in ("topic", "channel", "to"))
    nodes = texts_in(body, "nodes")
    chosen, _ = await nodes_of(services.fleet, topic, nodes)
    check_place(to, len(chosen))
    details = {"to": to, **({"nodes": nodes} if nodes else {})}
    return await performed(
        services, call, ActionRequest("seek_channel", topic, channel, arguments=details)
    )


async def performed(services: Services, call: Call, order: ActionRequest) -> Any:
    """Perform an order; the answer shows what was done at which daemon."""
    return answer_of(await services.actions.perform(call.request, order))


def answer_of(report: Report) -> Any:
    """Convert a report to JSON values; if the action failed everywhere, the answer is a 502."""
    answer = {
        "result": report.result,
        "failed": report.failed,
        "outcomes": [{**asdict(one), "error": error_of(one)} for one in report.outcomes],
        "warnings": report.warnings,
    }
    if report.result != "failed":
        return answer
    return web.Response(status=502, body=to_bytes(answer), headers={"Content-Type": JSON})


NODE_DRAIN: Final = "/nodes/:node/drain"


@ENDPOINTS.add("GET", NODE_DRAIN, "whether a node is draining, and what is left there", "Drain")
async def _drain_shown(services: Services, _call: Call, arguments: Arguments) -> Any:
    try:
        node = await services.fleet.node(arguments["node"])
        return plain(await draining.progress(services.fleet, node))
    except UnknownNode:
        raise HttpError(404, "NODE_NOT_FOUND") from None
    except UpstreamError as error:
        if is_gos(error.reason):
            raise HttpError(501, "NOT_SUPPORTED: the node is NSQ's Go nsqd") from None
        raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None


@ENDPOINTS.add(
    "POST",
    NODE_DRAIN,
    "drain a node: it refuses publishes",
    "Report",
    Parameter("exit", "exit once nothing is left", "flag", default=False),
    errors=UNWRITTEN,
)
async def _drain(services: Services, call: Call, arguments: Arguments) -> Any:
    details = {"exit": arguments["exit"]}
    return await performed(
        services, call, ActionRequest("drain_node", "", "", arguments["node"], details)
    )


@ENDPOINTS.add(
    "DELETE", NODE_DRAIN, "end a drain: the node accepts publishes", "Report", errors=UNWRITTEN
)
async def _undrain(services: Services, call: Call, arguments: Arguments) -> Any:
    return await performed(services, call, ActionRequest("undrain_node", "", "", arguments["node"]))


@ENDPOINTS.add("POST", "/nodes/:node/dismiss", "dismiss a node that is gone", "Dismissed")
async def _dismiss(services: Services, _call: Call, arguments: Arguments) -> Any:
    if not services.watch.dismiss(arguments["node"]):
        raise HttpError(404, "NODE_NOT_FOUND: only a node that is gone can be dismissed")
    return {"node": arguments["node"]}


@ENDPOINTS.add(
    "GET",
    "/audit",
    "audit log: users' actions, newest first",
    "AuditPage",
    Parameter("before", "`next` of the previous answer"),
    LIMIT,
    *(Parameter(name, f"only entries with this {name}") for name in FILTERS),
)
async def _audit(services: Services, _call: Call, arguments: Arguments) -> Any:
    filters = {name: arguments[name] for name in FILTERS if arguments[name]}
    return asdict(await services.audit.page(arguments["before"], arguments["limit"], filters))
