"""JSON messages of the ordinary form, read a batch at a time.

A program logs each click with the same keys in the same order, so most messages differ only in
their values. A message without its values is called its skeleton here. The skeletons of all
messages are extracted at once. `lenient_json` reads each new skeleton once, which gives the field
of each value; this then holds for all messages with the same skeleton.

    {"ip": "1.2.3.4", "status": 200, "t": 0.012}      a message
    {"ip": "", "status": 0, "t": 0.0}                  its skeleton

1. A message is ordinary only if it is certain to give the same result as `click_reader`. A message
   with a backslash, or with a field that is neither text nor a whole number, is not ordinary.
2. Values are not copied: each result is a place in the text of all rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from sparq.pipeline.click_reader import ALL_KEYS, JSON_KEYS
from sparq.pipeline.click_times import CLF_BYTES, clf_times, epoch_times, iso_times
from sparq.pipeline.lenient_json import DIGITS_MAX, NotJson, read_object
from sparq.pipeline.ordinary_lines import pages, read_requests
from sparq.pipeline.text_spans import (
    ADDRESS_BYTES_MAX,
    ADDRESS_SIGNS,
    DASH,
    DIGITS,
    SIZE_BYTES_MAX,
    STATUS_BYTES,
    FoundClicks,
    Integers,
    Mask,
    Spans,
    Text,
)

SKELETONS_KEPT = 1024
SKELETON_BYTES_MAX = 4096

_FIELDS = tuple(JSON_KEYS)
_COLON, _POINT, _ZERO, _SLASH = b":.0/"
# A text value; a key, which a colon follows; a number.
_PLACE = re.compile(r'(""(?!:))|"[^"]*"|(0)')
_TEXT = re.compile(r"text(\d+)")
_NUMBER = re.compile(r"1(\d{9})")


@dataclass(frozen=True, slots=True)
class _Layout:
    """For each field: the position of its value in the skeleton, and whether the value is numeric.

    The position of an absent field is -1.
    """

    values: tuple[int, ...]
    numbers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Values:
    """All values of all rows: their places, and the number of each row's first value."""

    starts: Integers
    ends: Integers
    first: Integers


def find_json(text: Text, rows: Integers) -> FoundClicks:
    """The clicks of those rows that are ordinary JSON."""
    rows = rows[~text.has_escape_or_control[rows] & ~text.not_utf8[rows]]
    first = np.searchsorted(text.quotes, text.starts[rows])
    count = np.searchsorted(text.quotes, text.ends[rows]) - first
    rows = rows[(count % 2 == 0) & (count > 0)]
    if not len(rows):
        return FoundClicks(rows, rows, {})
    # Copied into a text of their own, not read in place: `_skeletons` takes the quotes of a whole
    # text in turn as opening and closing ones, so a row with an odd number would shift the others.
    part = Text(text.strings(Spans(text.starts[rows], text.ends[rows])))
    found = _clicks(part)
    moved = text.starts[rows] - part.starts
    return FoundClicks(
        rows[found.rows],
        found.micros,
        {name: span.moved(moved[found.rows]) for name, span in found.spans.items()},
    )


def _clicks(text: Text) -> FoundClicks:
    """The clicks of messages whose quotes come in pairs."""
    skeletons, values, valid = _skeletons(text)
    distinct = skeletons.dictionary_encode()
    layouts = [_layout(one) for one in distinct.dictionary.to_pylist()]
    known = [one for one in layouts if one is not None]
    if not known:
        none = np.zeros(0, np.int64)
        return FoundClicks(none, none, {})
    # Any layout will do for rows that have none: these rows are left out below.
    filled = [one or known[0] for one in layouts]
    of_row = distinct.indices.to_numpy()
    rows = np.flatnonzero(valid & np.array([one is not None for one in layouts], bool)[of_row])
    numbers = np.array([one.values for one in filled], np.int64)[of_row[rows]]
    fields = {name: _stretches(values, rows, numbers[:, at]) for at, name in enumerate(_FIELDS)}
    is_number = np.array([one.numbers[0] for one in filled], bool)[of_row[rows]]
    spans, ordinary = _columns(text, fields)
    micros, has_time = _times(text, fields["time"], is_number)
    return FoundClicks(rows, micros, spans).where(ordinary & has_time)


def _skeletons(text: Text) -> tuple[pa.BinaryArray, _Values, Mask]:
    """The skeletons, the values, and which rows have valid JSON numbers and keep the limits."""
    signs = text.bytes
    opening, closing = text.quotes[::2], text.quotes[1::2]
    is_key = text.is_byte(closing + 1, _COLON)
    # Quotes divide the text into pieces: even ones are outside of strings, odd ones inside.
    bounds = np.zeros(len(text.quotes) + 2, np.int64)
    bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = opening + 1, closing, len(signs)
    lengths = np.diff(bounds)
    kept = np.ones(len(lengths), bool)
    outside = kept.copy()
    kept[1::2], outside[1::2] = is_key, False
    keep, outside = np.repeat(kept, lengths), np.repeat(outside, lengths)
    digit = np.zeros(len(signs) + 1, bool)
    digit[:-1] = (signs - np.uint8(_ZERO) < 10) & outside
    before = np.zeros(len(signs) + 1, bool)
    before[1:] = digit[:-1]
    first, after = np.flatnonzero(digit & ~before), np.flatnonzero(before & ~digit)
    # Of a number only the first digit stays (as 0), so that numbers of any length give the same
    # skeleton.
    keep &= ~(digit & before)[:-1]
    sizes = np.add.reduceat(keep, text.starts, dtype=np.int64)
    offsets = np.zeros(len(text) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.where(digit[:-1], np.uint8(_ZERO), signs)[keep]
    skeletons = pa.Array.from_buffers(
        pa.binary(), len(text), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    valid = sizes <= SKELETON_BYTES_MAX
    # JSON has no leading zeros, except in a fraction.
    zeros = (after - first > 1) & (signs[first] == _ZERO) & ~text.is_byte(first - 1, _POINT)
    valid[text.rows_of(first[zeros | (after - first > DIGITS_MAX)])] = False
    # Values do not overlap: sorted separately, starts and ends still belong together.
    starts = np.sort(np.concatenate([opening[~is_key] + 1, first]), kind="stable")
    ends = np.sort(np.concatenate([closing[~is_key], after]), kind="stable")
    return skeletons, _Values(starts, ends, np.searchsorted(starts, text.starts)), valid


@lru_cache(SKELETONS_KEPT)
def _layout(skeleton: bytes) -> _Layout | None:
    """The layout of a skeleton; None if it is not certain.

    Each value is replaced by a unique name or number, which shows where the value ends up when the
    whole is read as JSON.
    """
    count = 0

    def named(place: re.Match[str]) -> str:
        nonlocal count
        if not place[1] and not place[2]:
            return place[0]
        count += 1
        # The number begins with a 1, since JSON has no leading zeros.
        return f'"text{count - 1}"' if place[1] else f"1{count - 1:09}"

    try:
        found = read_object(_PLACE.sub(named, skeleton.decode()), ALL_KEYS)
    except NotJson:
        return None
    values, numbers = [], []
    for keys in JSON_KEYS.values():
        value = next((found[key] for key in keys if found.get(key) is not None), None)
        text, number = _TEXT.fullmatch(value or ""), _NUMBER.fullmatch(value or "")
        name = text or number
        if value is not None and not name:
            return None
        values.append(int(name[1]) if name else -1)
        numbers.append(bool(number))
    return _Layout(tuple(values), tuple(numbers))


def _stretches(values: _Values, rows: Integers, numbers: Integers) -> Spans:
    """The value with this number in each row; none if the number is -1."""
    at = np.where(numbers >= 0, values.first[rows] + numbers, 0)
    return Spans(values.starts[at], values.ends[at]).only(numbers >= 0)


def _columns(text: Text, fields: dict[str, Spans]) -> tuple[dict[str, Spans], Mask]:
    """The columns except the time, and which rows are ordinary."""
    request, address = fields["request"], fields["address"]
    asked = request.present()
    requests = read_requests(
        text, Spans(np.maximum(request.starts, 0), np.where(asked, request.ends, 0))
    )
    method = requests.method.or_else(fields["method"])
    path = requests.path.or_else(fields["path"])
    ordinary = np.where(asked, requests.ordinary, text.is_byte(fields["path"].starts, _SLASH))
    ordinary &= ~asked | text.is_ascii(request)
    ordinary &= _is_between(address, 1, ADDRESS_BYTES_MAX) & text.made_of(address, ADDRESS_SIGNS)
    status = fields["status"]
    fits = _is_between(status, STATUS_BYTES, STATUS_BYTES) & text.made_of(status, DIGITS)
    ordinary &= fits | ~status.present()
    size = fields["bytes"]
    dash = _is_between(size, 1, 1) & text.is_byte(size.starts, DASH)
    size = size.only(size.present() & ~dash)
    fits = _is_between(size, 1, SIZE_BYTES_MAX) & text.made_of(size, DIGITS)
    ordinary &= fits | ~size.present()
    spans = {
        "vhost": fields["vhost"],
        "address": address,
        "method": method,
        "path": path,
        "page": pages(text, path),
        "protocol": requests.protocol,
        "status": status,
        "bytes": size,
        "referer": fields["referer"],
        "user_agent": fields["user_agent"],
    }
    return spans, ordinary


def _is_between(spans: Spans, least: int, most: int) -> Mask:
    """Which rows have a text of `least` to `most` bytes."""
    length = spans.ends - spans.starts
    return spans.present() & (length >= least) & (length <= most)


def _times(text: Text, spans: Spans, is_number: Mask) -> tuple[Integers, Mask]:
    """Event times in microseconds, and which rows have an ordinary time."""
    micros, ordinary = np.zeros(len(is_number), np.int64), np.zeros(len(is_number), bool)
    length = np.where(spans.present(), spans.ends - spans.starts, 0)
    rows = np.flatnonzero(is_number & (length <= SIZE_BYTES_MAX) & spans.present())
    if len(rows):
        numbers = text.strings(spans.at(rows)).cast(pa.int64()).to_numpy()
        micros[rows], ordinary[rows] = epoch_times(numbers)
    is_clf = ~is_number & (length == CLF_BYTES) & text.is_byte(spans.starts + 2, _SLASH)
    rows = np.flatnonzero(is_clf)
    if len(rows):
        micros[rows], ordinary[rows] = clf_times(text, spans.starts[rows])
    rows = np.flatnonzero(~is_number & ~is_clf & (length > 0))
    if len(rows):
        micros[rows], ordinary[rows] = iso_times(text, spans.at(rows))
    return micros, ordinary
