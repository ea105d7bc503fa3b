"""The named formats, as tables, and format strings.

A line's format is a string with `$name` for each field, such as `$address [$time] "$request"`. All
other characters stand for themselves. FIELDS says which field of a click a name stands for; all
other names go to `extra`. A JSON format says where each field of a click is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparq.program.mistakes import one_of, shown, suggestion

AUTO: Final = "auto"
LOG_FORMAT: Final = "log_format"

FIELDS_OF_CLICK: Final = (
    *("time", "address", "user", "vhost", "request", "method", "path", "query", "protocol"),
    *("status", "bytes", "referer", "user_agent", "forwarded"),
    *("duration", "duration_ms", "duration_us", "duration_ns"),
)
"""What a format can name: columns of a click, `request` (method, path and protocol), `query` (added
to the path), `forwarded` (X-Forwarded-For) and durations in other units than seconds."""

# Encodings that some formats have, and parts of a time.
_ENCODED: Final = ("date", "clock", "user_agent_plus", "user_agent_percent")

FIELDS: Final[Mapping[str, str]] = {
    **{name: name for name in (*FIELDS_OF_CLICK, *_ENCODED)},
    "front_host": "vhost",  # host and port before the address, or any host before an IP address
    "any_host": "vhost",
    "ip": "address",
    # nginx
    "remote_addr": "address",
    "remote_user": "user",
    "time_local": "time",
    "time_iso8601": "time",
    "msec": "time",
    "host": "vhost",
    "http_host": "vhost",
    "server_name": "vhost",
    "request_method": "method",
    "request_uri": "path",
    "uri": "path",
    "args": "query",
    "query_string": "query",
    "server_protocol": "protocol",
    "body_bytes_sent": "bytes",
    "bytes_sent": "bytes",
    "http_referer": "referer",
    "http_user_agent": "user_agent",
    "http_x_forwarded_for": "forwarded",
    "request_time": "duration",
    # W3C
    "c-ip": "address",
    "cs-username": "user",
    "cs-host": "vhost",
    "cs(Host)": "vhost",
    "x-host-header": "vhost",
    "cs-method": "method",
    "cs-uri-stem": "path",
    "cs-uri-query": "query",
    "cs-version": "protocol",
    "cs-protocol-version": "protocol",
    "sc-status": "status",
    "sc-bytes": "bytes",
    "cs(Referer)": "referer",
    "x-forwarded-for": "forwarded",
    "X-Forwarded-For": "forwarded",
}

OPTIONAL: Final = "\0"
"""In a named format: each field from here on may be missing, with all that follow it."""

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

# Where a field is in JSON: the first path that has a fitting value counts.
Paths = Mapping[str, tuple[str, ...]]


class JsonFormat(NamedTuple):
    """A JSON format.

    Attributes:
        name: its name.
        marks: sets of keys; an object with all keys of one set has this format.
        paths: the paths of each field.
    """

    name: str
    marks: tuple[frozenset[str], ...]
    paths: Paths


JSON: Final = (
    JsonFormat(
        "traefik",
        (frozenset({"DownstreamStatus"}), frozenset({"RequestMethod", "RequestPath"})),
        {
            "time": ("StartUTC", "time", "StartLocal"),
            "address": ("ClientHost",),
            "user": ("ClientUsername",),
            "vhost": ("RequestHost", "RequestAddr"),
            "method": ("RequestMethod",),
            "path": ("RequestPath",),
            "protocol": ("RequestProtocol",),
            "status": ("DownstreamStatus", "OriginStatus"),
            "bytes": ("DownstreamContentSize",),
            "referer": ("request_Referer",),
            "user_agent": ("request_User-Agent",),
            "forwarded": ("request_X-Forwarded-For",),
            "duration_ns": ("Duration",),
        },
    ),
    JsonFormat(
        "caddy",
        (frozenset({"request", "size", "status", "duration", "resp_headers"}),
         frozenset({"logger", "msg", "request", "ts"})),
        {
            "time": ("ts",),
            # Caddy finds out client_ip by its own `trusted_proxies`.
            "address": ("request.client_ip", "request.remote_ip"),
            "user": ("user_id",),
            "vhost": ("request.host",),
            "method": ("request.method",),
            "path": ("request.uri",),
            "protocol": ("request.proto",),
            "status": ("status",),
            "bytes": ("size",),
            "referer": ("request.headers.Referer.0",),
            "user_agent": ("request.headers.User-Agent.0",),
            "forwarded": ("request.headers.X-Forwarded-For.0",),
            "duration": ("duration",),
        },
    ),
    JsonFormat(
        "ecs",
        tuple(
            frozenset({"@timestamp", other})
            for other in ("ecs", "ecs.version", "http", "url", "http.request.method", "url.path")
        ),
        {
            "time": ("@timestamp",),
            "address": ("client.ip", "source.ip", "client.address", "source.address"),
            "user": ("user.name",),
            "vhost": ("url.domain",),
            "method": ("http.request.method",),
            "path": ("url.original", "url.path", "url.full"),
            "query": ("url.query",),
            "protocol": ("http.version",),
            "status": ("http.response.status_code",),
            "bytes": ("http.response.body.bytes", "http.response.bytes"),
            "referer": ("http.request.referrer",),
            "user_agent": ("user_agent.original",),
            "duration_ns": ("event.duration",),
        },
    ),
    # The keys of nginx's variables, and those usual in Apache's and Logstash's JSON.
    JsonFormat(
        "json",
        (frozenset(),),
        {
            "time": ("time", "timestamp", "@timestamp", "time_iso8601", "time_local", "ts", "msec"),
            "address": ("remote_addr", "ip", "address", "client_ip", "clientip", "remote_ip",
                        "remoteIP", "client"),
            "user": ("remote_user", "user"),
            "vhost": ("vhost", "host", "http_host", "server_name"),
            "request": ("request",),
            "method": ("method", "request_method", "verb"),
            "path": ("path", "request_uri", "uri", "url"),
            "query": ("query", "query_string", "args"),
            "protocol": ("protocol", "server_protocol"),
            "status": ("status", "response", "status_code"),
            "bytes": ("bytes", "body_bytes_sent", "bytes_sent", "size"),
            "referer": ("referer", "referrer", "http_referer"),
            "user_agent": ("user_agent", "http_user_agent", "agent", "userAgent", "ua"),
            "forwarded": ("http_x_forwarded_for", "x_forwarded_for"),
            "duration": ("request_time",),
        },
    ),
)  # fmt: skip
"""The JSON formats; an object has the first one whose marks it has."""

NAMES: Final = tuple(dict.fromkeys((*(name for name, _ in LINES), *(one.name for one in JSON))))
"""The named formats. `traefik` is both a line format and a JSON format."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field in a format string.

    Attributes:
        name: as written; where it is no field of a click, its key in `extra`.
        ours: the field of a click; "" for others.
        is_optional: it may be missing, with all that follow it.
    """

    name: str
    ours: str
    is_optional: bool = False


Parts = tuple[Field | str, ...]
"""A format string as fields and the text between them."""

Pairs = tuple[tuple[str, str], ...]
GROUPS: Final = ("source", "campaign", "device", "robot", "kind")
"""Groups of columns that need no file; see `enrich`."""

TYPES: Final = ("string", "boolean", "int", "bigint", "double", "date", "timestamp")
"""Types of the user's columns, as in Spark SQL."""

_COLUMN: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}")

IGNORED: Final = "_"
_MAY_BE_EMPTY = SYSLOG, CAPTURES = "syslog", "captures"

# GoAccess' specifiers and Apache's: a format string in nginx's form.
_GOACCESS: Final = {
    **{"x": "time", "d": "date", "t": "clock", "v": "vhost", "e": "user", "h": "address"},
    **{"r": "request", "m": "method", "U": "path", "q": "query", "H": "protocol", "s": "status"},
    **{"b": "bytes", "R": "referer", "u": "user_agent", "D": "duration_us", "T": "duration"},
    **{"L": "duration_ms", "n": "duration_ns", "^": IGNORED, "C": "cache_status", "M": "mime_type"},
    **{"K": "tls_protocol", "k": "tls_cipher"},
}
_APACHE: Final = {
    **{"a": "address", "h": "address", "l": "ident", "u": "user", "r": "request", "v": "vhost"},
    **{"V": "vhost", "p": "port", "m": "method", "U": "path", "q": "query", "H": "protocol"},
    **{"s": "status", "b": "bytes", "B": "bytes", "O": "bytes", "D": "duration_us"},
    **{"T": "duration", "{referer}i": "referer", "{user-agent}i": "user_agent"},
    **{"{host}i": "vhost", "{x-forwarded-for}i": "forwarded"},
}
_APACHE_FORM: Final = re.compile(r"%(?:>s|l|\{[^}]+\}[a-z])")
_APACHE_SPECIFIER: Final = re.compile(r"%[<>]?(?:\{([^}]+)\}([A-Za-z])|([A-Za-z]))")
_GOACCESS_SPECIFIER: Final = re.compile(r"~h\{[^}]*\}|%(.)")
_FIELD: Final = re.compile(r"\$(?:\{([^}]+)\}|([A-Za-z_][A-Za-z0-9_]*))|(\0)")


def parsed(text: str) -> Parts:
    """The parts of a format string of nginx, GoAccess or Apache.

    Raises:
        ValueError: it has no time, or two fields without a character between them.
    """
    parts = list(_parts(_nginx_form(text)))
    fields = [one for one in parts if isinstance(one, Field)]
    if not any(one.ours in ("time", "date") for one in fields):
        raise ValueError(
            "has no time: write $time_local, $time_iso8601 or $msec of nginx, %x of GoAccess, or %t"
            " of Apache"
        )
    for one, other in itertools.pairwise(parts):
        if isinstance(one, Field) and isinstance(other, Field) and one.name not in _MAY_BE_EMPTY:
            raise ValueError(f"has no character between {one.name} and {other.name}")
    return tuple(parts)


def w3c(fields: str) -> Parts:
    """The parts of a line with these fields of a W3C log.

    Raises:
        ValueError: there is no date or time among them.
    """
    names = fields.removeprefix("#Fields:").split()
    if not {"date", "time"} <= set(names):
        raise ValueError("has no date and time: write the #Fields line of the log")
    return parsed(_w3c_string(" ".join(names), " ", "duration_ms", "user_agent_plus"))


def check_click(pairs: Pairs) -> None:
    """Check pairs of a field of a click and its path.

    Raises:
        ValueError: a field or a path is wrong.
    """
    for name, path in pairs:
        if name not in FIELDS_OF_CLICK:
            close = suggestion(name, FIELDS_OF_CLICK) or f": use {one_of(FIELDS_OF_CLICK)}"
            raise ValueError(f"{shown(name)} is no field of a click{close}")
        if not path:
            raise ValueError(f"{name} has no path: write keys with points between them")


def check_columns(pairs: Pairs, taken: Collection[str]) -> None:
    """Check pairs of a column's name and its path and type; taken: names of other columns.

    Raises:
        ValueError: a name, a path or a type is wrong.
    """
    for name, text in pairs:
        if not _COLUMN.fullmatch(name):
            raise ValueError(f"{shown(name)} is no name of a column: use a-z, 0-9 and _")
        if name in taken:
            raise ValueError(
                f"{name} is a column of every click: choose another name, or write its path into"
                " [click]"
            )
        path, kind = path_and_type(text)
        if not path or kind not in TYPES:
            raise ValueError(
                f'{name} = {shown(text)} is not "path: type" with one of the types'
                f" {', '.join(TYPES)}"
            )


def path_and_type(text: str) -> tuple[str, str]:
    """The parts of "order.id: bigint"; without a type it is a string."""
    path, colon, kind = text.rpartition(":")
    return (path.strip(), kind.strip()) if colon else (text.strip(), "string")


def _parts(text: str) -> Iterator[Field | str]:
    at, is_optional = 0, False
    for found in _FIELD.finditer(text):
        if found.start() > at:
            yield text[at : found.start()]
        at = found.end()
        is_optional = is_optional or bool(found[3])
        if not found[3]:
            name = found[1] or found[2]
            yield Field(name, FIELDS.get(name, ""), is_optional)
    if at < len(text):
        yield text[at:]


def _nginx_form(text: str) -> str:
    """A format string of GoAccess or Apache in nginx's form."""
    if "$" in text or "%" not in text:
        return text
    text = text.replace('\\"', '"').replace("\\t", "\t")
    if _APACHE_FORM.search(text):
        return _APACHE_SPECIFIER.sub(_of_apache, text)
    # GoAccess' own formats leave out the offset from UTC: here it belongs to the time.
    return _GOACCESS_SPECIFIER.sub(_of_goaccess, text.replace("[%d:%t %^]", "[%x]"))


def _of_apache(found: re.Match[str]) -> str:
    if found[3] == "t":
        return "[$time]"
    key = f"{{{found[1].lower()}}}{found[2]}" if found[1] else found[3]
    if found[2] == "t":
        return "${time}"
    return f"${{{_APACHE.get(key) or found[1] or found[3]}}}"


def _of_goaccess(found: re.Match[str]) -> str:
    if found[1] is None:
        return "${forwarded}"
    if found[1] == "~":
        return ""
    return "%" if found[1] == "%" else f"${{{_GOACCESS.get(found[1], IGNORED)}}}"
