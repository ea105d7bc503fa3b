"""Endpoints of the API: the parameters of each, which are checked here, and its answer's schema.

The route table, the parameter checks and the OpenAPI document are all generated from the same
`ApiEndpoint`s, so they cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec

from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqadmin.services import Services

REQUEST_BYTES_MAX: Final = 256 << 10
PREFIX: Final = "/api/v2"

T = TypeVar("T")
Arguments = dict[str, Any]
Handler = Callable[[Services, Call, Arguments], Awaitable[Any]]
Kind = Literal["text", "integer", "flag", "list"]

FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


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
    kind: Kind = "text"
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
        if self.kind == "integer":
            return self._integer(text)
        if self.kind == "flag":
            return self._chosen(FLAGS.get(text), "use true or false")
        if self.kind == "list":
            return tuple(part for part in text.split(",") if part)
        is_wrong = bool(self.choices) and text not in self.choices
        return self._chosen(None if is_wrong else text, f"use one of {', '.join(self.choices)}")

    def _integer(self, text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) < 20
        number = int(text) if is_number else -1
        rule = f"use a number from {self.minimum} to {self.maximum}"
        return int(self._chosen(number if self.minimum <= number <= self.maximum else None, rule))

    def _chosen(self, value: Any, rule: str) -> Any:
        if value is None:
            raise HttpError(400, f"INVALID_ARG_{self.name.upper()}: {rule}")
        return value

    def schema(self) -> dict[str, Any]:
        """The parameter in the OpenAPI document."""
        if self.kind == "integer":
            bounds = {"minimum": self.minimum, "maximum": self.maximum}
            found: dict[str, Any] = {"type": "integer", **bounds, "default": self.default}
        elif self.kind == "flag":
            found = {"type": "boolean"}
        else:
            found = {"type": "string", **({"enum": [*self.choices]} if self.choices else {})}
        return {
            "name": self.name,
            "in": "query",
            "description": self.words,
            "required": self.is_needed,
            "schema": found,
        }


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One endpoint of the API.

    Attributes:
        path: below `PREFIX`; parts such as `:topic` are parameters.
        words: a description for users.
        answer: the type of its JSON answer; None if the answer is not JSON.
        handler: returns the answer; it gets the parsed arguments.
        parameters: the parameters of its query.
        body: the type of its JSON body, the argument `body`; None if it has no body.
        media: content types of its answers other than JSON.
        writes: whether it performs an action, which the audit log must have.
    """

    method: str
    path: str
    words: str
    answer: Any
    handler: Handler
    parameters: tuple[Parameter, ...]
    body: Any = None
    media: tuple[str, ...] = ()
    writes: bool = False

    def route(self, services: Services) -> Route:
        """The endpoint as a route of the server."""

        async def handle(call: Call) -> Any:
            query = call.query
            arguments = {each.name: each.read(query.get(each.name)) for each in self.parameters}
            if self.body is not None:
                arguments["body"] = await json_body(call, self.body)
            return await self.handler(services, call, {**arguments, **call.parameters})

        return Route(self.method, PREFIX + self.path, handle)


class ApiEndpoints(list[ApiEndpoint]):
    """A list of endpoints; `add` decorates the handler of each."""

    def add(
        self, method: str, path: str, words: str, answer: Any, *parameters: Parameter, **more: Any
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that adds an endpoint; the arguments are fields of `ApiEndpoint`."""

        def added(handler: Handler) -> Handler:
            self.append(ApiEndpoint(method, path, words, answer, handler, parameters, **more))
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
