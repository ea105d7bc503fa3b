"""The user's typed columns: values as they were found -> values of a column's type.

A value that does not fit its column's type stays in `extra`, below its own path, and is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final

import msgspec
import polars as pl
import pyarrow as pa

from sparq.pipeline.reading.json import encode, put_at
from sparq.pipeline.reading.schema import Reading
from sparq.pipeline.reading.times import event_micros


def own_columns(
    found: Mapping[str, Sequence[Any]], extras: list[bytes | None], reading: Reading
) -> dict[str, pl.Series]:
    """The user's columns of some messages, and `misfits`.

    Args:
        found: by column, the value of each message, of any type.
        extras: of each message the other values, as JSON; misfits are added.
        reading: has the paths and types.
    """
    counts = [0] * len(extras)
    made = {}
    for name, values in found.items():
        path, kind = reading.own[name]
        fit = _FITS[kind]
        fitting = []
        for at, value in enumerate(values):
            one = None if value is None else fit(value)
            if one is None and value is not None:
                extras[at] = with_extra(extras[at], path, value)
                counts[at] += 1
            fitting.append(one)
        made[name] = pl.Series(pa.array(fitting, kind))
    return {**made, "misfits": pl.Series(counts, dtype=pl.Int32)}


def with_extra(extra: bytes | str | None, path: str, value: Any) -> bytes:
    """Extra values, with one more at its path."""
    found = msgspec.json.decode(extra or b"{}")
    put_at(found, path, value)
    return encode(found)


# A value in the type of its column; None if it does not fit.

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")


def _as_string(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, int | float) else None


def _as_boolean(value: Any) -> bool | None:
    return (
        {"true": True, "false": False}.get(value)
        if isinstance(value, str)
        else (value if isinstance(value, bool) else None)
    )


def _as_whole(bits: int) -> Callable[[Any], int | None]:
    end = 1 << (bits - 1)

    def fit(value: Any) -> int | None:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_whole and -end <= value < end else None

    return fit


def _as_double(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = float(value)
    return float(value) if isinstance(value, int | float) else None


def _as_date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


_FITS: Final[Mapping[pa.DataType, Callable[[Any], Any]]] = {
    pa.string(): _as_string,
    pa.bool_(): _as_boolean,
    pa.int32(): _as_whole(32),
    pa.int64(): _as_whole(64),
    pa.float64(): _as_double,
    pa.date32(): _as_date,
    pa.timestamp("us", "UTC"): event_micros,
}
