"""Values of options as people write them: in text, in TOML or JSON, on a command line.

1. What a value has to be is told by the default of its option: true or false, a whole number, a
   duration in seconds (a float) or text.
2. A name may be written with ``-`` for ``_``. One that nobody knows is answered with the nearest
   that there is.
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
"""The floats that are no durations."""
ALIASES: Final = {"skip_lookupd_authorization": "lookupd_authorization"}
"""go-nsq's name says the opposite of what it does: its true sends the secret."""

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
"""What other clients for Python call an option, or an argument, of ours."""

_UPPER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def option_name(given: str) -> str:
    """The option's own name."""
    name = given.replace("-", "_")
    return ALIASES.get(name, name)


def unknown_option(given: str, known: Iterable[str]) -> str:
    """What to say of a name that nobody knows."""
    return f"no such option: {given}{near_option(given, known)}"


def near_option(given: str, known: Iterable[str]) -> str:
    """The option that a name was most likely meant for, as `` (name?)``; empty if none is close."""
    name = option_name(_UPPER.sub("_", given).lower())
    near = [ELSEWHERE[name]] if name in ELSEWHERE else difflib.get_close_matches(name, known, n=1)
    return f" ({near[0]}?)" if near else ""


def read_text(name: str, default: object, text: str) -> Any:
    """A value from its text as go-nsq's ``Set`` reads it: a bare duration is milliseconds.

    Raises:
        ValueError: the text cannot be read.
    """
    try:
        if isinstance(default, bool):
            return _TRUTHS[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text) if name in RATIOS else _seconds(text)
    except (KeyError, ValueError):
        raise ValueError(f"invalid {_kind(name, default)} {text!r} for option {name}") from None
    if default is None:
        raise ValueError(f"option {name} cannot be given as text")
    return text


def read_value(name: str, default: object, value: object) -> Any:
    """A value as TOML, JSON or a program has it: a duration is seconds, or text with its unit.

    Raises:
        ValueError: it is text that cannot be read, or a duration's text has no unit.
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
    """A table of a TOML file; the names of nested tables are joined by dots, "" is the whole file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no TOML, or has no such table.
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


def _kind(name: str, default: object) -> str:
    is_duration = isinstance(default, float) and name not in RATIOS
    return "duration" if is_duration else type(default).__name__


def _is_bare(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()


def _seconds(text: str) -> float:
    """A duration in seconds; a bare number is milliseconds."""
    return (int(text) * MILLISECOND if _is_bare(text) else parse_duration(text)) / SECOND
