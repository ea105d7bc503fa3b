"""Types of options: how a value is read from a command line, from a TOML file and from code.

1. `parse` reads text that a user typed, `coerce` a value from a file or from code; both raise
   ValueError with the reason. Only `coerce` accepts a bare number as a duration: milliseconds.
2. `check` rejects values that NSQ would accept but that are not valid here. Its ValueError says
   what to write instead, as the end of a sentence that begins with the value.
3. A flag whose kind has `bare` may be given without a value; its value is then `bare`.
4. `gather` combines the values of a flag that was given several times into one tuple. ValueError:
   these values do not go together.
5. `unit`: of a duration, the nanoseconds in one unit of its value.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sparq.options.mistakes import one_of, quoted, suggestion
from sparq.options.units import MILLISECOND, format_duration, parse_duration

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
PORT_MAX = 65_535
_INT64 = range(-(1 << 63), 1 << 63)


class Kind(NamedTuple):
    """How to read, check and show one type of option.

    Attributes:
        name: its name on a help page.
        go_name: Go's name for it, in messages about a value of another type.
        types: types in TOML and Python that are accepted besides text; `read` converts these. A
            boolean counts as a number only if it is named.
    """

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    go_name: str = "string"
    types: tuple[type, ...] = ()
    read: Callable[[Any], Any] = lambda value: value
    bare: str = ""
    gather: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple
    check: Callable[[Any], object] = lambda value: None
    unit: int = 1
    is_parsed_by_nsq: bool = False

    def coerce(self, value: Any) -> Any:
        """Read a value from a TOML file or from Python code. ValueError: it has another type."""
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, self.types) and (bool in self.types or not isinstance(value, bool)):
            return self.read(value)
        raise ValueError(f"invalid {self.go_name} value type {type(value).__name__}")

    @property
    def is_pairs(self) -> bool:
        """Whether its values are pairs, which are tables in a file and may be secret."""
        return self.gather is _by_key


def _parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("write true or false")


def _parse_int(text: str) -> int:
    # Like Go's base 0: 0x, 0o, 0b, and a leading 0 for octal. (Python would also accept blanks.)
    try:
        if not text.isascii() or text != text.strip():
            raise ValueError
        value = int(re.sub(r"^([+-]?)0(?=[0-7_])", r"\g<1>0o", text), 0)
    except ValueError:
        raise ValueError("write a whole number") from None
    if value not in _INT64:
        raise ValueError("write a whole number of at most 64 bits")
    return value


def _parse_duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        if re.fullmatch(r"[0-9]{1,18}", text):
            raise ValueError(f"write a unit: {text}s or {text}ms") from None
        raise ValueError("write a duration with its unit, such as 60s, 300ms or 1.5h") from None


def _parse_float(text: str) -> float:
    # Python also accepts blanks and underscores. Go accepts infinities and NaN, but no option has
    # a use for them.
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        value = float(text)
        if math.isfinite(value):
            return value
    raise ValueError("write a number")


def _parse_floats(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError("write numbers separated by commas") from None


def _descending(lists: Iterable[list[float]]) -> tuple[float, ...]:
    return tuple(sorted((value for values in lists for value in values), reverse=True))


def _show_string(value: str) -> str:
    # Show a newline as \n, because a help page wraps its lines.
    return quoted(value) if value else ""


def choice(*words: str, name: str = "string") -> Kind:
    """Return the kind of a string that must be one of these words, which may include ""."""

    def check(value: str) -> None:
        if value not in words:
            close = suggestion(value.lower(), words)
            raise ValueError(f"is unknown{close or f': use {one_of(words)}'}")

    return STRING._replace(name=name, check=check)


def _check_listen(value: str) -> None:
    _, colon, port = value.rpartition(":")
    if not value or "/" in value or (colon and port_of(port) is not None):
        return
    if port_of(value) is not None:
        raise ValueError(f"is not an address: write :{value} or 127.0.0.1:{value}")
    if colon and port.isdigit():
        raise ValueError(f"has an invalid port: {port} is above {PORT_MAX}")
    raise ValueError("has no port: write host:port or a unix socket path containing /")


def _check_peer(value: str) -> None:
    host, colon, port = value.rpartition(":")
    if "://" in value:
        raise ValueError("is a URL: write host:port")
    if port_of(value) is not None:
        raise ValueError(f"is not an address: write 127.0.0.1:{value}")
    if value and not (colon and host and port):
        raise ValueError("is not an address: write host:port")
    if port.isdigit() and port_of(port) is None:
        raise ValueError(f"has an invalid port: {port} is above {PORT_MAX}")


def port_of(text: str) -> int | None:
    """Return a port number; None: the text is none."""
    if not (text.isascii() and text.isdigit()):
        return None
    # Six digits are enough to tell, after zeros; int() refuses very long texts.
    port = int(text.lstrip("0")[:6] or "0")
    return port if port <= PORT_MAX else None


STRING = Kind("string", str, _show_string)
BOOL = Kind(
    *("bool", _parse_bool, lambda value: "true" if value else "", "bool", (bool,)), bare="true"
)
LISTEN = STRING._replace(check=_check_listen)
"""An address to listen on: `host:port`, or the path of a unix socket."""
PEER = STRING._replace(check=_check_peer)
"""The `host:port` of another program."""
INT = Kind("int", _parse_int, str, "int", (int,))
FLOAT = Kind(
    *("float", _parse_float, lambda value: f"{value:g}", "float64", (int, float)),
    read=lambda value: _parse_float(str(value)),
)


def _duration(unit: int) -> Kind:
    """Return the kind of durations that a field holds in this unit of nanoseconds."""
    return Kind(
        "duration",
        lambda text: _parse_duration(text) // unit,
        lambda value: format_duration(value * unit),
        "duration",
        (int,),
        read=lambda value: value * MILLISECOND // unit,
        unit=unit,
    )


DURATION = _duration(1)
FLOATS = Kind(
    *("float,...", _parse_floats, str, "float", (int, float)),
    read=lambda value: [float(value)],
    gather=_descending,
)


def named(name: str, values: Mapping[str, Any], rule: str, **more: Any) -> Kind:
    """Return the kind of values that have names, in any case; `rule` says which there are."""

    def parse(text: str) -> Any:
        word = text.lower()
        if word not in values:
            close = "" if rule.startswith("write") else suggestion(word, values)
            raise ValueError(f"{rule}{close}")
        return values[word]

    return Kind(
        *(name, parse),
        types=(object, bool),
        read=lambda value: parse(str(value)),
        is_parsed_by_nsq=True,
        **more,
    )


TLS_REQUIRED = named(
    "true|false|tcp-https",
    {
        **dict.fromkeys(("true", "t", "1"), "true"),
        **dict.fromkeys(("false", "f", "0"), "false"),
        "tcp-https": "tcp-https",
    },
    "write true, false or tcp-https",
    bare="true",
)
TLS_VERSION_DEFAULT = "tls1.2"
TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")
TLS_VERSION = named(
    "version",
    {**{version: version for version in TLS_VERSIONS}, "": TLS_VERSION_DEFAULT},
    f"tls version must be one of {', '.join(TLS_VERSIONS)}",
)


def texts(name: str, is_right: Callable[[str], object], reason: str) -> Kind:
    """Return the kind of texts for which `is_right` is true; `reason` is why others are not."""

    def check(text: str) -> None:
        if not is_right(text):
            raise ValueError(reason)

    return STRING._replace(name=name, check=check)


def pairs(name: str, check: Callable[[str, str], object] = lambda *_: None) -> Kind:
    """Return the kind of pairs, each a text KEY=VALUE or a tuple; the last of a key counts."""

    def checked(pair: tuple[str, str]) -> tuple[str, str]:
        key, value = pair[0].strip(), pair[1]
        check(key, value)
        return key, value

    def parse(text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError("write KEY=VALUE")
        return checked((key, value))

    return Kind(name, parse, types=(tuple,), read=checked, gather=_by_key)


def _by_key(found: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(dict(found).items())


_MILLISECONDS = _duration(MILLISECOND)
_BY_TYPE = {
    "bool": BOOL,
    "float": FLOAT,
    "int": INT,
    "int | None": INT,
    "str": STRING,
    "tuple[str, ...]": STRING,
    "tuple[float, ...]": FLOATS,
}


def kind_of(field: dataclasses.Field[Any]) -> Kind:
    """Return the kind of a field that is declared without one; see `declare`."""
    if field.name.endswith("_ns"):
        return DURATION
    if field.name.endswith("_ms"):
        return _MILLISECONDS
    return _BY_TYPE[field.type if isinstance(field.type, str) else field.type.__name__]
