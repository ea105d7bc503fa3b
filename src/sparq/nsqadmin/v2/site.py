"""All routes of the API, and the OpenAPI 3.1 document that is generated from them.

The document is public at `/api/v2/openapi.json`: it describes the API and reveals nothing about the
cluster. A test checks every answer against it.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.daemon.http import Call, Route
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2 import acting, export, messages, policies, stats
from sparq.nsqadmin.v2.endpoints import PREFIX, ApiEndpoint, ApiEndpoints, Arguments
from sparq.nsqadmin.v2.schemas import SCHEMAS, reference
from sparq.program.stdout import sparq_version

_ERRORS = {
    400: "invalid request",
    401: "the token is invalid or has expired",
    403: "the required role is missing",
    404: "there is no such topic, channel, node or message",
    501: "the nodes are NSQ's Go nsqds, which do not support this",
    502: "no node or nsqlookupd could answer",
}

_SECURITY = {"token": {"type": "http", "scheme": "bearer"}}

ENDPOINTS: Final = ApiEndpoints(
    endpoint
    for group in (stats, messages, acting, policies, export)
    for endpoint in group.ENDPOINTS
)


def routes(services: Services) -> list[Route]:
    """List the API's routes for the server."""
    return [endpoint.route(services) for endpoint in ENDPOINTS]


@ENDPOINTS.add("GET", "/openapi.json", "this document", {"type": "object"})
async def _document(services: Services, _call: Call, _asked: Arguments) -> Any:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        parts = [_part(part) for part in (PREFIX + endpoint.path).split("/")]
        paths.setdefault("/".join(parts), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nsqadmin",
            "version": sparq_version(),
            "description": "A cluster of nsqds: figures, messages, actions (docs/nsqadmin.md).",
        },
        "servers": [{"url": services.url("") or "/"}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": _SECURITY},
        "security": [{}, {"token": []}],
    }


def _part(part: str) -> str:
    return f"{{{part[1:]}}}" if part.startswith(":") else part


def _operation(endpoint: ApiEndpoint) -> dict[str, Any]:
    path = [
        {"name": part[1:], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in endpoint.path.split("/")
        if part.startswith(":")
    ]
    found: dict[str, Any] = {
        "summary": endpoint.words,
        "operationId": _name(endpoint),
        "parameters": [*path, *(each.schema() for each in endpoint.parameters)],
        "responses": _responses(endpoint),
    }
    if endpoint.body:
        content = {"application/json": {"schema": _schema(endpoint.body)}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _name(endpoint: ApiEndpoint) -> str:
    words = endpoint.path.replace(":", "by_").replace(".", "_").replace("-", "_").strip("/")
    return f"{endpoint.method.lower()}_{words.replace('/', '_')}"


def _responses(endpoint: ApiEndpoint) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in endpoint.media}
    if endpoint.answer is not None:
        content["application/json"] = {"schema": _schema(endpoint.answer)}
    error = {"application/json": {"schema": reference("Error")}}
    failures = {**_ERRORS, **endpoint.errors}
    return {
        "200": {"description": "the answer", "content": content},
        **{
            str(status): {"description": words, "content": error}
            for status, words in sorted(failures.items())
        },
    }


def _schema(of: Any) -> Any:
    return reference(of) if isinstance(of, str) else of
