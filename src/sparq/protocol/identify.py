"""IDENTIFY: the negotiation between a client's request and the server's limits.

1. Every limit of a connection is a field of ``IdentifyLimits``, with NSQ's default.
2. Checks have NSQ's order and NSQ's error texts; unknown keys are ignored.
3. TLS and compression are granted if the client requests and the server offers them, and only with
   feature negotiation: the client must read the reply before it can switch.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn

import msgspec

from sparq.options.limits import IdentifyLimits
from sparq.protocol import NSQ_VERSION
from sparq.protocol.errors import RemoteError
from sparq.protocol.go_json import to_bytes

# What a client sends to switch heartbeats or buffering off. 0 cannot mean that: as in Go, a missing
# key has the value 0, and means the server's default.
OFF: Final = -1
INTERVAL_MIN_MS: Final = 1_000
BUFFER_SIZE_MIN: Final = 64
SAMPLE_RATE_MAX: Final = 99
DEFLATE_LEVEL: Final = 6
"""NSQ's default level, reported even to clients that do not compress."""
INT64_CHARACTERS_MAX: Final = 20

STRICT_BODY_BYTES: Final = 64 << 10
STRICT_DEPTH: Final = 20

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


@dataclass(slots=True)
class Granted:
    """The settings of a connection after IDENTIFY.

    Attributes:
        heartbeat_interval_ms: 0: heartbeats are off.
        output_buffer_size: in bytes; 1: unbuffered.
        output_buffer_timeout_ms: 0: no timer flushes the buffer.
        tls_v1, deflate, snappy: the layers that the connection switches to after the reply; never
            both compressions.
        dead_letter_envelopes: whether it receives dead letters in their envelopes.
        deflate_level: the level at which the server compresses.
        reply: the reply as a JSON object; None if the client does not negotiate features.
    """

    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval_ms: int
    output_buffer_size: int
    output_buffer_timeout_ms: int
    sample_rate: int
    msg_timeout_ms: int
    topology_region: str
    topology_zone: str
    dead_letter_envelopes: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL
    snappy: bool = False
    reply: dict[str, object] | None = None

    @property
    def upgrades(self) -> bool:
        """Whether the connection switches to TLS or compression after the reply."""
        return self.tls_v1 or self.deflate or self.snappy

    def reply_data(self) -> bytes:
        """The data of the response frame."""
        return b"OK" if self.reply is None else to_bytes(self.reply)


class _Request(msgspec.Struct):
    """The keys that are used; a missing key, or null, has the zero value."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: _Int64 = 0
    output_buffer_size: _Int64 = 0
    output_buffer_timeout: _Int64 = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: _Int64 = 0
    snappy: bool = False
    sample_rate: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    user_agent: str = ""
    msg_timeout: _Int64 = 0
    topology_region: str = ""
    topology_zone: str = ""
    dead_letter_envelopes: bool = False


def negotiate(body: bytes, limits: IdentifyLimits, server: Mapping[str, object]) -> Granted:
    """Parse an IDENTIFY body and decide what to grant.

    Args:
        body: the JSON as received.
        limits: the server's limits.
        server: properties of the server for the reply: any of `version`, `sparq_version`, `tls`
            (it has a certificate), `auth_required`, `topology_region`, `topology_zone`.

    Raises:
        RemoteError: the body is not such JSON, or requests a value out of range.
    """
    request = _decode(body, strict=limits.strict_identify)
    heartbeat_ms = _granted_number(
        "heartbeat interval",
        request.heartbeat_interval,
        limits.heartbeat_interval_ms,
        (INTERVAL_MIN_MS, limits.max_heartbeat_interval_ms),
        off=None if limits.require_heartbeats else 0,
    )
    buffer_timeout_ms = _granted_number(
        "output buffer timeout",
        request.output_buffer_timeout,
        limits.output_buffer_timeout_ms,
        (limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms),
        off=0,
    )
    buffer_size = _granted_number(
        "output buffer size",
        request.output_buffer_size,
        limits.output_buffer_size,
        (BUFFER_SIZE_MIN, limits.max_output_buffer_size),
        off=1,
    )
    sample_rate = _granted_number("sample rate", request.sample_rate, 0, (0, SAMPLE_RATE_MAX))
    msg_timeout_ms = _granted_number(
        "msg timeout",
        request.msg_timeout,
        limits.msg_timeout_ms,
        (INTERVAL_MIN_MS, limits.max_msg_timeout_ms),
    )
    negotiates = request.feature_negotiation
    deflate = negotiates and limits.deflate and request.deflate
    snappy = negotiates and limits.snappy and request.snappy
    if deflate and snappy:
        text = "cannot enable both deflate and snappy compression"
        raise RemoteError("E_IDENTIFY_FAILED", text)
    # NSQ reduces a level that is too high, where it refuses other values that are out of range.
    level = request.deflate_level if deflate and request.deflate_level > 0 else DEFLATE_LEVEL
    granted = Granted(
        client_id=request.client_id,
        hostname=request.hostname,
        user_agent=request.user_agent,
        heartbeat_interval_ms=heartbeat_ms,
        output_buffer_size=buffer_size,
        # Without a buffer a timer would have nothing to flush.
        output_buffer_timeout_ms=0 if buffer_size == 1 else buffer_timeout_ms,
        sample_rate=sample_rate,
        msg_timeout_ms=msg_timeout_ms,
        topology_region=request.topology_region,
        topology_zone=request.topology_zone,
        dead_letter_envelopes=request.dead_letter_envelopes,
        tls_v1=negotiates and bool(server.get("tls")) and request.tls_v1,
        deflate=deflate,
        deflate_level=min(level, limits.max_deflate_level),
        snappy=snappy,
    )
    if negotiates:
        granted.reply = _reply(granted, limits, server)
    return granted


def _decode(body: bytes, *, strict: bool) -> _Request:
    """Return the request. Raises RemoteError: Go's decoder would refuse it."""
    undecodable = RemoteError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    try:
        # Bytes that are not UTF-8 become U+FFFD, as in Go; json.loads(bytes) might assume UTF-16.
        text = body.decode("utf-8", "replace")
        request = json.loads(text, parse_constant=_no_constant, parse_int=_integer)
    except (ValueError, RecursionError):
        raise undecodable from None
    # Go's decoder accepts null for a struct and sets no field.
    if request is None:
        return _Request()
    if not isinstance(request, dict) or (strict and not _is_modest(request, STRICT_DEPTH)):
        raise undecodable
    # Go's decoder ignores the case of keys (a long s counts as an s). If several keys mean one
    # field, the last one wins; each must have the field's type.
    found = _Request()
    try:
        for key, value in request.items():
            name = key.lower().replace("\u017f", "s")
            if name not in _Request.__struct_fields__ or value is None:
                continue
            checked = getattr(msgspec.convert({name: value}, _Request), name)
            if isinstance(checked, str):
                # Go's decoder replaces an escaped half of a surrogate pair. Python's keeps it, in
                # a str that cannot be encoded as UTF-8.
                checked = _LONE_SURROGATE.sub("\ufffd", checked)
            setattr(found, name, checked)
    # UnicodeEncodeError: msgspec wants to quote half of a surrogate pair that is no number.
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise undecodable from None
    return found


def _is_modest(value: object, depth: int) -> bool:
    """Whether JSON is nested at most `depth` levels and all its numbers fit in 64 bits."""
    if isinstance(value, dict | list):
        each = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_modest(one, depth - 1) for one in each)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _integer(digits: str) -> float:
    """Parse an integer; one too long for an int64 becomes infinite without being parsed.

    int() takes quadratic time. No error is raised, because Go accepts any value of an unknown key.
    """
    return int(digits) if len(digits) <= INT64_CHARACTERS_MAX else math.inf


def _granted_number(
    what: str, requested: int, default: int, limits: tuple[int, int], off: int | None = None
) -> int:
    """The value for a request: 0 means the default, -1 `off`; others must be within limits."""
    if requested == 0:
        return default
    if requested == OFF and off is not None:
        return off
    if not limits[0] <= requested <= limits[1]:
        raise RemoteError("E_BAD_BODY", f"IDENTIFY {what} ({requested}) is invalid")
    return requested


def _reply(
    granted: Granted, limits: IdentifyLimits, server: Mapping[str, object]
) -> dict[str, object]:
    answer = {
        "max_rdy_count": limits.max_rdy_count,
        "version": server.get("version", NSQ_VERSION),
        "max_msg_timeout": limits.max_msg_timeout_ms,
        "msg_timeout": granted.msg_timeout_ms,
        "tls_v1": granted.tls_v1,
        "deflate": granted.deflate,
        "deflate_level": granted.deflate_level,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": granted.snappy,
        "sample_rate": granted.sample_rate,
        "auth_required": server.get("auth_required", False),
        "output_buffer_size": granted.output_buffer_size,
        "output_buffer_timeout": granted.output_buffer_timeout_ms,
        "topology_region": server.get("topology_region", ""),
        "topology_zone": server.get("topology_zone", ""),
        "sparq_version": server.get("sparq_version", ""),
        "sparq_range": 2,
    }
    if granted.dead_letter_envelopes:  # only in replies to clients that ask: others see NSQ's
        answer["dead_letter_envelopes"] = True
    return answer
