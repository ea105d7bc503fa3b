"""`/config/<option>`: read every option over HTTP, change two of them (docs/http.md, "/config").

1. An option is named by its key in a configuration file. A text is sent as it is, all other values
   as JSON; values that Go stores as numbers (levels, TLS versions) are sent as those numbers.
2. Options that nsqd determines itself (node id, ports) are returned with their actual values.
3. A URL is returned without its user, password and query; the value of a token is never returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparq.daemon.http import JSON, Call, Content, HttpError, Route
from sparq.daemon.options import hidden, public
from sparq.daemon.reload import LEVEL_NUMBERS, new_value
from sparq.options.declare import flags_of
from sparq.wire.layers import TLS_VERSIONS

if TYPE_CHECKING:
    from sparq.nsqd.reload import Reloader
    from sparq.nsqd.server import Nsqd

PATH = "/config/:opt"

_TLS_REQUIRED = {"false": 0, "true": 1, "tcp-https": 2}

_SHOWN: dict[str, Callable[[Any], Any]] = {
    "log_level": LEVEL_NUMBERS.__getitem__,
    "tls_required": _TLS_REQUIRED.__getitem__,
    "tls_min_version": lambda name: TLS_VERSIONS[name].value,
    "http_token": hidden,
    "lookupd_token": hidden,
    "auth_http_addresses": lambda urls: [public(url) for url in urls],
}


NOT_IN_GO = ("verbose", "worker_id")
"""Flags of Go's nsqd that are not options in Go: 400 INVALID_OPTION, here too."""


class ConfigRoutes:
    """The `/config` handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd, reloader: Reloader) -> None:
        self._nsqd = nsqd
        self._reloader = reloader
        flags = flags_of(type(nsqd.options))
        self._flags = {flag.key: flag for flag in flags if flag.key not in NOT_IN_GO}

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [Route("GET", PATH, self.read), Route("PUT", PATH, self.write)]

    def read(self, call: Call) -> Any:
        """Return an option's value."""
        return self._value(call.path.rpartition("/")[2])

    async def write(self, call: Call) -> Any:
        """Change an option; return its new value."""
        name = call.path.rpartition("/")[2]
        body = await call.body(self._nsqd.limits.max_msg_size, "INVALID_VALUE")
        # As in NSQ, an empty body gets 413, too.
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        if name not in ("log_level", "nsqlookupd_tcp_addresses"):
            raise HttpError(400, "INVALID_OPTION")
        try:
            value = new_value(name, body)
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        if name == "log_level":
            self._reloader.set_log_level(value)
        else:
            self._reloader.set_lookupd_addresses(value)
        # As in Go, where no list differs from an empty one.
        return Content(b"null", JSON) if body.strip() == b"null" else self._value(name)

    def _value(self, name: str) -> Any:
        flag = self._flags.get(name)
        if flag is None:
            raise HttpError(400, "INVALID_OPTION")
        value = self._came_out().get(name, flag.value(self._nsqd.options))
        if flag.kind.unit > 1:
            value *= flag.kind.unit  # Go's durations are nanoseconds
        return _SHOWN[name](value) if name in _SHOWN else value

    def _came_out(self) -> dict[str, Any]:
        nsqd, options = self._nsqd, self._nsqd.options
        return {
            "id": nsqd.broker.node_id,
            "broadcast_tcp_port": options.lookupd.broadcast_tcp_port or nsqd.tcp_port,
            "broadcast_http_port": options.lookupd.broadcast_http_port or nsqd.http_port,
        }
