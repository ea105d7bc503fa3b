"""Requests to nsqlookupd, and parsing of its answers, for all parts of sparq that query one.

This module opens no connection. The caller sends `HEADERS` to the URL of `question`, accepts at
most `ANSWER_BYTES_MAX` bytes (`bounded`), follows no redirect, decompresses nothing, and parses the
answer here:

1. Both forms are parsed: bare JSON, and that of nsqlookupd before 1.0, which wraps it in ``data``.
2. An invalid answer raises a `ValueError` whose text can be shown to users.
3. Entries with an invalid address or name are left out and counted: a broken or hostile nsqlookupd
   spoils only its own answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from sparq.protocol.address import Address, bare_host, lookupd_url, parse_address
from sparq.protocol.names import is_valid_name

ANSWER_BYTES_MAX: Final = 16 << 20
"""Maximum answer size: ``/nodes`` of 1,000 nsqds, 400 topics each of 30 characters, is 15 MiB."""

BRACKETS_MAX: Final = 200_000
"""Maximum lists and objects: an answer of nothing else takes 20 times its size once parsed."""

LISTED_MAX: Final = 10_000
"""Maximum nsqds, topics or channels in one answer."""

HOST_LENGTH_MAX: Final = 253
"""Maximum characters of a host name, by RFC 1035; IP addresses are shorter."""

HEADERS: Final[Mapping[str, str]] = {
    "Accept": "application/vnd.nsq; version=1.0",
    "Accept-Encoding": "identity",
}
FOUND, NOT_FOUND = 200, 404
UNKNOWN_TOPIC: Final = b"TOPIC_NOT_FOUND"
"""In the 404 of an nsqlookupd that does not know the topic; nsqd's 404 has only ``NOT_FOUND``."""

NOTHING: Final[Mapping[str, Any]] = {"producers": [], "channels": []}
"""The answer for a topic that no nsqd has yet."""


KNOWS_DRAIN: Final = "knows_drain"
"""True in an nsqlookupd's answer to an IDENTIFY with `draining`: it accepts DRAIN and UNDRAIN."""


class NotLookupdError(ValueError):
    """The server that answered is not an nsqlookupd."""


class ListedNsqd(NamedTuple):
    """An nsqd that an answer lists.

    Attributes:
        address: ``host:port`` of its TCP port.
        topics: its topics, each with whether it is tombstoned there; empty in ``/lookup``.
        draining: whether it refuses publishes, so that producers use other nsqds.
    """

    address: str
    topics: list[tuple[str, bool]]
    draining: bool = False


class Producers(NamedTuple):
    """The nsqds that an answer lists, and the entries without a usable address."""

    found: list[ListedNsqd]
    unusable: list[Any]


def question(lookupd: str, route: str, **query: str) -> str:
    """The URL of a request.

    Args:
        lookupd: ``host:port``, or a URL. A path in the URL is that of ``lookup``; the other routes
            are siblings of it. The URL's query is kept.
        route: ``lookup``, ``nodes``, ``topics`` or ``channels``.
        query: additional parameters.

    Raises:
        ValueError: `lookupd` is neither ``host:port`` nor a URL.
    """
    parts = urlsplit(lookupd_url(lookupd))
    above, _, last = parts.path.rpartition("/")
    path = parts.path if last and route == "lookup" else f"{above}/{route}"
    whole_query = "&".join(filter(None, (parts.query, urlencode(query, quote_via=quote, safe=""))))
    return urlunsplit((parts.scheme, parts.netloc, path, whole_query, ""))


def shown(url: str) -> str:
    """A URL for display: without user, password and query, which may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def answer(status: int, body: bytes) -> Any:
    """Parse an nsqlookupd's answer; `NOTHING` if it does not know the topic.

    Raises:
        NotLookupdError: the answer is not JSON, or is a 404 without TOPIC_NOT_FOUND.
        ValueError: the status is an error.
    """
    if status == NOT_FOUND and UNKNOWN_TOPIC in body:
        return NOTHING
    if status == NOT_FOUND:
        raise NotLookupdError(
            "status 404 without TOPIC_NOT_FOUND: is this an nsqlookupd's HTTP address?"
            " (port 4161 by default)"
        )
    if status != FOUND:
        raise ValueError(f"status {status}")
    return document(body)


def document(body: bytes) -> Any:
    """Parse the JSON of an answer of either form (rule 1).

    Raises:
        NotLookupdError: it is not JSON, nested too deeply, or has too many lists and objects.
    """
    # Counted before parsing, as parsing takes the memory. Brackets inside strings count too: no
    # name has any, so an honest answer has none.
    if body.count(b"[") + body.count(b"{") > BRACKETS_MAX:
        raise NotLookupdError("answer has too many lists and objects")
    try:
        found = json.loads(body)
    except RecursionError:
        raise NotLookupdError("answer is nested too deeply") from None
    except ValueError as error:
        reason = f"answer is not JSON, so the server is not an nsqlookupd: {error}"
        raise NotLookupdError(reason) from None
    wrapped = isinstance(found, dict) and isinstance(found.get("data"), dict)
    return found["data"] if wrapped else found


def listed(answer: Any, key: str) -> list[Any]:
    """A list in an answer: ``producers``, ``topics`` or ``channels``; Go's null is an empty list.

    Raises:
        NotLookupdError: the answer has another form.
        ValueError: it lists more than `LISTED_MAX`.
    """
    # Not `answer.get(key)`, which is None in both cases: Go writes null for an empty list, while an
    # answer without the key is not an nsqlookupd's.
    found = answer[key] if isinstance(answer, Mapping) and key in answer else False
    if found is None:
        return []
    if not isinstance(found, list):
        raise NotLookupdError(f"answer has no list of {key}")
    if len(found) > LISTED_MAX:
        raise ValueError(f"answer lists more than {LISTED_MAX} {key}")
    return found


def producers(answer: Any) -> Producers:
    """The nsqds in an answer of ``/lookup`` or ``/nodes``. Raises the errors of `listed`."""
    found, unusable = [], []
    for entry in listed(answer, "producers"):
        try:
            draining = entry.get("draining") is True if isinstance(entry, dict) else False
            # `_tcp_address` first: it refuses an entry that is not an object, on which `topics_of`
            # would fail.
            found.append(ListedNsqd(_tcp_address(entry), topics_of(entry), draining))
        except ValueError:
            unusable.append(entry)
    return Producers(found, unusable)


def names(answer: Any, key: str) -> tuple[list[str], int]:
    """Valid names in ``topics`` or ``channels``, and the number of others. Raises like `listed`."""
    entries = listed(answer, key)
    found = [name for name in entries if isinstance(name, str) and is_valid_name(name)]
    return found, len(entries) - len(found)


def topics_of(entry: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The topics of an nsqd, each with whether it is tombstoned (``tombstones`` is parallel)."""
    topics, hidden = entry.get("topics"), entry.get("tombstones")
    topics = topics if isinstance(topics, list) else []
    hidden = hidden if isinstance(hidden, list) else []
    return [
        (name, at < len(hidden) and hidden[at] is True)
        for at, name in enumerate(topics)
        if isinstance(name, str) and is_valid_name(name)
    ]


def _tcp_address(entry: Any) -> str:
    """An nsqd's TCP address. Raises ValueError: the entry has no usable one."""
    host = entry.get("broadcast_address") if isinstance(entry, dict) else None
    port = entry.get("tcp_port") if isinstance(entry, dict) else None
    # `type`, because JSON's true is an int for isinstance.
    if not isinstance(host, str) or type(port) is not int:
        raise ValueError("broadcast_address or tcp_port is missing or invalid")
    if len(host) > HOST_LENGTH_MAX or not host.isprintable() or " " in host:
        raise ValueError("broadcast_address is not a host name or IP address")
    host = bare_host(host)
    # There and back: the result has the one spelling of an address, and an invalid one raises.
    return str(parse_address(str(Address(host, port))))
