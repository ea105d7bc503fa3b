"""Lines of text in a format: the text of each field.

A format string gives two patterns. polars (a Rust regex, one pass, linear time) matches the usual
one against all lines of a batch. Python matches the careful one against each other line: it also
accepts escaped quotes, users of several words, lists of addresses, and further words at the end.
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

REST: Final = "rest"
"""The key in `extra` of the text after the last field of a format."""

FEW: Final = 0.02
"""Up to this part of a batch's lines are read one by one without a search for their format."""

_ADDRESS: Final = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)"
_QUOTED: Final = r'[^"\\]*+(?:\\[^\n][^"\\]*+)*+'
_LISTED: Final = "-|[0-9A-Fa-f:., ]+"  # addresses, as in X-Forwarded-For
_DATE: Final = "[0-9]{2,4}[/-][0-9A-Za-z]{2,3}[/-][0-9]{2,4}"
_CLOCK: Final = "[0-9]{2}:[0-9]{2}:[0-9]{2}[0-9.]*"

# The usual and the careful form of fields that have their own, and of fields between spaces.
_FORMS: Final = {
    "front_host": (
        "[0-9A-Za-z.-]+:[0-9]{1,5}",
        rf"\S+(?= {_ADDRESS} \S+ [^\s\[])|[0-9A-Za-z.-]+:\d{{1,5}}(?= \S+ \S+ [^\s\[])",
    ),
    "ident": (r'[^ "\x00-\x1f]+', r'[^\s"]+'),
    "http_x_forwarded_for": (_LISTED, _LISTED),
    "request_time": (r"-|[0-9]+\.[0-9]+", r"-|\d+\.\d+"),
    "date": (_DATE, _DATE),
    "clock": (_CLOCK, _CLOCK),
    SYSLOG: (r"(?:[^\[\]]*\[[0-9]+\]: )?", r"(?:[^\[\]]*\[\d+\]: )?"),
    CAPTURES: (r"(?:\{[^}]*\} ){0,2}", r"(?:\{[^}]*\} ){0,2}"),
}
_WORDS: Final = {
    "address": (r'[^ ,"\x00-\x1f]+', r"[^\s,]+(?:, ?[^\s,]+)*"),
    "user": (r'[^ "\[\x00-\x1f]+', r'[^\s"]+(?: [^\s"]+){0,9}?'),
}

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
        fields: the fields of both patterns' groups.
        usual: a pattern in Rust's syntax for lines without anything unusual.
        careful: one in Python's for all lines of this format; its last group is the rest.
        prefixes: the careful pattern up to each field, to explain what is wrong with a line.
    """

    name: str
    fields: tuple[Field, ...]
    usual: str
    careful: re.Pattern[str]
    prefixes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, name: str, parts: Parts) -> LineFormat:
        """The patterns of a format."""
        usual = careful = ""
        fields, prefixes, optional = [], [], 0
        for at, part in enumerate(parts):
            after = parts[at + 1] if at + 1 < len(parts) else ""
            if isinstance(part, str):
                text = _escaped(part)
                if isinstance(after, Field) and after.is_optional:
                    # What closes the field before stays outside of the optional part.
                    text, optional = re.sub(r"(?=\s|\Z)", "(?:", text, count=1), optional + 1
                usual, careful = usual + text, careful + text
                continue
            before = parts[at - 1] if at else ""
            forms = _forms(part, str(before)[-1:], after[:1] if isinstance(after, str) else "")
            is_kept = part.name not in (IGNORED, SYSLOG)
            fields += [part] * is_kept
            opening = "(" if is_kept else "(?:"
            usual += f"{opening}{forms[0]})"
            careful += f"{opening}{forms[1]})"
            prefixes.append((part.name, careful + ")?" * optional))
        ends = ")?" * optional
        return cls(
            name,
            tuple(fields),
            rf"^{usual}{ends}[\r\n]*$",
            re.compile(rf"{careful}{ends}{_rest(parts)}\Z", re.ASCII),
            tuple(prefixes),
        )

    def read(self, line: str) -> dict[str, str] | None:
        """The fields of a line by the careful pattern; None if it does not have this format."""
        found = self.careful.match(line)
        if not found:
            return None
        *texts, rest = found.groups()
        named = {key_of(one): text for one, text in zip(self.fields, texts, strict=True)}
        named[REST] = rest.strip() or None
        return {name: text for name, text in named.items() if text is not None}

    def mistake(self, line: str) -> str:
        """Why a line does not have this format."""
        before = ""
        for name, prefix in self.prefixes:
            if not _compiled(prefix).match(line):
                return f"no {name}{before} in the line"
            before = f" after {name}"
        return "the line goes on in an unknown form"


def key_of(one: Field) -> str:
    """The field of a click; of other fields the key in `extra`."""
    return one.ours or one.name


@lru_cache(256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _escaped(text: str) -> str:
    return re.sub(r"([.^$*+?{}\[\]|()\\])", r"\\\1", text)


def _forms(part: Field, before: str, after: str) -> tuple[str, str]:
    """The usual and the careful form of a field between two characters ("" at the ends)."""
    if part.name in _FORMS:
        return _FORMS[part.name]
    if before == after == '"':
        return r'(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*', _QUOTED
    if (before, after) == ("[", "]"):
        return r'[^\[\]"\x00-\x1f]+', r"[^\[\]]+"
    if after == " " and part.ours in _WORDS:
        return _WORDS[part.ours]
    if after in (" ", ""):
        return r'[^ "\x00-\x1f]+', r"\S+"
    if after == ":":  # which an address of IPv6 has, too
        return r"[^ \x00-\x1f]*", r"\S*"
    one = _escaped(after)
    return (rf"[^{one}]*",) * 2 if after == "\t" else (rf"[^{one}\x00-\x1f]*", rf"[^{one}]*")


def _rest(parts: Parts) -> str:
    """What may follow the last field: words, and words in quotes if the last field was quoted."""
    if any(isinstance(one, str) and "\t" in one for one in parts):
        return r"((?:\t.*)?)"
    quoted = isinstance(parts[-1], str) and parts[-1].endswith('"')
    return rf'((?: (?:"{_QUOTED}"|[^"\s]+))*)' if quoted else r'((?: [^"\s]+)*)'


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

    def usual(
        self, texts: pl.Series
    ) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], LineFormat, pl.DataFrame]]:
        """The usual lines by format: their rows, and the texts of the format's fields."""
        left = np.arange(len(texts))
        counts = {}
        for one in self._recent:
            some = texts if len(left) == len(texts) else texts.gather(left)
            found = some.str.extract_groups(one.usual).struct.unnest()
            is_found = found.to_series(0).is_not_null()
            counts[id(one)] = is_found.sum()
            if counts[id(one)]:
                is_whole = counts[id(one)] == len(left)
                rows, mask = left, is_found.to_numpy()
                if not is_whole:
                    rows, found, left = left[mask], found.filter(is_found), left[~mask]
                yield rows, one, found
                if is_whole:
                    left = left[:0]
            if len(left) <= len(texts) * FEW:
                break  # for a few lines, the careful patterns take less time than all the others
        # What was frequent is tried first in the next batch.
        self._recent.sort(key=lambda one: -counts.get(id(one), 0))

    def read(self, line: str) -> tuple[str, dict[str, str]]:
        """The format and the fields of a line, by the careful patterns.

        Raises:
            ValueError: the line has none of the formats; the text says why.
        """
        if "\x01" in line:
            raise ValueError("the line has a control character")
        for one in self._formats:
            found = one.read(line)
            if found is not None:
                return one.name, found
        raise ValueError(self._mistake(line))

    def _mistake(self, line: str) -> str:
        if not line.strip(" "):
            return "the message is empty"
        if line.startswith("#"):
            return "a comment in a log, not a click"
        if not self._is_web:
            return min((one.mistake(line) for one in self._formats), key=len)
        failed = (why for prefix, why in _WEB_PREFIXES if not _compiled(prefix).match(line))
        return next(failed, "the line goes on in an unknown form")


_METHOD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
USUAL_REQUEST: Final = r"^([A-Z]+) (/[^ \x00-\x1f]*) (HTTP/[0-9](?:\.[0-9])?)$"
_REQUEST: Final = re.compile(
    rf"({_METHOD}) +(?:(\S.*) (HTTP/\d(?:\.\d)?) *|(\S+))|(/\S*)", re.ASCII
)


def request_parts(text: str) -> tuple[str | None, str | None, str | None]:
    """Method, path and protocol of any request line; None if it is broken."""
    found = _REQUEST.fullmatch(text)
    if not found:
        return None, None, None
    method, path, protocol, alone, bare = found.groups()
    return method, bare or alone or path.rstrip(" "), protocol
