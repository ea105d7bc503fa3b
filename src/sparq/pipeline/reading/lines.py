"""Lines of text in a format: the text of each field.

A format string gives a pattern, which polars (a Rust regex, linear time) matches against all lines
of a batch. Python compares each line that is left with the careful patterns, which also accept
users of several words and further words at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.formats import CAPTURES, IGNORED, SYSLOG, Field, Parts
from sparq.pipeline.reading.schema import Reading

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]

REST: Final = "rest"
"""The key in `extra` of the text after the last field of a format."""

FEW: Final = 0.02
"""Up to this part of a batch's lines are compared with the careful patterns at once."""

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
    "http_x_forwarded_for": _LISTED,
    "request_time": r"-|[0-9]+\.[0-9]+",
    "duration_ms": _MILLISECONDS,
    "date": "[0-9]{2,4}[/-][0-9A-Za-z]{2,3}[/-][0-9]{2,4}",
    "clock": "[0-9]{2}:[0-9]{2}:[0-9]{2}[0-9.]*",
    SYSLOG: r"(?:[^\[\]\x01]*\[[0-9]+\]: )?",
    CAPTURES: r"(?:\{[^}\x01]*\} ){0,2}",
}
_WORDS: Final = {"address": _ADDRESS, "user": _USER}

# To explain why a line has no format of a web server: the first prefix that fails gives the reason.
_HEAD: Final = r'\S+(?: [^\s"]+){2,12}?'
_AFTER_TIME: Final = rf"{_HEAD} \[[^\[\]]+\] "
_AFTER_REQUEST: Final = rf'{_AFTER_TIME}"{_QUOTED}" '
_AFTER_SIZE: Final = rf"{_AFTER_REQUEST}(?:\d{{3}}|-) (?:\d+|-)"
_WEB_PREFIXES: Final = (
    (_HEAD, "not an access-log line and not JSON"),
    (_AFTER_TIME, "no time in brackets after address, identity and user"),
    (rf'{_AFTER_TIME}"', "no quoted request after the time"),
    (_AFTER_REQUEST, "the request is never closed"),
    (rf"{_AFTER_REQUEST}(?:\d{{3}}|-) ", "the status is not three digits"),
    (rf"{_AFTER_SIZE}(?: |\Z)", "the size is not a number"),
    (rf'{_AFTER_SIZE}(?: [^"\s]+)*(?: "{_QUOTED}"|\Z)', "the referer is never closed"),
    (rf'{_AFTER_SIZE} "{_QUOTED}" "', "the user agent is missing"),
    (rf'{_AFTER_SIZE} "{_QUOTED}" "{_QUOTED}"', "the user agent is never closed"),
)


@dataclass(frozen=True)
class LineFormat:
    """A format with its patterns.

    Attributes:
        name: the value of the column `format`.
        names: of the patterns' groups; the careful pattern has one more, REST.
        usual: a pattern for lines without anything unusual, which have no other usual pattern.
        careful: one for all lines of this format.
        prefixes: the careful pattern up to each field, to explain what is wrong with a line.
    """

    name: str
    names: tuple[str, ...]
    usual: str
    careful: str
    prefixes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, name: str, parts: Parts) -> LineFormat:
        """The patterns of a format."""
        text, optional = "", 0
        names, prefixes = [], []
        for at, part in enumerate(parts):
            after = parts[at + 1] if at + 1 < len(parts) else ""
            if isinstance(part, str):
                literal = _escaped(part)
                if isinstance(after, Field) and after.is_optional:
                    # What closes the field before stays outside of the optional part.
                    literal = re.sub(r"(?=\s|\Z)", "(?:", literal, count=1)
                    optional += 1
                text += literal
                continue
            before = str(parts[at - 1] if at else "")[-1:]
            form = _form(part, before, after[:1] if isinstance(after, str) else "")
            if part.name in (IGNORED, SYSLOG):
                text += f"(?:{form})"
            else:
                text += f"({form})"
                names.append(part.name)
            prefixes.append((part.name, _careful(text) + ")?" * optional))
        text += ")?" * optional
        careful = rf"^{_careful(text)}{_rest(parts)}[\r\n]*$"
        return cls(name, (*names, REST), rf"^{text}[\r\n]*$", careful, tuple(prefixes))

    def mistake(self, line: str) -> str:
        """Why a line does not have this format."""
        before = ""
        for name, prefix in self.prefixes:
            if not _compiled(prefix).match(line):
                return f"no {name}{before} in the line"
            before = f" after {name}"
        return "the line goes on in an unknown form"


def _careful(usual: str) -> str:
    for part, other in _CAREFUL.items():
        usual = usual.replace(part, other)
    return usual


@lru_cache(256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _escaped(text: str) -> str:
    return re.sub(r"([.^$*+?{}\[\]|()\\])", r"\\\1", text)


def _form(part: Field, before: str, after: str) -> str:
    """The pattern of a field between two characters ("" at the ends)."""
    if part.name in _FORMS:
        return _FORMS[part.name]
    if before == after == '"':
        return _QUOTED
    if (before, after) == ("[", "]"):
        return _BRACKETED
    if after == " " and part.ours in _WORDS:
        return _WORDS[part.ours]
    if after in (" ", ""):
        return _WORD
    if after == ":":  # which an address of IPv6 has, too
        return r"[^ \x00-\x1f]*"
    return r"[^\t\x01]*" if after == "\t" else rf"[^{_escaped(after)}\x00-\x1f]*"


def _rest(parts: Parts) -> str:
    """What may follow the last field: words, and words in quotes if the last field was quoted."""
    if any(isinstance(one, str) and "\t" in one for one in parts):
        return r"((?:\t[^\n\x01]*)?)"
    quoted = isinstance(parts[-1], str) and parts[-1].endswith('"')
    return rf'((?: (?:"{_QUOTED}"|[^" \x00-\x1f]+))*)' if quoted else r'((?: [^" \x00-\x1f]+)*)'


class LineReader:
    """Reads lines in the formats of a setting."""

    def __init__(self, reading: Reading) -> None:
        named = [(name, formats.parsed(text)) for name, text in formats.LINES]
        if reading.fields:
            named = [one for one in named if one[0] != "w3c"]
            named.append(("w3c", formats.w3c(reading.fields)))
        if reading.log_format:
            named = [(formats.LOG_FORMAT, formats.parsed(reading.log_format))]
        elif reading.format != formats.AUTO:
            named = [one for one in named if one[0] == reading.format]
        self._is_web = not reading.log_format and any(name == "common" for name, _ in named)
        self._formats = [LineFormat.of(name, parts) for name, parts in named]
        self._recent = list(self._formats)

    def read(self, texts: pl.Series) -> Iterator[tuple[Rows, str, dict[str, pl.Series]]]:
        """The lines that have a format: their rows, its name, and the texts of its fields."""
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
                yield rows, one.name, dict(zip(one.names, groups, strict=False))
        # What was frequent is tried first in the next batch.
        self._recent.sort(key=lambda one: -counts.get(id(one), 0))
        careful: dict[LineFormat, list[tuple[int, tuple[str | None, ...]]]] = {}
        for row, line in zip(left.tolist(), texts.gather(left), strict=True):
            matches = ((one, _compiled(one.careful).match(line)) for one in self._formats)
            for one, match in matches:
                if match:
                    careful.setdefault(one, []).append((row, match.groups()))
                    break
        for one, lines in careful.items():
            columns = zip(*(texts for _, texts in lines), strict=True)
            fields = [pl.Series(column, dtype=pl.String) for column in columns]
            fields[-1] = fields[-1].str.strip_chars()
            yield (
                np.array([row for row, _ in lines]),
                one.name,
                dict(zip(one.names, fields, strict=True)),
            )

    def mistake(self, line: str) -> str:
        """Why a line has none of the formats."""
        if not line.strip(" "):
            return "the message is empty"
        if "\x01" in line:
            return "the line has a control character"
        if line.startswith("#"):
            return "a comment in a log, not a click"
        if not self._is_web:
            return min((one.mistake(line) for one in self._formats), key=len)
        failed = (why for prefix, why in _WEB_PREFIXES if not _compiled(prefix).match(line))
        return next(failed, "the line goes on in an unknown form")


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
