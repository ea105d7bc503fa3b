"""The careful reader: reads one message at a time, in plain Python, and accepts all readable forms.

It defines what a click is. Few messages get here: `ordinary_lines` and `ordinary_json` read nearly
all of them, a batch at a time, and give the same columns.

1. Every message gives a result: a click, or the reason why it is none. Every pattern here takes
   linear time at most.
2. Patterns have the meaning that they have in Java, where the pipeline first read its clicks:
   `\\s` and `\\d` match ASCII only, `.` does not match any line terminator, and `$` also matches
   before a line terminator at the end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sparq.pipeline.click_times import event_micros
from sparq.pipeline.lenient_json import NotJson, read_object

# JSON keys; the first one present wins. The names are those of nginx and of Apache's and Logstash's
# common JSON formats. Values may be strings or numbers.
JSON_KEYS: dict[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "@timestamp", "time_iso8601", "time_local", "ts"),
    "address": ("remote_addr", "ip", "address", "client_ip", "clientip"),
    "request": ("request",),
    "method": ("method", "request_method", "verb"),
    "path": ("path", "uri", "request_uri", "url"),
    "status": ("status", "response"),
    "bytes": ("bytes", "body_bytes_sent", "bytes_sent", "size"),
    "referer": ("referer", "referrer", "http_referer"),
    "user_agent": ("user_agent", "http_user_agent", "agent", "ua"),
    "vhost": ("vhost", "host"),
}
ALL_KEYS = frozenset(key for names in JSON_KEYS.values() for key in names)

CONTROL = "\u0001"  # a line with this character is refused: it once joined the parts of a line

_END = r"(?=(?:\r\n|[\n\r\u0085\u2028\u2029])?\Z)"
_QUOTED = r'"[^"\\]*(?:\\[^\n\r\u0085\u2028\u2029][^"\\]*)*"'
_HEAD = r'(\S+(?: [^\s"]+){2,12}?)'
_ADDRESS = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)"


def _pattern(text: str) -> re.Pattern[str]:
    # ASCII: otherwise \d also matches the digits of other scripts, and \s other spaces.
    return re.compile(text, re.ASCII)


_LINE = _pattern(
    rf"{_HEAD} \[([^\[\]]+)\] ({_QUOTED}) (\d{{3}}|-) (\d+|-)"
    rf'(?:(?: ({_QUOTED}) ({_QUOTED})(?: (?:{_QUOTED}|[^"\s]+))*)|(?: [^"\s]+)*){_END}'
)
_PROXIES = _pattern(r"([^\s,]+)(?:, [^\s,]+)+ ")
_HOST_ADDRESS = _pattern(rf"\S+ {_ADDRESS} \S+ \S")
_HOST_PORT = _pattern(r"[0-9A-Za-z.-]+:\d{1,5} \S+ \S+ \S")
_ADDRESS_OR_NAME = _pattern(rf"[0-9A-Za-z._:%\[\]-]{{1,255}}{_END}")
_REQUEST = _pattern(
    r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +"  # a method, RFC 9110 section 5.6.2
    rf"(?:(\S[^\n\r\u0085\u2028\u2029]*) (HTTP/\d(?:\.\d)?) *|(\S+)){_END}"
)
_STATUS = _pattern(rf"(?:\d{{3}}|-){_END}")
_SIZE = _pattern(rf"\d{{1,18}}{_END}")
_ORIGIN = _pattern(r"(?i:https?)://[^/]*")

BAD_STATUS = "the status is not three digits"

# To explain a line that does not match: the first of these prefixes that fails gives the reason.
_AFTER_TIME = rf"{_HEAD} \[[^\[\]]+\] "
_AFTER_REQUEST = rf"{_AFTER_TIME}{_QUOTED} "
_AFTER_SIZE = rf"{_AFTER_REQUEST}(?:\d{{3}}|-) (?:\d+|-)"
_PREFIXES = tuple(
    (_pattern(text), why)
    for text, why in (
        (_HEAD, "not an access-log line and not JSON"),
        (_AFTER_TIME, "no time in brackets after address, identity and user"),
        (rf'{_AFTER_TIME}"', "no quoted request after the time"),
        (_AFTER_REQUEST, "the request is never closed"),
        (rf"{_AFTER_REQUEST}(?:\d{{3}}|-) ", BAD_STATUS),
        (rf"{_AFTER_SIZE}(?: |{_END})", "the size is not a number"),
        (rf'{_AFTER_SIZE}(?: [^"\s]+)*(?: {_QUOTED}|{_END})', "the referer is never closed"),
        (rf'{_AFTER_SIZE} {_QUOTED} "', "the user agent is missing"),
        (rf"{_AFTER_SIZE} {_QUOTED} {_QUOTED}", "the user agent is never closed"),
    )
)


class Click(NamedTuple):
    """The columns of a click, in the order of `clicks.CLICK_COLUMNS`; see there."""

    time: int | None = None  # microseconds since 1970
    address: str | None = None
    user: str | None = None
    vhost: str | None = None
    method: str | None = None
    path: str | None = None
    page: str | None = None
    protocol: str | None = None
    status: int | None = None
    bytes: int | None = None
    referer: str | None = None
    user_agent: str | None = None
    format: str | None = None
    reason: str | None = None


def read(body: bytes) -> Click:
    """Read a message as a click; the click has a `reason` if the message could not be read."""
    line = body.decode("utf-8", "replace").rstrip("\r\n")
    is_json = line.lstrip(" \t\r\n").startswith("{")
    fields = _json_fields(body, line) if is_json else _line_fields(line)
    if fields is None:
        # A missing size counts as 0, also in a message from which nothing could be read.
        return Click(bytes=0, reason=_unmatched_reason(line, is_json))
    return _click(fields, is_json)


Fields = dict[str, str | None]


def _json_fields(body: bytes, line: str) -> Fields | None:
    try:
        # Only to refuse invalid UTF-8: in `line`, it has been replaced already.
        body.decode()
        values = read_object(line, ALL_KEYS)
    except (UnicodeDecodeError, NotJson):
        return None
    return {
        name: next((values[key] for key in keys if values.get(key) is not None), None)
        for name, keys in JSON_KEYS.items()
    }


def _line_fields(line: str) -> Fields | None:
    found = None if CONTROL in line else _LINE.match(line)
    if not found:
        return None
    head, time, request, status, size, referer, agent = found.groups("")
    agent += line[found.end() :]  # a line terminator such as U+2028
    proxies = _PROXIES.match(head)
    if proxies:  # X-Forwarded-For in place of the address is a list: its first is the visitor
        head = f"{proxies[1]} {head[proxies.end() :]}"
    words = head.split(" ")
    named = len(words) > 3 and bool(_HOST_ADDRESS.match(head) or _HOST_PORT.match(head))
    return {
        "time": time,
        # `named` counts as 0 or 1: if a host comes first, every word is one place further.
        "address": words[named],
        "user": " ".join(words[named + 2 : named + 18]),
        "vhost": words[0] if named else None,
        "request": request[1:-1],
        "status": status,
        "bytes": size,
        "referer": referer[1:-1] if referer else None,
        "user_agent": agent[1:-1] if agent else None,
    }


def _request_parts(request: str | None) -> tuple[str | None, str | None, str | None]:
    """Method, path and protocol."""
    found = None if request is None or CONTROL in request else _REQUEST.match(request)
    if request is None or not found:
        return None, None, None
    method, path, protocol, alone = found.groups("")
    alone += request[found.end() :]  # a line terminator such as U+2028
    return method, alone or path.rstrip(" "), protocol or None


def _click(fields: Fields, is_json: bool) -> Click:
    method, path, protocol = _request_parts(fields["request"])
    path = fields.get("path") if path is None else path
    status, size = fields["status"], fields["bytes"] or "-"
    if fields["bytes"] == "":
        size = ""
    agent = fields["user_agent"]
    click = Click(
        time=event_micros(fields["time"], is_json),
        address=fields["address"],
        user=fields.get("user"),
        vhost=fields["vhost"],
        method=fields.get("method") if method is None else method,
        path=path,
        page=_page(path),
        protocol=protocol,
        status=_integer(status) if status and _STATUS.match(status) else None,
        bytes=0 if size == "-" else _integer(size) if _SIZE.match(size) else None,
        referer=fields["referer"],
        user_agent=agent,
        format="json" if is_json else "common" if agent is None else "combined",
    )
    return click._replace(reason=_reason(fields, click))


def _integer(text: str) -> int | None:
    digits = text.rstrip("\r\n")
    return int(digits) if digits.isdecimal() and digits.isascii() else None


def _page(path: str | None) -> str | None:
    """The path without its query; of a proxy's `http://host/path` only the path."""
    if path is None:
        return None
    bare = path.partition("?")[0]
    origin = _ORIGIN.match(bare)
    return (bare[origin.end() :] if origin else bare) or "/"


def _reason(fields: Fields, click: Click) -> str | None:
    """The first reason why a click cannot be used; None if it can."""
    address, status = click.address, fields["status"]
    checks = (
        (fields["time"] is None, "the time is missing"),
        (click.time is None, "the time is not a time"),
        (address is None, "the address is missing"),
        (
            address is not None and not _ADDRESS_OR_NAME.match(address),
            "the address is neither an IP address nor a name",
        ),
        (fields["request"] is None and click.path is None, "the request is missing"),
        (status is not None and not _STATUS.match(status), BAD_STATUS),
        (click.bytes is None, "the size is not a number"),
    )
    return next((why for holds, why in checks if holds), None)


def _unmatched_reason(line: str, is_json: bool) -> str:
    """Why no field of a message could be read."""
    if not line.strip(" "):
        return "the message is empty"
    if is_json:
        return "the JSON is not one valid object"
    if CONTROL in line:
        return "the line has a control character"
    failed = (why for pattern, why in _PREFIXES if not pattern.match(line))
    return next(failed, "the line goes on in an unknown form")
