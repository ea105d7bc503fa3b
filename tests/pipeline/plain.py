"""Clicks read with plain Python, character by character, to compare the pipeline with.

It shares nothing with `sparq.pipeline.enrich` but the description of the formats.
"""

import ipaddress
import json
import re
from datetime import UTC, datetime, timedelta

FORMS = {
    "address": r"[0-9A-Za-z._:%\[\]-]{1,255}",
    "bytes": "[0-9]{1,18}|-",
    "status": "[0-9]{3}|-",
}


class Unreadable(Exception):
    """The line is not a click."""


def read(body):
    """Read the fields of a click.

    Raises:
        Unreadable: the body is not a click.
    """
    text = body.decode("utf-8", "replace").rstrip("\r\n")
    is_json = text.lstrip(" \t\r\n").startswith("{")
    fields = _from_json(body) if is_json else _from_line(text)
    fields["time"] = _time(fields["time"])
    for name, form in FORMS.items():
        if not re.fullmatch(form, fields[name] or "-"):
            if not is_json:
                raise Unreadable
            fields[name] = None if name == "address" else "-"
    fields["bytes"] = 0 if fields["bytes"] == "-" else int(fields["bytes"])
    fields["status"] = None if fields["status"] == "-" else int(fields["status"])
    fields["page"] = _page(fields.pop("request"))
    return fields


def _from_json(body):
    try:
        found = json.loads(body)
        return {
            "time": found["time"],
            "address": found.get("remote_addr"),
            "request": found.get("request", ""),
            "status": str(found.get("status", "-")),
            "bytes": str(found.get("body_bytes_sent", "-")),
            "referer": found.get("http_referer"),
            "user_agent": found.get("http_user_agent"),
        }
    except (ValueError, KeyError) as error:
        raise Unreadable from error


def _from_line(text):
    if "\x01" in text:
        raise Unreadable
    words = text.split(" ")
    for count in range(3, 14):
        if any(not word or re.search(r"\s", word) for word in words[:count]):
            break
        if any('"' in word for word in words[1:count]):
            break
        rest = " ".join(words[count:])
        if rest.startswith("["):
            try:
                return _head(words[:count]) | _behind_head(rest)
            except Unreadable:
                continue
    raise Unreadable


def _head(words):
    if len(words) > 3 and (_is_address(words[1]) or re.fullmatch(r"[\w.-]+:\d{1,5}", words[0])):
        words = words[1:]
    return {"address": words[0]}


def _is_address(word):
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _behind_head(rest):
    time, end = rest[1:].partition("]")[::2]
    if not time or "[" in time or not end.startswith(" "):
        raise Unreadable
    request, rest = _quoted(end[1:])
    status, rest = _word(rest)
    size, rest = _word(rest)
    if not re.fullmatch("[0-9]{3}|-", status) or not re.fullmatch("[0-9]+|-", size):
        raise Unreadable
    fields = {"time": time, "request": request, "status": status, "bytes": size}
    referer = user_agent = None
    if rest.startswith(' "'):
        referer, rest = _quoted(rest[1:])
        user_agent, rest = _quoted(rest[1:] if rest.startswith(" ") else "")
    while rest:
        if rest.startswith(' "') and user_agent is not None:
            _, rest = _quoted(rest[1:])
        else:
            _, rest = _word(rest)
    return fields | {"referer": referer, "user_agent": user_agent}


def _quoted(text):
    if not text.startswith('"'):
        raise Unreadable
    at = 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise Unreadable
    return text[1:at], text[at + 1 :]


def _word(text):
    found = re.match(r' [^\s"]+', text)
    if not found:
        raise Unreadable
    return found[0][1:], text[found.end() :]


def _time(text):
    if re.fullmatch(r"\d\d/[A-Z][a-z]{2}/\d{4}[: ]\d\d:\d\d:\d\d [+-]\d{4}", text, re.ASCII):
        form = f"%d/%b/%Y{text[11]}%H:%M:%S %z"
    elif re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", text, re.ASCII):
        form = "%Y-%m-%dT%H:%M:%S%z"
    else:
        raise Unreadable
    try:
        found = datetime.strptime(text, form).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Unreadable from error
    if found < datetime(1970, 1, 1, tzinfo=UTC) or abs(found.utcoffset()) > timedelta(0):
        raise Unreadable
    return found


def _page(request):
    parts = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +(\S.*) HTTP/\d(\.\d)? *", request)
    parts = parts or re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +(\S+)", request)
    if not parts:
        return None
    page = parts[2].rstrip(" ").split("?")[0]
    if page.lower().startswith(("http://", "https://")):
        page = "/" + page.split("://", 1)[1].partition("/")[2]
    return page
