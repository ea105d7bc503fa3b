"""The named formats, as tables, and format strings, such as `$address [$time] "$request"`.

FIELDS says which field of a click a name stands for; all other names go to `extra`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

AUTO: Final = "auto"
LOG_FORMAT: Final = "log_format"

_USUAL: Final = {
    "time": "time timestamp @timestamp time_iso8601 time_local ts msec",
    "address": "remote_addr ip address client_ip clientip remote_ip remoteIP client c-ip",
    "user": "remote_user user cs-username",
    "vhost": "vhost host http_host server_name cs-host cs(Host) x-host-header",
    "request": "request",
    "method": "method request_method verb cs-method",
    "path": "path request_uri uri url cs-uri-stem",
    "query": "query query_string args cs-uri-query",
    "protocol": "protocol server_protocol cs-version cs-protocol-version",
    "status": "status response status_code sc-status",
    "bytes": "bytes body_bytes_sent bytes_sent size sc-bytes",
    "referer": "referer referrer http_referer cs(Referer)",
    "user_agent": "user_agent http_user_agent agent userAgent ua",
    "forwarded": "http_x_forwarded_for x_forwarded_for x-forwarded-for X-Forwarded-For",
    "duration": "request_time",
}
"""The usual names of a click's fields: nginx's variables, those of W3C logs, and keys in JSON."""

DURATIONS: Final = {"duration": 1.0, "duration_ms": 1e-3, "duration_us": 1e-6, "duration_ns": 1e-9}
FIELDS_OF_CLICK: Final = tuple(dict.fromkeys((*_USUAL, *DURATIONS)))
"""What a format can name: columns of a click, `request` (method, path and protocol), `query` (added
to the path), `forwarded` (X-Forwarded-For) and durations in other units than seconds."""

FIELDS: Final[Mapping[str, str]] = {
    **{name: name for name in FIELDS_OF_CLICK},
    **{name: field for field, names in _USUAL.items() for name in names.split()},
    # Parts of a time, and encodings that some formats have.
    **{name: name for name in ("date", "clock", "user_agent_plus", "user_agent_percent")},
    "front_host": "vhost",  # host and port before the address, or any host before an IP address
    "any_host": "vhost",
}

OPTIONAL: Final = "\0"  # in a named format: all fields from here on may be missing

_COMMON: Final = '$address $ident $user [$time] "$request" $status $bytes'
_COMBINED: Final = _COMMON + ' "$referer" "$user_agent"'
_IIS: Final = (
    "date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent)"
    " cs(Referer) sc-status sc-substatus sc-win32-status time-taken"
)
_CLOUDFRONT: Final = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer)"
    " cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header"
    f" cs-protocol cs-bytes time-taken {OPTIONAL} x-forwarded-for ssl-protocol ssl-cipher"
    " x-edge-response-result-type cs-protocol-version fle-status fle-encrypted-fields c-port"
    " time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len"
    " sc-range-start sc-range-end"
)


def _w3c_string(fields: str, separator: str, taken: str, agent: str) -> str:
    """The format string of a W3C log's fields. A later field with the same meaning is extra."""
    names = {
        **{"date": "date", "time": "clock", "time-taken": taken, "cs(User-Agent)": agent},
        **{"cs(Host)": "edge_host" if "x-host-header" in fields else "cs(Host)"},
    }
    text = ""
    for name in fields.split(" "):
        text += name if name == OPTIONAL else f"{separator}${{{names.get(name, name)}}}"
    return text.removeprefix(separator)


LINES: Final = (
    ("traefik", _COMBINED + ' $request_number "$router" "$service_url" ${duration_ms}ms'),
    ("combined", _COMBINED + ' "$http_x_forwarded_for" $request_time'),
    ("combined", _COMBINED + ' "$http_x_forwarded_for"'),
    ("vhost", "$front_host " + _COMBINED),
    ("vhost", "$any_host " + _COMBINED.replace("$address", "$ip")),
    ("vhost", "$front_host " + _COMMON),
    ("vhost", "$any_host " + _COMMON.replace("$address", "$ip")),
    ("combined", _COMBINED),
    ("common", _COMMON),
    *(
        (
            "haproxy",
            "$syslog$address:$port [$time] $frontend $backend/$server"
            f" $tq/$tw/$tc/$tr/{plus}$duration_ms $status {plus}$bytes $request_cookie"
            ' $response_cookie $termination $connections $queues $captures"$request"',
        )
        for plus in ("+", "")  # with the option `logasap`, what has come so far
    ),
    (
        "alb",
        "$type $time $elb $address:$port $target $request_processing_time $duration"
        " $response_processing_time $status"
        ' $target_status $received_bytes $bytes "$request" "$user_agent" $ssl_cipher $ssl_protocol'
        f'{OPTIONAL} $target_group_arn "$trace_id" "$domain_name" "$chosen_cert_arn"'
        ' $rule_priority $request_creation_time "$actions_executed" "$redirect_url"'
        ' "$error_reason" "$target_port_list" "$target_status_list" "$classification"'
        ' "$classification_reason" $conn_trace_id',
    ),
    (
        "elb",
        "$time $elb $address:$port $backend $request_processing_time $duration"
        " $response_processing_time $status $backend_status"
        f' $received_bytes $bytes "$request"{OPTIONAL} "$user_agent" $ssl_cipher $ssl_protocol',
    ),
    (
        "s3",
        "$bucket_owner $bucket [$time] $address $requester $request_id $operation $key"
        ' "$request" $status $error_code $bytes $object_size $duration_ms $turn_around_ms'
        f' "$referer" "$user_agent"{OPTIONAL} $version_id $host_id $signature $cipher_suite'
        " $authentication $vhost $tls_version $access_point_arn $acl_required",
    ),
    ("cloudfront", _w3c_string(_CLOUDFRONT, "\t", "duration", "user_agent_percent")),
    ("w3c", _w3c_string(_IIS, " ", "duration_ms", "user_agent_plus")),
)
"""Name and format string of each line format, in the order in which a line is compared with them:
each format comes before those that would read its lines as well."""

JSON: Final[tuple[tuple[str, tuple[str, ...], Mapping[str, str]], ...]] = (
    (
        "traefik",
        ("DownstreamStatus", "RequestMethod RequestPath"),
        {
            "time": "StartUTC time StartLocal",
            "address": "ClientHost",
            "user": "ClientUsername",
            "vhost": "RequestHost RequestAddr",
            "method": "RequestMethod",
            "path": "RequestPath",
            "protocol": "RequestProtocol",
            "status": "DownstreamStatus OriginStatus",
            "bytes": "DownstreamContentSize",
            "referer": "request_Referer",
            "user_agent": "request_User-Agent",
            "forwarded": "request_X-Forwarded-For",
            "duration_ns": "Duration",
        },
    ),
    (
        "caddy",
        ("request size status duration resp_headers", "logger msg request ts"),
        {
            "time": "ts",
            # Caddy finds out client_ip by its own `trusted_proxies`.
            "address": "request.client_ip request.remote_ip",
            "user": "user_id",
            "vhost": "request.host",
            "method": "request.method",
            "path": "request.uri",
            "protocol": "request.proto",
            "status": "status",
            "bytes": "size",
            "referer": "request.headers.Referer.0",
            "user_agent": "request.headers.User-Agent.0",
            "forwarded": "request.headers.X-Forwarded-For.0",
            "duration": "duration",
        },
    ),
    (
        "ecs",
        tuple(
            f"@timestamp {other}"
            for other in ("ecs", "ecs.version", "http", "url", "http.request.method", "url.path")
        ),
        {
            "time": "@timestamp",
            "address": "client.ip source.ip client.address source.address",
            "user": "user.name",
            "vhost": "url.domain",
            "method": "http.request.method",
            "path": "url.original url.path url.full",
            "query": "url.query",
            "protocol": "http.version",
            "status": "http.response.status_code",
            "bytes": "http.response.body.bytes http.response.bytes",
            "referer": "http.request.referrer",
            "user_agent": "user_agent.original",
            "duration_ns": "event.duration",
        },
    ),
    ("json", ("",), _USUAL),
)
"""The JSON formats: name, sets of keys (an object has the first format of which it has all keys of
one set), and paths of each field, of which the first one with a fitting value counts."""

NAMES: Final = tuple(dict.fromkeys((*(name for name, _ in LINES), *(one[0] for one in JSON))))

GROUPS: Final = ("source", "campaign", "device", "robot", "kind")  # of columns that need no file

IGNORED: Final = "_"
SYSLOG, CAPTURES = "syslog", "captures"

# What GoAccess' specifiers and Apache's stand for, in nginx's form.
_GOACCESS: Final = {
    **{"x": "time", "d": "date", "t": "clock", "v": "vhost", "e": "user", "h": "address"},
    **{"r": "request", "m": "method", "U": "path", "q": "query", "H": "protocol", "s": "status"},
    **{"b": "bytes", "R": "referer", "u": "user_agent", "D": "duration_us", "T": "duration"},
    **{"L": "duration_ms", "n": "duration_ns", "C": "cache_status", "M": "mime_type"},
    **{"K": "tls_protocol", "k": "tls_cipher"},
}
_APACHE: Final = {
    **{"a": "address", "h": "address", "l": "ident", "u": "user", "r": "request", "v": "vhost"},
    **{"V": "vhost", "p": "port", "m": "method", "U": "path", "q": "query", "H": "protocol"},
    **{"s": "status", "b": "bytes", "B": "bytes", "O": "bytes", "D": "duration_us"},
    **{"T": "duration", "{referer}i": "referer", "{user-agent}i": "user_agent"},
    **{"{host}i": "vhost", "{x-forwarded-for}i": "forwarded"},
}
_IS_APACHE: Final = re.compile(r"%(?:>s|l|\{[^}]+\}[a-z])")
_APACHE_SPECIFIER: Final = re.compile(r"%[<>]?(?:\{([^}]+)\}([A-Za-z])|([A-Za-z]))")
FIELD: Final = re.compile(r"\$(?:\{([^}]+)\}|([A-Za-z_][A-Za-z0-9_]*))")
"""A field in a format string; its name is group 1 or 2."""


def nginx_form(text: str) -> str:
    """A format string of nginx, GoAccess or Apache in nginx's form; ValueError if it is wrong."""
    if "$" not in text:
        text = text.replace('\\"', '"').replace("\\t", "\t")
        if _IS_APACHE.search(text):
            text = _APACHE_SPECIFIER.sub(_of_apache, text.replace("%t", "[$time]"))
        else:
            # GoAccess' own formats leave out the offset from UTC: here it belongs to the time.
            text = text.replace("[%d:%t %^]", "[%x]").replace("%~", "")
            text = re.sub(r"~h\{[^}]*\}", "${forwarded}", text)
            text = re.sub("%(.)", lambda one: f"${{{_GOACCESS.get(one[1], IGNORED)}}}", text)
    found = list(FIELD.finditer(text))
    names = {FIELDS.get(one[1] or one[2]) for one in found}
    if "time" not in names and not {"date", "clock"} <= names:
        raise ValueError(
            "has no time: write $time_local, $time_iso8601 or $msec of nginx, %x of GoAccess, or %t"
            " of Apache"
        )
    for one, other in itertools.pairwise(found):
        if one.end() == other.start():
            raise ValueError(f"has no character between {one[0]} and {other[0]}")
    return text


def w3c(fields: str) -> str:
    """The format string of a line with these fields of a W3C log; ValueError without a time."""
    names = fields.removeprefix("#Fields:").split()
    if not {"date", "time"} <= set(names):
        raise ValueError("has no date and time: write the #Fields line of the log")
    return _w3c_string(" ".join(names), " ", "duration_ms", "user_agent_plus")


def _of_apache(found: re.Match[str]) -> str:
    argument, kind, letter = found.groups()
    if kind == "t":
        return "${time}"
    key = f"{{{argument.lower()}}}{kind}" if argument else letter
    return f"${{{_APACHE.get(key) or argument or letter}}}"
