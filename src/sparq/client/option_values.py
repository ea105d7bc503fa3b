"""Parse option values written as text, in TOML or JSON, or on a command line.

1. The option's default determines the type of a value: bool, int, duration in seconds (float) or
   str.
2. Names may use ``-`` for ``_``. The error for an unknown name suggests the closest known one.
3. Every error is a ``ValueError`` that names the option and says what it takes.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sparq.protocol.durations import MILLISECOND, SECOND, parse_duration

RATIOS: Final = frozenset({"lookupd_poll_jitter"})
"""The float options that are not durations."""
ALIASES: Final = {"skip_lookupd_authorization": "lookupd_authorization"}
"""go-nsq's name says the opposite of what it does: true sends the secret."""

ELSEWHERE: Final = {
    "max_tries": "max_attempts",
    "message_handler": "handler",
    "requeue_delay": "default_requeue_delay",
    "requeue_timeout": "default_requeue_delay",
    "reconnect_interval": "max_reconnect_delay",
    "timeout": "dial_timeout",
    "lookupd_connect_timeout": "lookupd_poll_timeout",
    "lookupd_request_timeout": "lookupd_poll_timeout",
    "tls_options": "tls_config",
    "nsqd_tcp_address": "nsqd_tcp_addresses",
    "lookupd_http_address": "lookupd_http_addresses",
    "message_timeout": "msg_timeout",
}
"""Names that other Python clients use for sparq's options and arguments."""

_UPPER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def option_name(given: str) -> str:
    """Return the canonical name of an option: with ``_``, and with aliases resolved."""
    name = given.replace("-", "_")
    return ALIASES.get(name, name)


def unknown_option(given: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown option."""
    return f"no such option: {given}{near_option(given, known)}"


def near_option(given: str, known: Iterable[str]) -> str:
    """Return the closest known option, as `` (name?)``; empty if none is close."""
    name = option_name(_UPPER.sub("_", given).lower())
    near = [ELSEWHERE[name]] if name in ELSEWHERE else difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def read_text(name: str, default: object, text: str) -> Any:
    """Parse a value from text as go-nsq's ``Set`` does: a bare duration is milliseconds.

    Raises:
        ValueError: the text cannot be read.
    """
    try:
        if isinstance(default, bool):
            return _TRUTHS[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            if name in RATIOS:
                return float(text)
            # As in go-nsq, a bare number is milliseconds.
            return (int(text) * MILLISECOND if _is_bare(text) else parse_duration(text)) / SECOND
    except (KeyError, ValueError):
        is_duration = isinstance(default, float) and name not in RATIOS
        kind = "duration" if is_duration else type(default).__name__
        raise ValueError(f"invalid {kind} {text!r} for option {name}") from None
    if default is None:
        raise ValueError(f"option {name} cannot be given as text")
    return text


def read_value(name: str, default: object, value: object) -> Any:
    """Convert a value from TOML, JSON or a dict: a duration is seconds, or text with a unit.

    Raises:
        ValueError: text cannot be read, or the text of a duration has no unit.
    """
    if not isinstance(value, str) or isinstance(default, str):
        return value
    if isinstance(default, float) and name not in RATIOS and _is_bare(value) and int(value):
        raise ValueError(
            f"duration {value!r} of option {name} has no unit: write '{value}s' or '{value}ms', "
            "or seconds as a number"
        )
    return read_text(name, default, value)


def read_table(path: str | Path, table: str) -> dict[str, Any]:
    """Read a table of a TOML file; nested names are joined by dots; "" is the whole file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not TOML, or has no such table.
    """
    try:
        found: Any = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    for part in table.split(".") if table else ():
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: there is no table [{table}]")
    return found


def _is_bare(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()
