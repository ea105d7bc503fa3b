"""Actions, policies and the audit log in the API.

`nsqadmin.actions` performs the actions, checks roles and requires typed names. This module converts
bodies to orders and reports to answers. An action that failed everywhere is a 502 with its report.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any, Final

import msgspec
from aiohttp import web

from sparq.cluster import draining
from sparq.cluster.actions import Report
from sparq.cluster.draining import DrainProgress
from sparq.cluster.fleet import UnknownNode
from sparq.cluster.upstream import UpstreamError
from sparq.daemon.access.audit import FILTERS
from sparq.daemon.http import JSON, Call, HttpError
from sparq.nsqadmin import policies
from sparq.nsqadmin.actions import ActionRequest, error_of
from sparq.nsqadmin.messages.asking import nodes_of
from sparq.nsqadmin.messages.peek import by_node
from sparq.nsqadmin.messages.times import check_place
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.answers import (
    ApiAction,
    ApiAuditPage,
    ApiDismissed,
    ApiPolicies,
    ApiPolicyDocument,
    ApiReport,
    ApiSeek,
    plain,
)
from sparq.nsqadmin.v2.endpoints import ApiEndpoints, Arguments, Parameter
from sparq.nsqadmin.v2.stats import LIMIT
from sparq.protocol.go_json import to_bytes
from sparq.protocol.names import is_valid_name

ENDPOINTS: Final = ApiEndpoints()
NODE_DRAIN: Final = "/nodes/:node/drain"
TYPED: Final = Parameter("typed", "the word `policies`, to confirm; not needed with `dry_run`")
DRY_RUN: Final = Parameter("dry_run", "only report the changes at each nsqd", "flag", default=False)


@ENDPOINTS.add(
    "POST",
    "/actions",
    "perform an action: pause, empty, delete, publish, requeue messages, close a client, ...",
    ApiReport,
    body=ApiAction,
    writes=True,
)
async def _act(services: Services, call: Call, arguments: Arguments) -> Any:
    body: ApiAction = arguments["body"]
    details = {name: getattr(body, name) for name in ("to", "client", "nodes")}
    details = {name: value for name, value in details.items() if value is not None}
    try:
        if body.messages is not None:
            details["ids"] = by_node(body.messages)
        published = body.body.encode()
        if body.encoding == "base64":
            published = base64.b64decode(published, validate=True)
    except ValueError as error:
        raise HttpError(400, f"INVALID_BODY: {error}") from None
    if body.action == "publish_message":
        details["bytes"] = len(published)
    about = (body.topic, body.channel, body.node, details, body.typed, published)
    return await performed(services, call, ActionRequest(body.action, *about))


@ENDPOINTS.add(
    "POST", "/seek", "move a channel to a place in the log", ApiReport, body=ApiSeek, writes=True
)
async def _seek(services: Services, call: Call, arguments: Arguments) -> Any:
    body: ApiSeek = arguments["body"]
    chosen, _ = await nodes_of(services.fleet, body.topic, body.nodes)
    check_place(body.to, len(chosen))
    details = {"to": body.to, **({"nodes": body.nodes} if body.nodes else {})}
    order = ActionRequest("seek_channel", body.topic, body.channel, arguments=details)
    return await performed(services, call, order)


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


@ENDPOINTS.add(
    "GET", NODE_DRAIN, "whether a node is draining, and what is left there", DrainProgress
)
async def _drain_shown(services: Services, _call: Call, arguments: Arguments) -> Any:
    try:
        node = await services.fleet.node(arguments["node"])
        return plain(await draining.progress(services.fleet, node))
    except UnknownNode:
        raise HttpError(404, "NODE_NOT_FOUND") from None
    except UpstreamError as error:
        if policies.is_gos(error.reason):
            raise HttpError(501, "NOT_SUPPORTED: the node is NSQ's Go nsqd") from None
        raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None


@ENDPOINTS.add(
    "POST",
    NODE_DRAIN,
    "drain a node: it refuses publishes",
    ApiReport,
    Parameter("exit", "exit once nothing is left", "flag", default=False),
    writes=True,
)
async def _drain(services: Services, call: Call, arguments: Arguments) -> Any:
    details = {"exit": arguments["exit"]}
    order = ActionRequest("drain_node", "", "", arguments["node"], details)
    return await performed(services, call, order)


@ENDPOINTS.add(
    "DELETE", NODE_DRAIN, "end a drain: the node accepts publishes", ApiReport, writes=True
)
async def _undrain(services: Services, call: Call, arguments: Arguments) -> Any:
    return await performed(services, call, ActionRequest("undrain_node", "", "", arguments["node"]))


@ENDPOINTS.add("POST", "/nodes/:node/dismiss", "dismiss a node that is gone", ApiDismissed)
async def _dismiss(services: Services, _call: Call, arguments: Arguments) -> Any:
    if not services.watch.dismiss(arguments["node"]):
        raise HttpError(404, "NODE_NOT_FOUND: only a node that is gone can be dismissed")
    return {"node": arguments["node"]}


@ENDPOINTS.add(
    "GET",
    "/policies",
    "policies of each nsqd, or the settings of a topic or channel and their sources",
    ApiPolicies,
    Parameter("topic", "settings of this topic, which need not exist"),
    Parameter("channel", "needs `topic`: settings of this channel"),
)
async def _show_policies(services: Services, _call: Call, arguments: Arguments) -> Any:
    topic, channel = arguments["topic"], arguments["channel"]
    if channel or topic:
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_ARG_TOPIC: not a valid topic name")
        if channel and not is_valid_name(channel):
            raise HttpError(400, "INVALID_ARG_CHANNEL: not a valid channel name")
    found = await policies.query(services.fleet, topic, channel)
    if not found.found:
        if found.unable and not found.errors:
            raise HttpError(501, "NOT_SUPPORTED: all nodes are NSQ's Go nsqds")
        reasons = "; ".join(f"{address}: {why}" for address, why in found.errors.items())
        raise HttpError(502, f"UPSTREAM_ERROR: {reasons or 'no nsqd is known'}")
    answer: dict[str, Any] = {"nodes": found.found, "errors": found.errors, "unable": found.unable}
    if not topic:
        answer["differ"] = len(policies.groups(found.found, *policies.SOURCES)) > 1
    return answer


@ENDPOINTS.add(
    "PUT",
    "/policies",
    "set the run-time policies of all nsqds, replacing the previous ones",
    ApiReport,
    DRY_RUN,
    TYPED,
    body=ApiPolicyDocument,
    writes=True,
)
async def _set_policies(services: Services, call: Call, arguments: Arguments) -> Any:
    body = arguments["body"]
    return await _policies(services, call, arguments, len(body.policies), msgspec.json.encode(body))


@ENDPOINTS.add(
    "DELETE",
    "/policies",
    "drop the run-time policies of all nsqds; those of their files stay",
    ApiReport,
    DRY_RUN,
    TYPED,
    writes=True,
)
async def _drop_policies(services: Services, call: Call, arguments: Arguments) -> Any:
    return await _policies(services, call, arguments, 0, None)


async def _policies(
    services: Services, call: Call, arguments: Arguments, number: int, document: bytes | None
) -> Any:
    """Set this number of policies, or drop all; with `dry_run` only report the changes."""
    if arguments["dry_run"]:
        try:
            return answer_of(await policies.try_out(services.fleet, document))
        except policies.DocumentRefused as error:
            raise HttpError(400, f"{policies.REFUSED}: {error}") from None
    action = "drop_policies" if document is None else "set_policies"
    told, typed = {"policies": number}, arguments["typed"]
    order = ActionRequest(action, "", arguments=told, typed=typed, document=document or b"")
    return await performed(services, call, order)


@ENDPOINTS.add(
    "GET",
    "/audit",
    "audit log: users' actions, newest first",
    ApiAuditPage,
    Parameter("before", "`next` of the previous answer"),
    LIMIT,
    *(Parameter(name, f"only entries with this {name}") for name in FILTERS),
)
async def _audit(services: Services, _call: Call, arguments: Arguments) -> Any:
    filters = {name: arguments[name] for name in FILTERS if arguments[name]}
    return asdict(await services.audit.page(arguments["before"], arguments["limit"], filters))
