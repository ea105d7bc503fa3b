"""Event times as microseconds since 1970 (UTC), read from one text or from a column of texts.

1. A time has the form of an access log (`02/Mar/2026:10:00:00 +0000`) or of ISO 8601 (UTC if it has
   no offset). In JSON it may also be a number: seconds, milliseconds or microseconds of the epoch,
   depending on its size.
2. Years are 1970 to 9999. Offsets are at most 18 hours. Text that is no time gives None; nothing
   raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np

from sparq.pipeline.text_spans import Bytes, Integers, Mask, Spans, Text

MICROS = 1_000_000
TIME_END_S = 253_402_300_800  # 10000-01-01: from there on years have five digits
CLF_BYTES = len("02/Mar/2026:10:00:00 +0000")
ISO_BYTES = len("2026-03-02T10:00:00")
OFFSET_MINUTES_MAX = 18 * 60

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_OF = {name.lower(): at + 1 for at, name in enumerate(_MONTHS)}
_CLF = re.compile(
    r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)\Z", re.ASCII
)
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
    r"(?:Z|([+-])(\d\d):?(\d\d))?(?:\n|\r\n?)?\Z",
    re.ASCII,
)
_EPOCH = re.compile(r"(\d{1,17}(?:\.\d{1,17})?(?:[eE]\+?\d{1,2})?)(?:\n|\r\n?)?\Z", re.ASCII)
_SIX_PLACES = Decimal("0.000001")
_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)
_WHOLE_DIGITS_MAX = 22

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_ANY_SECOND = "2000-01-01T00:00:00"
_CODES = sorted((int.from_bytes(name.encode()), at + 1) for at, name in enumerate(_MONTHS))
_MONTH_CODES = np.array([code for code, _ in _CODES], np.int64)
_MONTH_NUMBERS = np.array([month for _, month in _CODES], np.int64)
# The first day of each month from January 1970 to January 10000.
_FIRST_DAYS = (
    np.arange("1970-01", "10000-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
)


def event_micros(text: str | None, is_json: bool) -> int | None:
    """Read a time; None if the text is not a time."""
    if text is None:
        return None
    found = _CLF.match(text)
    if found:
        day, name, year, hour, minute, second, *offset = found.groups()
        month = str(_MONTH_OF.get(name.lower(), 0))
        return _micros((year, month, day, hour, minute, second), "", offset)
    found = _ISO.match(text)
    if found:
        *clock, fraction, sign, hours, minutes = found.groups("")
        return _micros(clock, fraction, (sign, hours, minutes))
    found = _EPOCH.match(text) if is_json else None
    return _epoch_micros(Decimal(found[1])) if found else None


def _micros(clock: Iterable[str], fraction: str, offset: Iterable[str]) -> int | None:
    """Combine year to second, the digits of a fraction, and an offset's sign, hours and minutes."""
    year, month, day, hour, minute, second = (int(part or 0) for part in clock)
    sign, hours, minutes = offset
    shift = int(hours or 0) * 60 + int(minutes or 0)
    if max(minute, second, int(minutes or 0)) > 59 or hour > 23 or shift > OFFSET_MINUTES_MAX:
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    seconds += shift * 60 if sign == "-" else -shift * 60
    if not 0 <= seconds < TIME_END_S:
        return None
    return seconds * MICROS + int(fraction[:6].ljust(6, "0"))


def _epoch_micros(number: Decimal) -> int | None:
    """Read a number as seconds below 10^11, as milliseconds below 10^14, else as microseconds."""
    if number.adjusted() >= _WHOLE_DIGITS_MAX:
        return None
    number = number.quantize(_SIX_PLACES, context=_EXACT)
    scale = MICROS if number < 10**11 else 1_000 if number < 10**14 else 1
    micros = int(number * scale)
    return micros if micros < TIME_END_S * MICROS else None


def clf_times(text: Text, at: Integers) -> tuple[Integers, Mask]:
    """Read access-log times at some places: microseconds, and which of them are certain."""
    grid = text.grid(at, CLF_BYTES)
    ok = _has_form(grid, "dd/aaa/dddd:dd:dd:dd +dddd")
    # The three letters of a month as one number: one search tells the months of all rows.
    code = grid[3].astype(np.int64) << 16 | grid[4].astype(np.int64) << 8 | grid[5]
    place = np.minimum(np.searchsorted(_MONTH_CODES, code), len(_MONTH_CODES) - 1)
    ok &= _MONTH_CODES[place] == code
    hours, minutes = _number(grid, 22, 2), _number(grid, 24, 2)
    # Not `<= 18`, which would accept 18:01 to 18:59. The careful reader gets 18:00, which is valid.
    ok &= (hours < 18) & (minutes < 60)
    offset = (hours * 60 + minutes) * np.where(grid[21] == ord("-"), -60, 60)
    clock = [_number(grid, place, 2) for place in (12, 15, 18)]
    days, real = _days(_number(grid, 7, 4), _MONTH_NUMBERS[place], _number(grid, 0, 2))
    return _joined(days, clock, -offset * MICROS, ok & real)


def iso_times(text: Text, spans: Spans) -> tuple[Integers, Mask]:
    """Read stretches of ISO 8601, like `clf_times`; one that is too short is not certain."""
    long = spans.ends - spans.starts >= ISO_BYTES
    starts = np.where(long, spans.starts, 0)
    grid = text.grid(starts, ISO_BYTES)
    ok = long & (_has_form(grid, "dddd-dd-ddTdd:dd:dd"))
    # Few different forms follow the second: the careful reader computes once what each one adds.
    rest = Spans(np.where(ok, starts + ISO_BYTES, -1), spans.ends)
    forms = text.strings(rest).dictionary_encode()
    base = event_micros(_ANY_SECOND, is_json=True)
    added = [
        event_micros(_ANY_SECOND + form, is_json=True) for form in forms.dictionary.to_pylist()
    ]
    known = np.array([one is not None for one in added], bool)
    adds = np.array([(one or 0) - (base or 0) for one in added], np.int64)
    form = forms.indices.fill_null(0).to_numpy()
    ok &= known[form] if len(known) else False
    clock = [_number(grid, place, 2) for place in (11, 14, 17)]
    days, real = _days(*(_number(grid, *place) for place in ((0, 4), (5, 2), (8, 2))))
    # Without any known form no row is certain: the zeros only have the right length.
    return _joined(days, clock, adds[form] if len(adds) else starts * 0, ok & real)


def epoch_times(numbers: Integers) -> tuple[Integers, Mask]:
    """Read whole numbers of seconds, milliseconds or microseconds, like `clf_times`."""
    scale = np.where(numbers < 10**11, MICROS, np.where(numbers < 10**14, 1_000, 1))
    ok = (numbers >= 0) & (numbers < 10**17)
    micros = np.where(ok, numbers, 0) * scale
    return micros, ok & (micros < TIME_END_S * MICROS)


def _has_form(grid: Bytes, form: str) -> Mask:
    """Which columns of a grid match a form: d = digit, + = sign, T = T or space, a = any byte."""
    ok = np.ones(grid.shape[1], bool)
    for row, sign in zip(grid, form, strict=True):
        if sign == "d":
            ok &= row - np.uint8(48) < 10
        elif sign == "+":
            ok &= (row == ord("+")) | (row == ord("-"))
        elif sign == "T":
            ok &= (row == ord("T")) | (row == ord(" "))
        elif sign != "a":
            ok &= row == ord(sign)
    return ok


def _number(grid: Bytes, place: int, digits: int) -> Integers:
    found: Integers = grid[place].astype(np.int64) - 48
    for row in grid[place + 1 : place + digits]:
        found = found * 10 + row - 48
    return found


def _days(year: Integers, month: Integers, day: Integers) -> tuple[Integers, Mask]:
    """Return each date as days since 1970, and whether the calendar has this date."""
    at = (year - 1970) * 12 + month - 1
    ok = (year >= 1970) & (year < 10_000) & (month >= 1) & (month <= 12)
    at = np.where(ok, at, 0)
    first = _FIRST_DAYS[at]
    return first + day - 1, ok & (day >= 1) & (day <= _FIRST_DAYS[at + 1] - first)


def _joined(
    days: Integers, clock: list[Integers], added: Integers, ok: Mask
) -> tuple[Integers, Mask]:
    hour, minute, second = clock
    ok = ok & (hour < 24) & (minute < 60) & (second < 60)
    micros = (days * 86_400 + hour * 3600 + minute * 60 + second) * MICROS + added
    return micros, ok & (micros >= 0) & (micros < TIME_END_S * MICROS)
