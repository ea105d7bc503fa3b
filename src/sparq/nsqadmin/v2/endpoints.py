"""Endpoints of the API: the parameters of each, which are checked here, and its answer's schema.

The route table, the parameter checks and the OpenAPI document are all generated from the same
`ApiEndpoint`s, so they cannot contradict each other. Schemas come from the types of answers and
bodies. Unknown values and infinite numbers are null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_type_hints

import msgspec
from aiohttp import web
from msgspec import Struct

from sparq.cluster.fleet import Fleet
from sparq.daemon.access.rules import Role
from sparq.daemon.http import JSON, Call, HttpError
from sparq.nsqadmin.access import AdminRoute
from sparq.nsqadmin.services import Services
from sparq.protocol import SPARQ_VERSION

REQUEST_BYTES_MAX: Final = 256 << 10
PREFIX: Final = "/api/v2"
FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter.

    Attributes:
        name: its name in the query.
        words: a description for users.
        kind: how it is parsed; a list is a text with commas.
        default: its value if it is left out.
        minimum, maximum: bounds of an integer.
        choices: the allowed texts; empty: any text.
        is_needed: whether it is required.
    """

    name: str
    words: str
    kind: Literal["text", "integer", "flag", "list"] = "text"
    default: Any = ""
    minimum: int = 0
    maximum: int = 0
    choices: tuple[str, ...] = ()
    is_needed: bool = False

    def read(self, text: str | None) -> Any:
        """Parse the parameter's text, which is None if it was left out.

        Raises:
            HttpError: 400 if a required parameter is missing, or the value is not allowed.
        """
        if text is None:
            if self.is_needed:
                raise HttpError(400, f"MISSING_ARG_{self.name.upper()}")
            return self.default
        if self.kind == "list":
            return tuple(part for part in text.split(",") if part)
        value: Any
        if self.kind == "flag":
            value, rule = FLAGS.get(text), "use true or false"
        elif self.kind == "integer":
            is_number = text.isascii() and text.isdigit() and len(text) < 20
            number = int(text) if is_number else -1
            value = number if self.minimum <= number <= self.maximum else None
            rule = f"use a number from {self.minimum} to {self.maximum}"
        else:
            value = text if not self.choices or text in self.choices else None
            rule = f"use one of {', '.join(self.choices)}"
        if value is None:
            raise HttpError(400, f"INVALID_ARG_{self.name.upper()}: {rule}")
        return value

    def schema(self) -> dict[str, Any]:
        """The parameter in the OpenAPI document."""
        found: dict[str, Any] = {"type": "string"}
        if self.kind == "integer":
            bounds = {"minimum": self.minimum, "maximum": self.maximum}
            found = {"type": "integer", **bounds, "default": self.default}
        elif self.kind == "flag":
            found = {"type": "boolean"}
        elif self.choices:
            found["enum"] = [*self.choices]
        of = {"in": "query", "description": self.words, "required": self.is_needed}
        return {"name": self.name, **of, "schema": found}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to the API: its checked arguments, as items.

    Attributes:
        body: the JSON body, of its endpoint's type; None if that has none.
    """

    services: Services
    fleet: Fleet
    call: Call
    arguments: Mapping[str, Any]
    body: Any

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def some(self, *names: str) -> dict[str, Any]:
        """Arguments by name."""
        return {name: self.arguments[name] for name in names}


Handler = Callable[[ApiRequest], Awaitable[Any]]


class ApiStruct(Struct, forbid_unknown_fields=True, kw_only=True):
    """An object with exactly its fields."""


class ApiError(ApiStruct):
    """The answer to a refused request."""

    message: str


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One endpoint of the API.

    Attributes:
        role: the role that it needs at least.
        path: below `PREFIX`; parts such as `:topic` are parameters.
        handler: returns the answer, of the type that it names; Any: the answer is not JSON. The
            first line of its docstring describes the endpoint for users.
        parameters: the parameters of its query.
        body: the type of its JSON body; None if it has no body.
        media: content types of its answers other than JSON.
        writes: whether it performs an action, which the audit log must have.
    """

    role: Role
    method: str
    path: str
    handler: Handler
    parameters: tuple[Parameter, ...]
    body: Any = None
    media: tuple[str, ...] = ()
    writes: bool = False

    @property
    def answer(self) -> Any:
        """The type of its JSON answer; Any: the answer is not JSON."""
        return get_type_hints(self.handler, include_extras=True)["return"]

    def route(self, services: Services) -> AdminRoute:
        """The endpoint as a route of the server."""

        async def handle(call: Call) -> Any:
            query, body = call.query, None
            arguments = {each.name: each.read(query.get(each.name)) for each in self.parameters}
            if self.body is not None:
                body = await json_body(call, self.body)
            arguments |= call.parameters
            asked = ApiRequest(services, services.fleet, call, arguments, body)
            answer = await self.handler(asked)
            if not isinstance(answer, Struct | dict):
                return answer
            # An action that failed everywhere.
            status = 502 if getattr(answer, "result", "") == "failed" else 200
            headers = {"Content-Type": JSON}
            return web.Response(status=status, body=msgspec.json.encode(answer), headers=headers)

        return AdminRoute(self.role, self.method, PREFIX + self.path, handle)


class ApiEndpoints(list[ApiEndpoint]):
    """A list of endpoints; `add` decorates the handler of each."""

    def add(
        self, role: Role, method: str, path: str, *parameters: Parameter, **more: Any
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that adds an endpoint; the arguments are fields of `ApiEndpoint`."""

        def added(handler: Handler) -> Handler:
            self.append(ApiEndpoint(role, method, path, handler, parameters, **more))
            return handler

        return added


async def json_body(call: Call, kind: type[T]) -> T:
    """Read a request's JSON body as a value of this type.

    Raises:
        HttpError: 400 INVALID_BODY, 413 BODY_TOO_BIG.
    """
    body = await call.body(REQUEST_BYTES_MAX, "BODY_TOO_BIG")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        why, _, where = str(error).partition(" - at `$.")
        raise HttpError(
            400, f"INVALID_BODY: {where.rstrip('`')}{': ' if where else ''}{why}"
        ) from None
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_BODY: invalid JSON") from None


# The OpenAPI document

_PARAMETER: Final = re.compile(r":(\w+)")

ERRORS: Final = {
    400: "invalid request",
    401: "the token is invalid or has expired",
    403: "the required role is missing",
    404: "there is no such topic, channel, node or message",
    501: "the nodes are NSQ's Go nsqds, which do not support this",
    502: "no node or nsqlookupd could answer",
}
UNWRITTEN: Final = {503: "the audit log cannot be written"}
NAMES: Final = {
    "NodeRemainder": "Left",
    "DrainProgress": "Drain",
    "FailureHistory": "Mark",
    "NodeMessage": "Message",
    "ActionRequest": "Action",
}
"""Names of types that have another name in the document; others lose `Api` and `Row`."""


def schemas_of(types: Iterable[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The schemas of these types, and by name those that they refer to."""
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    text = json.dumps([found, components])
    for name in components:
        shown = NAMES.get(name) or name.removeprefix("Api").removesuffix("Row")
        text = text.replace(f'"{name}"', f'"{shown}"').replace(f'/{name}"', f'/{shown}"')
    renamed: tuple[list[Any], dict[str, Any]] = json.loads(text)
    return renamed


def document(endpoints: Iterable[ApiEndpoint], base: str, *types: Any) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the API; `types` are further types that it refers to."""
    every = [*endpoints]
    kinds = [kind for one in every for kind in (one.answer, one.body) if kind not in (Any, None)]
    kinds = [ApiError, *kinds, *types]
    found, schemas = schemas_of(kinds)
    schema_of = {str(kind): schema for kind, schema in zip(kinds, found, strict=True)}

    def as_json(kind: Any) -> dict[str, Any]:
        return {"application/json": {"schema": schema_of[str(kind)]}}

    paths: dict[str, dict[str, Any]] = {}
    for one in every:
        path, method = _PARAMETER.sub(r"{\1}", one.path), one.method.lower()
        named = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(one.path)
        ]
        content: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in one.media}
        content |= {} if one.answer is Any else as_json(one.answer)
        failures = ERRORS | (UNWRITTEN if one.writes else {})
        refused = {
            str(status): {"description": why, "content": as_json(ApiError)}
            for status, why in failures.items()
        }
        words = re.sub(r"\W", "_", one.path.replace(":", "by_").strip("/"))
        operation: dict[str, Any] = {
            "summary": (one.handler.__doc__ or "").splitlines()[0],
            "operationId": f"{method}_{words}",
            "parameters": [*named, *(each.schema() for each in one.parameters)],
            "responses": {"200": {"description": "the answer", "content": content}, **refused},
        }
        if one.body is not None:
            operation["requestBody"] = {"required": True, "content": as_json(one.body)}
        paths.setdefault(PREFIX + path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nsqadmin",
            "version": SPARQ_VERSION,
            "description": "A cluster of nsqds: figures, messages, actions (docs/nsqadmin.md).",
        },
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
