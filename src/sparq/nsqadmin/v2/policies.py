"""Policies in the API: show each nsqd's policies, or a topic's or channel's settings; set, drop.

Without `dry_run` the word `policies` must be typed, like a name for actions that cannot be undone:
messages that only a policy keeps are deleted without it. If an nsqd refuses a document, the answer
is a 400 with the nsqd's reason.
"""

from __future__ import annotations

import json
from typing import Any, Final

from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin import policies
from sparq.nsqadmin.actions import ActionRequest
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.acting import UNWRITTEN, answer_of, performed
from sparq.nsqadmin.v2.endpoints import ApiEndpoints, Arguments, Parameter
from sparq.nsqadmin.v2.schemas import reference
from sparq.protocol.names import is_valid_name

TYPED: Final = Parameter("typed", "the word `policies`, to confirm; not needed with `dry_run`")
DRY_RUN: Final = Parameter("dry_run", "only report the changes at each nsqd", "flag", default=False)
ENDPOINTS: Final = ApiEndpoints()


@ENDPOINTS.add(
    "GET",
    "/policies",
    "policies of each nsqd, or the settings of a topic or channel and their sources",
    {"anyOf": [reference("Policies"), reference("Settings")]},
    Parameter("topic", "settings of this topic, which need not exist"),
    Parameter("channel", "needs `topic`: settings of this channel"),
)
async def _show(services: Services, _call: Call, arguments: Arguments) -> Any:
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
    "Report",
    DRY_RUN,
    TYPED,
    body="PolicyDocument",
    errors=UNWRITTEN,
)
async def _put(services: Services, call: Call, arguments: Arguments) -> Any:
    body = arguments["body"]
    if not isinstance(body.get("policies"), list):
        raise HttpError(400, "INVALID_BODY: `policies` must be a list")
    document = json.dumps(body).encode()
    if arguments["dry_run"]:
        return await _tried(services, document)
    details = {"policies": len(body["policies"])}
    order = ActionRequest(
        "set_policies", "", arguments=details, typed=arguments["typed"], document=document
    )
    return await performed(services, call, order)


@ENDPOINTS.add(
    "DELETE",
    "/policies",
    "drop the run-time policies of all nsqds; those of their files stay",
    "Report",
    DRY_RUN,
    TYPED,
    errors=UNWRITTEN,
)
async def _drop(services: Services, call: Call, arguments: Arguments) -> Any:
    if arguments["dry_run"]:
        return await _tried(services, None)
    order = ActionRequest("drop_policies", "", arguments={"policies": 0}, typed=arguments["typed"])
    return await performed(services, call, order)


async def _tried(services: Services, document: bytes | None) -> Any:
    try:
        return answer_of(await policies.try_out(services.fleet, document))
    except policies.DocumentRefused as error:
        raise HttpError(400, f"{policies.REFUSED}: {error}") from None
