"""Access-log lines of the ordinary form, read a batch at a time.

    address identity user [time] "METHOD /path PROTOCOL" status size "referer" "agent"

A host and its port may come before the address. Referer and agent may both be missing, or may be
followed by further words, as in nginx's own format.
The quotes and spaces of all lines are located at once; their places give the places of the fields.

1. A line is ordinary only if it is certain to give the same result as `click_reader`. Anything
   unusual, such as a backslash or a lower-case method, makes it not ordinary.
2. Nothing is copied here: the results are places in the text.
3. A request, here or in JSON, is ordinary if it has a method of capital letters and a path that
   begins with a slash, then nothing or the protocol, separated by one space each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from sparq.pipeline.click_times import CLF_BYTES, clf_times
from sparq.pipeline.text_spans import (
    ADDRESS_BYTES_MAX,
    ADDRESS_SIGNS,
    DASH,
    DIGITS,
    QUESTION_MARK,
    SIZE_BYTES_MAX,
    SPACE,
    STATUS_BYTES,
    FoundClicks,
    Integers,
    Mask,
    Spans,
    Text,
    bytes_table,
    next_place,
    numbered_place,
)

_SLASH, _POINT = b"/."
_CAPITALS = bytes_table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PROTOCOL = b"HTTP/"
_WITH_MINOR, _MAJOR_ALONE = len("HTTP/1.1"), len("HTTP/2")


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """The parts of some requests, as stretches of the text, and a mask of the ordinary ones."""

    method: Spans
    path: Spans
    protocol: Spans
    ordinary: Mask


def read_requests(text: Text, requests: Spans) -> RequestColumns:
    """Split requests into their parts; every row must have a request."""
    starts, ends = requests.starts, requests.ends
    first = np.searchsorted(text.spaces, starts)
    count = np.searchsorted(text.spaces, ends) - first
    method_ends = np.where(count > 0, numbered_place(text.spaces, first), starts)
    three = count == 2
    path_ends = np.where(three, numbered_place(text.spaces, first + 1), ends)
    path = Spans(method_ends + 1, path_ends)
    protocol = Spans(np.where(three, path_ends + 1, -1), ends)
    method = Spans(starts, method_ends)
    ordinary = (
        ((count == 1) | three)
        & (method_ends > starts)
        & (path_ends > path.starts)
        & text.is_byte(path.starts, _SLASH)
        & (~three | _are_protocols(text, protocol))
    )
    if not ordinary.all():  # in other requests, a stretch may end before it starts
        method, path, protocol = (one.only(ordinary) for one in (method, path, protocol))
    ordinary &= text.made_of(method, _CAPITALS)
    return RequestColumns(method, path, protocol, ordinary)


def pages(text: Text, paths: Spans) -> Spans:
    """Paths without their queries."""
    first = next_place(text.places(QUESTION_MARK), paths.starts)
    return Spans(paths.starts, np.minimum(first, paths.ends))


def _are_protocols(text: Text, spans: Spans) -> Mask:
    """Whether each stretch has the form HTTP/2 or HTTP/1.1, with any digits."""
    size = spans.ends - spans.starts
    ok: Mask = (size == _WITH_MINOR) | (size == _MAJOR_ALONE)
    grid = text.grid(np.where(ok, spans.starts, 0), _MAJOR_ALONE)
    for row, sign in zip(grid, _PROTOCOL, strict=False):
        ok &= row == sign
    # Unsigned: bytes below "0" wrap around to high values, so one comparison is enough.
    ok &= grid[len(_PROTOCOL)] - np.uint8(48) < 10
    long = ok & (size == _WITH_MINOR)
    ok &= ~long | _ends_in_point_and_digit(text, spans.ends)
    return ok


def _ends_in_point_and_digit(text: Text, ends: Integers) -> Mask:
    point, digit = text.grid(np.maximum(ends - 2, 0), 2)
    found: Mask = (point == _POINT) & (digit - np.uint8(48) < 10)
    return found


_BEFORE_SIZE = len('" 200 ')

_BEFORE_REQUEST = len("[") + CLF_BYTES + len("] ")
_OPENING, _CLOSING = b"[]"
_HOST_AND_PORT = r"^[0-9A-Za-z.-]+:[0-9]{1,5}$"

# Number of quotes of a line: only a request; also referer and agent; also one more text, such as
# the forwarded address in nginx's own format.
_SHORT, _USUAL, _LONG = 2, 6, 8


@dataclass(frozen=True, slots=True)
class _Lines:
    """Some rows of a text: their places, and the first and the number of their quotes."""

    text: Text
    rows: Integers
    starts: Integers
    ends: Integers
    first_quote: Integers
    quote_count: Integers

    def where(self, chosen: Mask) -> _Lines:
        """The chosen rows."""
        if chosen.all():
            return self
        return _Lines(
            self.text,
            self.rows[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.first_quote[chosen],
            self.quote_count[chosen],
        )

    def quote(self, number: int) -> Integers:
        """The place of the quote with this number in each row; any place if a row has fewer."""
        return numbered_place(self.text.quotes, self.first_quote + number)


def find_lines(text: Text, rows: Integers) -> FoundClicks:
    """The clicks of those rows that are ordinary lines."""
    lines = _with_quotes(text, rows)
    lines = lines.where(_has_frame(lines))
    lines = lines.where(_has_ordinary_tail(lines))
    lines = lines.where(text.is_ascii(Spans(lines.starts, lines.quote(1))))
    opening, closing = lines.quote(0), lines.quote(1)
    micros, ordinary = clf_times(text, opening - _BEFORE_REQUEST + 1)
    spans, has_words = _head(lines, opening - _BEFORE_REQUEST)
    requests = read_requests(text, Spans(opening + 1, closing))
    size, has_size = _size(lines)
    named = lines.quote_count > _SHORT
    spans |= {
        "method": requests.method,
        "path": requests.path,
        "page": pages(text, requests.path),
        "protocol": requests.protocol,
        "status": Spans(closing + 2, closing + 2 + STATUS_BYTES),
        "bytes": size,
        "referer": Spans(lines.quote(2) + 1, lines.quote(3)).only(named),
        "user_agent": Spans(lines.quote(4) + 1, lines.quote(5)).only(named),
    }
    found = FoundClicks(lines.rows, micros, spans)
    return found.where(ordinary & has_words & requests.ordinary & has_size)


def _with_quotes(text: Text, rows: Integers) -> _Lines:
    """The rows of valid UTF-8, without escapes, with as many quotes as an ordinary line."""
    starts, ends = text.starts[rows], text.ends[rows]
    first = np.searchsorted(text.quotes, starts)
    count = np.searchsorted(text.quotes, ends) - first
    usual = (count == _SHORT) | (count == _USUAL) | (count == _LONG)
    usual &= ~text.has_escape_or_control[rows] & ~text.not_utf8[rows]
    return _Lines(text, rows, starts, ends, first, count).where(usual)


def _has_frame(lines: _Lines) -> Mask:
    """Whether the status, and the brackets and spaces around it and the time, are in place."""
    text, opening, closing = lines.text, lines.quote(0), lines.quote(1)
    time, size = opening - _BEFORE_REQUEST, closing + _BEFORE_SIZE
    ok = (time > lines.starts) & (size < lines.ends)
    ok &= text.is_byte(time, _OPENING) & text.is_byte(time - 1, SPACE)
    ok &= text.is_byte(opening - 2, _CLOSING) & text.is_byte(opening - 1, SPACE)
    ok &= text.is_byte(closing + 1, SPACE) & text.is_byte(size - 1, SPACE)
    for row in text.grid(closing + 2, STATUS_BYTES):
        ok &= row - np.uint8(48) < 10
    return ok


def _size(lines: _Lines) -> tuple[Spans, Mask]:
    """The size (no stretch if the line has a dash), and whether a line has size or dash."""
    text, starts = lines.text, lines.quote(1) + _BEFORE_SIZE
    ends = np.where(lines.quote_count > _SHORT, lines.quote(2) - 1, lines.ends)
    length = ends - starts
    dash = (length == 1) & text.is_byte(starts, DASH)
    size = Spans(starts, np.maximum(ends, starts)).only(~dash & (length > 0))
    ok = (length > 0) & (length <= SIZE_BYTES_MAX) & text.made_of(size, DIGITS)
    return size, ok


def _has_ordinary_tail(lines: _Lines) -> Mask:
    """Whether the text after the size is ordinary: nothing, or referer and agent, then any words.

    Referer and agent are in quotes. The words after them are separated by single spaces; one of
    them may be in quotes.
    """
    text, count = lines.text, lines.quote_count
    named = count > _SHORT
    referer, middle, agent, end = (lines.quote(number) for number in (2, 3, 4, 5))
    ok: Mask = text.is_byte(referer - 1, SPACE) & text.is_byte(middle + 1, SPACE)
    ok &= agent == middle + 2
    tail = named & (end + 1 < lines.ends)
    if tail.any():
        last = lines.ends - 1
        words = text.is_byte(end + 1, SPACE) & ~text.is_byte(last, SPACE)
        words &= ~_has_double_space(lines, end)
        opening, closing = lines.quote(6), lines.quote(7)
        quoted = text.is_byte(opening - 1, SPACE)
        quoted &= (closing == last) | text.is_byte(closing + 1, SPACE)
        ok &= ~tail | (words & (quoted | (count < _LONG)))
    ok |= ~named
    return ok


def _has_double_space(lines: _Lines, places: Integers) -> Mask:
    """Which rows have two adjacent spaces after a place."""
    spaces = lines.text.spaces
    found: Mask = next_place(spaces[:-1][np.diff(spaces) == 1], places) < lines.ends
    return found


def _head(lines: _Lines, time: Integers) -> tuple[dict[str, Spans], Mask]:
    """Host, address and user, the words before the time, and which rows have ordinary ones."""
    text, starts = lines.text, lines.starts
    first = np.searchsorted(text.spaces, starts)
    count = np.searchsorted(text.spaces, time) - first
    hosted = count == len(("host", "address", "identity", "user"))
    space, later, latest = (numbered_place(text.spaces, first + number) for number in range(3))
    host = Spans(starts, space).only(hosted)
    address = Spans(np.where(hosted, space + 1, starts), np.where(hosted, later, space))
    user = Spans(np.where(hosted, latest, later) + 1, time - 1)
    length = address.ends - address.starts
    ok = hosted | (count == len(("address", "identity", "user")))
    ok &= (length > 0) & (length <= ADDRESS_BYTES_MAX) & (user.starts > address.ends + 2)
    ok &= user.ends > user.starts
    spans = {"vhost": host, "address": address, "user": user}
    if not ok.all():  # in rows with other words, a stretch may end before it starts
        spans = {name: span.only(ok) for name, span in spans.items()}
    ok &= text.made_of(spans["address"], ADDRESS_SIGNS)
    if (hosted & ok).any():
        is_host = pc.match_substring_regex(text.strings(spans["vhost"]), _HOST_AND_PORT)
        ok &= ~hosted | is_host.fill_null(False).to_numpy(zero_copy_only=False)
    return spans, ok
