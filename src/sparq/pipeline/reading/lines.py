"""Lines of text in a format: the text of each field.

A format string gives a usual pattern, which polars (a Rust regex, linear time) matches against all
lines of a batch, and a careful one, which also accepts users of several words and further words at
the end: Python compares the lines that are left with it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import numpy as np
import polars as pl

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.formats import CAPTURES, FIELDS, IGNORED, OPTIONAL, SYSLOG
from sparq.pipeline.reading.schema import Found, Reading, Rows, fitting

REST: Final = "rest"  # the key in `extra` of the text after the last field of a format

FEW: Final = 0.02  # so few of a batch's lines are left to the careful patterns at once

# Usual patterns. Those in which the next character decides are three times as fast as others.
_WORD: Final = r'[^ "\x00-\x1f]+'
_ADDRESS: Final = r'[^ ,"\x00-\x1f]+'
_USER: Final = r'[^ "\[\x00-\x1f]+'
_BRACKETED: Final = r'[^\[\]"\x00-\x1f]+'
_QUOTED: Final = r'(?:[^"\\\x01]|\\[^\n\x01])*'
_MILLISECONDS: Final = r"-?[0-9.]+|-"
_LISTED: Final = "-|[0-9A-Fa-f:., ]+"  # addresses, as in X-Forwarded-For

_CAREFUL: Final = {
    _WORD: r"[^ \x00-\x1f]+",
    _ADDRESS: r"[^ ,\x00-\x1f]+(?:, ?[^ ,\x00-\x1f]+)*",
    _USER: r'[^ "\x00-\x1f]+(?: [^ "\x00-\x1f]+){0,9}?',
    _BRACKETED: r"[^\[\]\x01]+",
    _MILLISECONDS: r"[^ \x00-\x1f]*",
    r"\x00-\x1f": r"\t-\r\x01",
}
"""What replaces parts of a usual pattern in the careful one."""

# Fields that have a form of their own, and fields between spaces.
_FORMS: Final = {
    "front_host": "[0-9A-Za-z.-]+:[0-9]{1,5}",
    "ip": r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*",
    "ident": r'[^" \x00-\x1f]+',
    "port": "[0-9]+",
    "http_x_forwarded_for": _LISTED,
    "request_time": r"-|[0-9]+\.[0-9]+",
    "duration_ms": _MILLISECONDS,
    "date": "[0-9]{2,4}[/-][0-9A-Za-z]{2,3}[/-][0-9]{2,4}",
    "clock": "[0-9]{2}:[0-9]{2}:[0-9]{2}[0-9.]*",
    SYSLOG: r"(?:[^\[\]\x01]*\[[0-9]+\]: )?",
    CAPTURES: r"(?:\{[^}\x01]*\} ){0,2}",
}
_WORDS: Final = {"address": _ADDRESS, "user": _USER}


class LineFormat:
    """A format with two patterns; a line has at most one format's usual pattern.

    `names` are those of the patterns' groups; the careful pattern has one more, REST.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self._text = name, text
        pattern, names = _pattern(text)
        if "\t" in text:
            self._rest = r"((?:\t[^\n\x01]*)?)"
        elif text.endswith('"'):  # further words may be in quotes, too
            self._rest = rf'((?: (?:"{_QUOTED}"|[^" \x00-\x1f]+))*)'
        else:
            self._rest = r'((?: [^" \x00-\x1f]+)*)'
        self.names = (*names, REST)
        self.usual = rf"{pattern}[\r\n]*$"

    @cached_property
    def careful(self) -> re.Pattern[str]:
        """The careful pattern."""
        pattern = _careful(_pattern(self._text)[0])
        return re.compile(rf"{pattern}{self._rest}[\r\n]*$", re.ASCII)

    def mistake(self, line: str) -> str:
        """Why a line does not have this format: the first field that it does not have."""
        before = ""
        for found in formats.FIELD.finditer(self._text.partition(OPTIONAL)[0]):
            end = found.end() + (self._text[found.end() :][:1] in ('"', "]"))
            name = found[1] or found[2]
            if not re.match(_careful(_pattern(self._text[:end])[0]), line, re.ASCII):
                return f"no {name}{before} in the line"
            before = f" after {name}"
        return f"the line goes on in an unknown form{before}"


@lru_cache(256)
def _pattern(text: str) -> tuple[str, list[str]]:
    """The usual pattern of a format string, without an end, and the names of its groups."""
    pattern, at, optional, names = "^", 0, 0, []
    for found in formats.FIELD.finditer(text):
        literal = re.escape(text[at : found.start()].replace(OPTIONAL, ""))
        if OPTIONAL in text[: found.start()]:
            # What closes the field before stays outside of the optional part.
            literal = re.sub(r"(?=\\\s|\Z)", "(?:", literal, count=1)
            optional += 1
        name, at = found[1] or found[2], found.end()
        after = text[at : at + 2].replace(OPTIONAL, "")[:1]
        form = _form(name, text[: found.start()][-1:], after)
        if name in (IGNORED, SYSLOG):
            pattern += f"{literal}(?:{form})"
        else:
            pattern += f"{literal}({form})"
            names.append(name)
    return pattern + re.escape(text[at:]) + ")?" * optional, names


def _careful(usual: str) -> str:
    for part, other in _CAREFUL.items():
        usual = usual.replace(part, other)
    return usual


def _form(name: str, before: str, after: str) -> str:
    """The pattern of a field between two characters ("" at the ends)."""
    if name in _FORMS:
        return _FORMS[name]
    if before == after == '"':
        return _QUOTED
    if (before, after) == ("[", "]"):
        return _BRACKETED
    if after in (" ", ""):
        return _WORDS.get(FIELDS.get(name, ""), _WORD)
    if after == ":":  # which an address of IPv6 has, too
        return r"[^ \x00-\x1f]*"
    return r"[^\t\x01]*" if after == "\t" else rf"[^{re.escape(after)}\x00-\x1f]*"


class LineReader:
    """Reads lines in the formats of a setting; without any, if the setting is a JSON format."""

    def __init__(self, reading: Reading) -> None:
        named = [one for one in formats.LINES if reading.format in (formats.AUTO, one[0])]
        if reading.fields:
            w3c = formats.w3c(reading.fields)
            named = [(name, w3c if name == "w3c" else text) for name, text in named]
        if reading.log_format:
            named = [(formats.LOG_FORMAT, formats.nginx_form(reading.log_format))]
        self.formats = [LineFormat(name, text) for name, text in named]
        self._recent = list(self.formats)
        self._own = {path: (name, kind) for name, (path, kind) in reading.own.items()}

    def read(self, texts: pl.Series) -> Iterator[Found]:
        """Read the lines that have a format, those of a format together."""
        left = np.arange(len(texts))
        counts = {}
        for one in self._recent:
            if len(left) <= len(texts) * FEW:
                break  # for a few lines, the careful patterns take less time than all the others
            some = texts if len(left) == len(texts) else texts.gather(left)
            found = some.str.extract_groups(one.usual).struct.unnest()
            is_found = found.to_series(0).is_not_null()
            counts[id(one)] = is_found.sum()
            if counts[id(one)]:
                rows, left = left[is_found.to_numpy()], left[~is_found.to_numpy()]
                groups = (found.filter(is_found) if len(left) else found).get_columns()
                yield self._found(rows, one.name, dict(zip(one.names, groups, strict=False)))
        # What was frequent is tried first in the next batch.
        self._recent.sort(key=lambda one: -counts.get(id(one), 0))
        careful = defaultdict(list)
        for row, line in zip(left.tolist(), texts.gather(left), strict=True):
            for one in self.formats:
                if match := one.careful.match(line):
                    careful[one].append((row, *match.groups()))
                    break
        for one, lines in careful.items():
            found_rows, *columns = zip(*lines, strict=True)
            fields = [pl.Series(column, dtype=pl.String) for column in columns]
            fields[-1] = fields[-1].str.strip_chars()
            pairs = zip(one.names, fields, strict=True)
            yield self._found(np.array(found_rows), one.name, dict(pairs))

    def _found(self, rows: Rows, name: str, texts: Mapping[str, pl.Series]) -> Found:
        """The fields of a click among the texts, the user's columns, and the others."""
        ours: dict[str, pl.Series] = {}
        own: dict[str, list[Any]] = {}
        others: dict[str, Sequence[str | None]] = {}
        misfits = np.zeros(len(rows), np.int32)
        for key, one in texts.items():
            field = FIELDS.get(key, "")
            if field:
                ours[field] = one
            left: Sequence[str | None] = []
            if key in self._own:
                column, kind = self._own[key]
                given = [None if text in _EMPTY else text for text in one]
                own[column] = fitting(kind, given)
                pairs = zip(given, own[column], strict=True)
                left = [text if fit is None else None for text, fit in pairs]
                misfits += [text is not None for text in left]
            elif field in ("", "forwarded") and not one.is_in(_EMPTY).fill_null(True).all():
                left = one.to_list()
            if any(left):
                others[field or key] = left
        extras: list[bytes | None] = []
        for values in zip(*others.values(), strict=True):
            each = zip(others, values, strict=True)
            some = {key: text for key, text in each if text is not None and text not in _EMPTY}
            extras.append(msgspec.json.encode(some) if some else None)
        if "date" in ours:
            ours["time"] = ours["date"] + " " + ours["clock"]
        if (agent := ours.get("user_agent_plus")) is not None:
            ours["user_agent"] = agent.str.replace_all("+", " ", literal=True)
        if (agent := ours.get("user_agent_percent")) is not None:
            ours["user_agent"] = agent.map_elements(unquote, pl.String)
        return Found(rows, name, ours, own, misfits, extras)

    def mistake(self, line: str) -> str:
        """Why a line has none of the formats."""
        if not line.strip(" "):
            return "the message is empty"
        if line.startswith("#"):
            return "a comment in a log, not a click"
        combined = [one for one in self.formats if one.name == "combined"]
        return (combined or self.formats)[-1].mistake(line)


_EMPTY: Final = ("-", "")  # what a line has in place of a value
_METHOD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_USUAL_REQUEST: Final = r"^([A-Z]+) (/[^ \x00-\x1f]*) (HTTP/[0-9](?:\.[0-9])?)$"
_DARK: Final = r"[^ \t-\r]"  # no whitespace
_REQUEST: Final = (
    rf"^(?:({_METHOD}) +(?:({_DARK}.*) (HTTP/[0-9](?:\.[0-9])?) *|({_DARK}+))|(/{_DARK}*))$"
)


def request_parts(requests: pl.Series) -> list[pl.Series]:
    """Method, path and protocol of request lines; null if one is broken."""
    parts = requests.str.extract_groups(_USUAL_REQUEST).struct.unnest().get_columns()
    odd = (parts[0].is_null() & requests.is_not_null()).arg_true()
    if len(odd):
        found = requests.gather(odd).str.extract_groups(_REQUEST).struct.unnest().get_columns()
        method, path, protocol, alone, bare = found
        path = bare.fill_null(alone).fill_null(path.str.strip_chars_end(" "))
        read = (method, path, protocol)
        parts = [part.scatter(odd, one) for part, one in zip(parts, read, strict=True)]
    return parts
