"""Texts of pages and sentences: numbers, durations, lists of names, bodies, errors. Pure.

1. An unknown figure (None) is a dash everywhere; an infinite duration is `never`.
2. A message's body is made readable: JSON is indented, text stays as it is, bytes become hex.
3. NSQ's error codes become sentences for users: what is wrong, and what to do.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sparq.cluster.figures import SECONDS_MAX

UNKNOWN: Final = "\N{EN DASH}"
LINE_CHARACTERS: Final = 160
HEX_BYTES_MAX: Final = 4096
MINUTE, HOUR, DAY = 60, 3600, 86_400
_ROW: Final = 16
_SHORT_FROM: Final = 100_000
_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"))


def count(number: float, noun: str = "", plural: str = "") -> str:
    """`1,234`; with a noun `1 message`, `1,234 messages`."""
    text = f"{number:,.0f}"
    return f"{text} {noun if text == '1' else plural or noun + 's'}" if noun else text


def names(texts: Sequence[str], shown: int = 3) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 4 more`."""
    listed, last = ", ".join(texts[: min(shown, len(texts) - 1)]), "".join(texts[-1:])
    if len(texts) > shown:
        last = f"{len(texts) - shown:,} more"
    return f"{listed} and {last}" if listed else last


def grouped(number: float | None) -> str:
    """`1,234,567`."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """`12,345`; from 100,000 on `123k`, `1.23M`."""
    is_long = number is not None and abs(number) >= _SHORT_FROM
    return _scaled(number or 0, _STEPS) if is_long else grouped(number)


def _scaled(number: float, steps: tuple[tuple[float, str], ...]) -> str:
    """A number in the largest unit that fits, with three digits."""
    step, unit = next(one for one in steps if abs(number) >= one[0])
    scaled = number / step
    return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled))))}f}{unit}"


def rate(per_second: float | None) -> str:
    """`0.4`, `123`, `1.23M`: a number per second."""
    return f"{per_second:.1f}" if per_second and per_second < 10 else short(per_second)


def per_second(count: float | None) -> str:
    """`123/s`; a dash if it is unknown."""
    return UNKNOWN if count is None else f"{rate(count)}/s"


def signed(per_second: float | None) -> str:
    """`+12`, `0`, or with a minus sign."""
    if per_second is None:
        return UNKNOWN
    text = rate(abs(per_second))
    sign = "+" if per_second > 0 else "\N{MINUS SIGN}"
    return text if text in ("0", "0.0") else sign + text


def size(number: float | None) -> str:
    """`123 B`, `1.23 KiB`."""
    if number is None:
        return UNKNOWN
    return f"{number:.0f} B" if number < 1 << 10 else _scaled(number, _BYTES)


def duration(seconds: float) -> str:
    """`12 s`, `5 min`, `3 h 20 min`, `2 days`; `forever`."""
    if math.isinf(seconds):
        return "forever"
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(int(seconds) // MINUTE, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{seconds // DAY:.0f} days"


def seconds(length: float | None) -> str:
    """A `duration`; below a second `< 1 s`; if infinite `never`."""
    if length is None:
        return UNKNOWN
    if math.isinf(length):
        return "never"
    return "< 1 s" if 0 < length < 1 else duration(max(0.0, length))


def latency(nanoseconds: float) -> str:
    """`0.52 ms`, `12.3 ms`, `1.23 s`, `2 min`: three digits, as latencies differ by factors."""
    if nanoseconds >= 2 * MINUTE * 1e9:
        return duration(nanoseconds / 1e9)
    scaled, unit = (nanoseconds / 1e6, "ms") if nanoseconds < 1e9 else (nanoseconds / 1e9, "s")
    return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {unit}"


def moment(at: float | None) -> str:
    """`2026-11-23 12:00:00` in UTC, from seconds since 1970."""
    # Nodes and clients report times; a time of another millennium is unknown.
    is_known = at and 0 < at <= SECONDS_MAX
    return f"{datetime.fromtimestamp(at or 0, UTC):%Y-%m-%d %H:%M:%S}" if is_known else UNKNOWN


def ago(at: float | None, now: float | None = None) -> str:
    """`5 min ago`, from seconds since 1970."""
    if not at or not 0 < at <= SECONDS_MAX:
        return UNKNOWN
    return f"{duration(max(0.0, (time.time() if now is None else now) - at))} ago"


def setting(value: object) -> str:
    """`1,234,567`, `yes`, or a duration unchanged."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def skipped(messages: int) -> str:
    """Describe the unfinished messages that a seek passes over; "" if there are none."""
    what = count(messages, "unfinished message")
    return f"{what} would be skipped: consumers would not get them." if messages else ""


class Body(NamedTuple):
    """A body to show: its kind (`JSON`, `text`, `bytes`, or why there is none), and its text."""

    kind: str
    text: str


def body_line(message: Mapping[str, Any]) -> str:
    """The beginning of a body, in one line for a list; "" if bodies are not shown."""
    if message.get("encoding") == "base64":
        return _decoded(message)[: LINE_CHARACTERS // 4].hex(" ")
    text = str(message.get("body", ""))[: 2 * LINE_CHARACTERS]
    return " ".join(text.split())[:LINE_CHARACTERS]


def body_of(message: Mapping[str, Any]) -> Body:
    """Format a body, as far as the node has sent it."""
    if "body" not in message:
        return Body("not shown", "")
    if message.get("encoding") == "base64":
        return Body("bytes", hexdump(_decoded(message)))
    text = str(message["body"])
    if text[:1] in ("{", "[") and not message.get("cut"):
        try:
            return Body("JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False))
        except (ValueError, RecursionError):
            pass  # the body only begins like JSON: show it as text
    return Body("text", text)


def hexdump(data: bytes) -> str:
    """Format bytes as lines: an offset, 16 bytes in hex, and the same bytes as ASCII."""
    lines = []
    for at in range(0, min(len(data), HEX_BYTES_MAX), _ROW):
        row = data[at : at + _ROW]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {plain}")
    if len(data) > HEX_BYTES_MAX:
        lines.append(f"and {len(data) - HEX_BYTES_MAX:,} bytes more")
    return "\n".join(lines)


def _decoded(message: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(str(message["body"]))
    except binascii.Error:
        return b""


_SHOWN = (grouped, short, rate, per_second, signed, size, seconds, latency, moment, ago, setting)
FILTERS: Final[dict[str, Any]] = {
    show.__name__: show for show in (*_SHOWN, body_line, count, names, skipped)
}
"""Filters for templates, by name."""

_SENTENCES: Final = {
    "NOT_FOUND": ("There is no such page.", "Check the address, or start at the overview."),
    "NODE_NOT_FOUND": (
        "No nsqd of this cluster has this address.",
        "nsqadmin forgets nodes that have been gone for long.",
    ),
    "METHOD_NOT_ALLOWED": ("This page does not support this method.", ""),
    "FORBIDDEN": (
        "You are not allowed to do this.",
        "Ask your nsqadmin administrator for the required role (--role, --token-file).",
    ),
    "UNAUTHORIZED": ("Sign in first.", "This needs a valid token."),
    "WRONG_TOKEN": (
        "This token is not valid or has expired.",
        "Copy it again, or ask your nsqadmin administrator for a new one.",
    ),
    "NO_TOKENS": ("Sign-in is turned off.", "nsqadmin was started without --token-file."),
    "INVALID_TOPIC": (
        "This is not a valid topic name.",
        "Use 1 to 64 of the characters .a-zA-Z0-9_-, optionally followed by #ephemeral.",
    ),
    "INVALID_CHANNEL": (
        "This is not a valid channel name.",
        "Use 1 to 64 of the characters .a-zA-Z0-9_-, optionally followed by #ephemeral.",
    ),
    "TOPIC_NOT_FOUND": ("No nsqd has this topic.", ""),
    "CHANNEL_NOT_FOUND": ("No nsqd has this channel.", ""),
    "INVALID_ARG_REGEX": ("This is not a valid pattern:", ""),
    "INVALID_ARG_JSON": ("This is not a valid JSON condition:", ""),
    "INVALID_ARG_ATTEMPTS": ("This is not a valid number of attempts:", ""),
    "INVALID_ARG_FROM": ("This is not a valid starting place:", ""),
    "INVALID_ARG_TO": ("This is not a valid place:", ""),
    "INVALID_ACTION": ("There is no such action.", ""),
    "INVALID_POLICIES": ("Nothing was done. The document is invalid:", ""),
    "NAME_NOT_TYPED": ("Nothing was done: the typed name differs.", "Type the exact name."),
    "AUDIT_UNAVAILABLE": (
        "Nothing was done: the audit log cannot be written.",
        "Check nsqadmin's log and the disk of --audit-log.",
    ),
    "INTERNAL_ERROR": ("An internal error occurred.", "See nsqadmin's log for details."),
}
_TITLES: Final = {400: "Bad request", 401: "Sign in", 403: "Not allowed", 404: "Not found"}


def in_words(status: int, code: str) -> tuple[str, str, str]:
    """Title, sentence and hint for a refused request; an unknown code is used as the sentence."""
    name, _, more = code.partition(":")
    title = _TITLES.get(status, "Error")
    if name not in _SENTENCES:
        return title, code, ""
    sentence, hint = _SENTENCES[name]
    return title, f"{sentence} {more.strip()}".strip(), hint
