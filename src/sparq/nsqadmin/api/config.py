"""`/config/<option>`: every option's value read over HTTP, two of them written, as NSQ has it.

Text is sent as it is, all else as JSON: durations in ns, a level as its number. Of URLs the user,
the password and the query are not told, nor is a token.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from sparq.daemon.http import Call, HttpError, Route
from sparq.daemon.token import hidden, public
from sparq.nsqadmin.access import Entry
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.options import Options, base_of
from sparq.program import logging as log_lines
from sparq.program.flags import flags_of
from sparq.program.logging import LEVELS, parse_level

PATH: Final = "/config/:opt"
VALUE_BYTES_MAX: Final = 1 << 20
NOT_IN_GO: Final = ("verbose",)
LOOKUPDS: Final = "nsqlookupd_http_addresses"

_LEVEL_NUMBERS = {level: number for number, level in enumerate(LEVELS.values(), 1)}
_SHOWN: dict[str, Callable[[Any], Any]] = {
    "log_level": _LEVEL_NUMBERS.__getitem__,
    "upstream_token": hidden,
    "graphite_url": public,
    "notification_http_endpoint": public,
}

logger = logging.getLogger(__name__)


class Config:
    """The handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        flags = flags_of(Options)
        self._fields = {flag.key: flag.field for flag in flags if flag.key not in NOT_IN_GO}

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [Route("GET", PATH, self.read), Route("PUT", PATH, self.write)]

    def read(self, call: Call) -> Any:
        """An option's value."""
        return self._value(call.parameters["opt"])

    async def write(self, call: Call) -> Any:
        """Change an option; answers with its new value."""
        name = call.parameters["opt"]
        body = await call.body(VALUE_BYTES_MAX, "INVALID_VALUE")
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        desk = self._desk
        if await desk.audit.unavailable():
            raise HttpError(503, "AUDIT_UNAVAILABLE")
        if name == LOOKUPDS:
            addresses = _addresses(body)
            try:
                desk.fleet.look_at(addresses)
            except ValueError:
                raise HttpError(400, "INVALID_VALUE") from None
            self._keep(lookupd_http_addresses=addresses)
        elif name == "log_level":
            level = _level(body)
            log_lines.set_level(level)
            self._keep(log_level=level)
        else:
            raise HttpError(400, "INVALID_OPTION")
        value = self._value(name)
        logger.warning("HTTP: %s is now %s", name, value)
        await self._write_down(call.request, f"config_{name}", value)
        return value

    async def _write_down(self, request: web.BaseRequest, action: str, value: Any) -> None:
        access = self._desk.access
        who = access.identify(request)
        entry = Entry(
            user=who.name,
            via=who.via,
            remote=access.remote(request),
            action=action,
            outcome="done",
            user_agent=request.headers.get("User-Agent", ""),
            arguments={"value": value},
        )
        await self._desk.audit.record(entry)

    def _keep(self, **changes: Any) -> None:
        self._desk.options = dataclasses.replace(self._desk.options, **changes)

    def _value(self, name: str) -> Any:
        options = self._desk.options
        if name == "base_path":
            return base_of(options) or "/"
        field = self._fields.get(name)
        if field is None:
            raise HttpError(400, "INVALID_OPTION")
        value = getattr(options, field)
        return _SHOWN[name](value) if name in _SHOWN else value


def _level(body: bytes) -> int:
    try:
        return parse_level(body.decode())
    except ValueError:
        raise HttpError(400, "INVALID_VALUE") from None


def _addresses(body: bytes) -> tuple[str, ...]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_VALUE") from None
    found = [] if found is None else found
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise HttpError(400, "INVALID_VALUE")
    return tuple(found)
