"""One line of the audit log: who did what, from where, with what result.

A line is JSON in ASCII, so nothing that a client sends can begin a line of its own or speak to a
terminal, and it is bounded: long texts are cut and marked.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Outcome = Literal["done", "partly", "failed", "refused"]
OUTCOMES: Final = ("done", "partly", "failed", "refused")

TEXT_MAX: Final = 512
DETAIL_MAX: Final = 2048
ARGUMENTS_MAX: Final = 2048
LINE_BYTES_MAX: Final = 64 << 10
CUT: Final = "..."


@dataclass(frozen=True, slots=True)
class Entry:
    """One action.

    Attributes:
        user: who, as the token file or the proxy names him; empty: nobody is named.
        via: how that is known: header, token, local, nobody.
        remote: the client's address.
        action: as in NSQ's notification, such as `empty_channel`.
        node: the nsqd that it is about, `host:port`; empty: all.
        arguments: further ones, such as `to` of a seek or the ids of messages.
        outcome: `partly`: at some nodes only.
        detail: errors by node, or what came of it.
        time: empty: when it is recorded.
    """

    user: str
    via: str
    remote: str
    action: str
    outcome: Outcome
    topic: str = ""
    channel: str = ""
    node: str = ""
    user_agent: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    time: str = ""


def to_line(entry: Entry, now: float) -> bytes:
    """The line of an entry, with its newline; `now`: seconds since the epoch."""
    fields = asdict(entry)
    arguments = json.dumps(fields.pop("arguments"), default=str)
    short = {
        name: _cut(str(value), DETAIL_MAX if name == "detail" else TEXT_MAX)
        for name, value in fields.items()
    }
    short["time"] = short["time"] or moment(now)
    told: dict[str, Any] = {"time": short.pop("time"), **short}
    is_long = len(arguments) > ARGUMENTS_MAX
    told["arguments"] = _cut(arguments, ARGUMENTS_MAX) if is_long else json.loads(arguments)
    return json.dumps(told, separators=(",", ":")).encode("ascii") + b"\n"


def moment(now: float) -> str:
    """A time as entries have it: UTC, with milliseconds."""
    found = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_line(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None for one that is none (cut short by a crash, or damaged)."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("time"), str) else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT
