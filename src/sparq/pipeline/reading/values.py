"""Times and addresses: texts and numbers of a log -> microseconds since 1970 (UTC), visitors.

A text has the form of an access log (`02/Mar/2026:10:00:00 +0000`, also with a fraction and without
an offset) or of ISO 8601; without an offset it is UTC. A number is seconds of the epoch (up to 11
digits), milliseconds (14), microseconds (17) or nanoseconds (19); as a text it has 9 digits or more
before the point. Years are 1970 to 9999. What is no time gives None; nothing raises an error.
"""

from __future__ import annotations

import calendar
import ipaddress
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

MICROS: Final = 1_000_000
_END: Final = 253_402_300_800 * MICROS  # 10000-01-01: from there on years have five digits
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_OFFSET_MAX: Final = timedelta(hours=18)
_MONTHS: Final = {name.lower(): number for number, name in enumerate(calendar.month_abbr)}
_CLF: Final = re.compile(
    r"(\d\d)/([A-Za-z]{3})/(\d{4})[: ](\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: ?([+-]\d\d:?\d\d|Z))?",
    re.ASCII,
)
_ISO: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_NUMBER: Final = re.compile(r"\d{9,19}(?:\.\d{1,20})?(?:[eE]\+?\d{1,2})?", re.ASCII)
MINUTES_KEPT: Final = 16_384
_MINUTES: Final[dict[str, int]] = {}  # by text without its second, the time of second 0
_SECONDS: Final = {f":{second:02}": second * MICROS for second in range(60)}


def event_micros(value: object) -> int | None:
    """Read a time; None if the value is not a time."""
    if isinstance(value, str):
        # In the usual texts, what precedes and follows the second repeats.
        at = 17 if value[2:3] == "/" else 16
        minute = value[:at] + value[at + 3 :]
        try:
            return _MINUTES[minute] + _SECONDS[value[at : at + 3]]
        except KeyError:
            micros = _text_micros(value.strip("[]"))
        second = _SECONDS.get(value[at : at + 3])
        if micros is not None and second is not None and value[at + 3 : at + 4] not in (".", ","):
            if len(_MINUTES) >= MINUTES_KEPT:
                _MINUTES.clear()
            _MINUTES[minute] = micros - second
        return micros
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _epoch_micros(value)
    return None


def _text_micros(text: str) -> int | None:
    if _NUMBER.fullmatch(text):
        return _epoch_micros(int(text) if text.isdecimal() else float(text))
    if found := _CLF.fullmatch(text):
        day, name, year, clock, offset = found.groups("")
        text = f"{year}-{_MONTHS.get(name.lower(), 0):02}-{day}T{clock}{offset}"
    elif not _ISO.fullmatch(text):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    micros = (at - _EPOCH) // _MICROSECOND
    is_within = abs(at.utcoffset() or timedelta()) <= _OFFSET_MAX and 0 <= micros < _END
    return micros if is_within else None


def _epoch_micros(number: float) -> int | None:
    if not 0 <= number < 10**19:
        return None
    if number >= 10**17:
        return int(number) // 1000
    scale = MICROS if number < 10**11 else 1_000 if number < 10**14 else 1
    micros = round(number * scale)
    return micros if micros < _END else None


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PRIVATE: Final = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16"),
    *("fc00::/7", "fe80::/10", "::1/128"),
)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks that texts name; "private" stands for all private ones.

    Raises:
        ValueError: a text names no network.
    """
    names = (one for text in texts for one in (_PRIVATE if text == "private" else (text,)))
    try:
        return tuple(ipaddress.ip_network(one, strict=False) for one in names)
    except ValueError:
        raise ValueError("is not a network: write 10.0.0.0/8, an address, or private") from None


def visitor(address: str | None, forwarded: str | None, proxies: Sequence[Network]) -> str | None:
    """The address that counts, of the connection's and those of X-Forwarded-For before it.

    Each one was written by the next. A client can write any at the front, so the last one counts
    that is not a trusted proxy. Without any address, X-Forwarded-For counts.
    """
    texts = ((forwarded if proxies or not address else "") or "", address or "")
    passed = [one for text in texts for one in re.split(r"[,\s]+", text) if one not in ("", "-")]
    for one in reversed(passed):
        try:
            found = ipaddress.ip_address(one)
        except ValueError:
            return one  # a name
        if not any(found in network for network in proxies):
            return one
    return passed[0] if passed else None
