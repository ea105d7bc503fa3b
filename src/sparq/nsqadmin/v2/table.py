"""What a route of the API is: its parameters, which it checks by itself, and what it answers.

The route table, the checks of parameters and the OpenAPI document are made from the same
`Endpoint`s, so that none of them can say something else than the others.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.v2.schemas import Schema

BODY_BYTES_MAX: Final = 256 << 10
PREFIX: Final = "/api/v2"

Arguments = dict[str, Any]
Handler = Callable[[Desk, Call, Arguments], Awaitable[Any]]
Kind = Literal["text", "integer", "flag", "list"]

NO_ERRORS: Final[Mapping[int, str]] = {}
FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query.

    Attributes:
        name: as it is written.
        words: what it is, for people.
        kind: how it is read; a list is a text with commas.
        default: what it is if it is left out.
        minimum, maximum: bounds of an integer.
        choices: the texts that it may be; empty: any.
        is_needed: it may not be left out.
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
        """Its value.

        Raises:
            HttpError: 400, it is needed, or not what it may be.
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
        said = f"use a number from {self.minimum} to {self.maximum}"
        return int(self._chosen(number if self.minimum <= number <= self.maximum else None, said))

    def _chosen(self, value: Any, said: str) -> Any:
        if value is None:
            raise HttpError(400, f"INVALID_ARG_{self.name.upper()}: {said}")
        return value

    def schema(self) -> Schema:
        """It in an OpenAPI document."""
        if self.kind == "integer":
            bounds = {"minimum": self.minimum, "maximum": self.maximum}
            found: Schema = {"type": "integer", **bounds, "default": self.default}
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
class Endpoint:
    """One route.

    Attributes:
        path: below `PREFIX`, parts like `:topic` are parameters.
        words: what it does, for people.
        answer: the schema of its JSON answer, or the name of one; None: it is no JSON.
        handler: answers, with the arguments read.
        parameters: of its query.
        body: the name of the schema of a JSON body; "": it has none.
        media: what it answers with instead of JSON.
        errors: what may go wrong, by status; 400, 401, 403 and 502 are understood.
    """

    method: str
    path: str
    words: str
    answer: Schema | str | None
    handler: Handler
    parameters: tuple[Parameter, ...]
    body: str
    media: tuple[str, ...]
    errors: Mapping[int, str]

    def route(self, desk: Desk) -> Route:
        """It as the server takes it."""

        async def handle(call: Call) -> Any:
            query = call.query
            arguments = {each.name: each.read(query.get(each.name)) for each in self.parameters}
            if self.body:
                arguments["body"] = await json_body(call)
            return await self.handler(desk, call, {**arguments, **call.parameters})

        return Route(self.method, PREFIX + self.path, handle)


class Endpoints(list[Endpoint]):
    """Some endpoints; `add` stands above the handler of each."""

    def add(
        self,
        method: str,
        path: str,
        words: str,
        answer: Schema | str | None,
        *parameters: Parameter,
        body: str = "",
        media: tuple[str, ...] = (),
        errors: Mapping[int, str] = NO_ERRORS,
    ) -> Callable[[Handler], Handler]:
        """Add the handler that this decorates; the arguments are `Endpoint`'s."""

        def added(handler: Handler) -> Handler:
            made = Endpoint(method, path, words, answer, handler, parameters, body, media, errors)
            self.append(made)
            return handler

        return added


async def json_body(call: Call) -> dict[str, Any]:
    """A request's JSON object.

    Raises:
        HttpError: 400 INVALID_BODY, 413 BODY_TOO_BIG.
    """
    body = await call.body(BODY_BYTES_MAX, "BODY_TOO_BIG")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_BODY: it is no JSON") from None
    if not isinstance(found, dict):
        raise HttpError(400, "INVALID_BODY: it is no JSON object")
    return found


def text_in(body: dict[str, Any], name: str) -> str:
    """A text of a body, "" if it is left out.

    Raises:
        HttpError: 400 INVALID_BODY, it is no text.
    """
    value = body.get(name, "")
    if not isinstance(value, str):
        raise HttpError(400, f"INVALID_BODY: {name} is no text")
    return value


def texts_in(body: dict[str, Any], name: str) -> list[str]:
    """A list of texts of a body; none if it is left out. Raises as `text_in`."""
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise HttpError(400, f"INVALID_BODY: {name} is no list of texts")
    return value
