"""The user's typed columns: values as they were found -> values of a column's type.

A value that does not fit its column's type stays in `extra`, below its own path, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Final

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
        fitting = []
        for at, value in enumerate(values):
            one = None if value is None else _fitting(value, kind)
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


_TYPES: Final[Mapping[pa.DataType, Any]] = {
    pa.int32(): Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)],
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.float64(): float,
    pa.date32(): date,
}


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """A value in the type of its column; None if it does not fit."""
    if kind not in _TYPES and kind not in (pa.string(), pa.bool_()):
        return event_micros(value)
    if isinstance(value, bool):
        return {pa.bool_(): value, pa.string(): str(value).lower()}.get(kind)
    if kind == pa.bool_():
        return {"true": True, "false": False}.get(value) if isinstance(value, str) else None
    if kind == pa.string():
        number = repr(value) if isinstance(value, int | float) else None
        return value if isinstance(value, str) else number
    try:
        text = value.removeprefix("+") if isinstance(value, str) else value
        found = msgspec.convert(text, _TYPES[kind], strict=False)
    except msgspec.ValidationError:
        return None
    return found if not isinstance(found, float) or math.isfinite(found) else None
