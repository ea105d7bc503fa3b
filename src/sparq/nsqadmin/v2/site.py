"""All routes of the API, and the OpenAPI 3.1 document that is generated from them.

The document is public at `/api/v2/openapi.json`: it describes the API and reveals nothing about the
cluster. A test checks every answer against it.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.daemon.http import Call, Route
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2 import acting, answers, export, messages, stats
from sparq.nsqadmin.v2.endpoints import PREFIX, ApiEndpoints, Arguments
from sparq.program.stdout import sparq_version

_ERRORS = {
    400: "invalid request",
    401: "the token is invalid or has expired",
    403: "the required role is missing",
    404: "there is no such topic, channel, node or message",
    501: "the nodes are NSQ's Go nsqds, which do not support this",
    502: "no node or nsqlookupd could answer",
}
_UNWRITTEN = {503: "the audit log cannot be written"}
_SECURITY = {"token": {"type": "http", "scheme": "bearer"}}

ENDPOINTS: Final = ApiEndpoints(
    endpoint for group in (stats, messages, acting, export) for endpoint in group.ENDPOINTS
)


def routes(services: Services) -> list[Route]:
    """List the API's routes for the server."""
    return [endpoint.route(services) for endpoint in ENDPOINTS]


@ENDPOINTS.add("GET", "/openapi.json", "this document", dict[str, Any])
async def _document(services: Services, _call: Call, _asked: Arguments) -> Any:
    types = [
        answers.ApiError,
        *(kind for one in ENDPOINTS for kind in (one.answer, one.body) if kind),
    ]
    found, schemas = answers.schemas_of(types)
    schema_of = {str(kind): schema for kind, schema in zip(types, found, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        named = [part[1:] for part in one.path.split("/") if part.startswith(":")]
        of_path = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in named
        ]
        content: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in one.media}
        if one.answer is not None:
            content["application/json"] = {"schema": schema_of[str(one.answer)]}
        refused = {"application/json": {"schema": schema_of[str(answers.ApiError)]}}
        failures = _ERRORS | (_UNWRITTEN if one.writes else {})
        words = one.path.replace(":", "by_").replace(".", "_").replace("-", "_").strip("/")
        operation: dict[str, Any] = {
            "summary": one.words,
            "operationId": f"{one.method.lower()}_{words.replace('/', '_')}",
            "parameters": [*of_path, *(each.schema() for each in one.parameters)],
            "responses": {
                "200": {"description": "the answer", "content": content},
                **{
                    str(status): {"description": why, "content": refused}
                    for status, why in failures.items()
                },
            },
        }
        if one.body is not None:
            body = {"application/json": {"schema": schema_of[str(one.body)]}}
            operation["requestBody"] = {"required": True, "content": body}
        path = "/".join(
            f"{{{part[1:]}}}" if part.startswith(":") else part
            for part in (PREFIX + one.path).split("/")
        )
        paths.setdefault(path, {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nsqadmin",
            "version": sparq_version(),
            "description": "A cluster of nsqds: figures, messages, actions (docs/nsqadmin.md).",
        },
        "servers": [{"url": services.url("") or "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY},
        "security": [{}, {"token": []}],
    }
