"""The user's typed columns: values as they were found -> values of a column's type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from sparq.pipeline.reading.times import event_micros

_TYPES: Final[Mapping[pa.DataType, Any]] = {
    pa.bool_(): bool,
    pa.int32(): Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)],
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.float64(): float,
    pa.date32(): date,
}


def fitting(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Values in the type of their column; None for those that do not fit."""
    return [None if value is None else _converted(value, kind) for value in values]


def _converted(value: Any, kind: pa.DataType) -> Any:
    if kind == pa.string():
        if isinstance(value, bool | int | float):
            return msgspec.json.encode(value).decode()
        return value if isinstance(value, str) else None
    if kind not in _TYPES:
        return event_micros(value)
    try:
        found = msgspec.convert(value, _TYPES[kind], strict=False)
    except msgspec.ValidationError:
        return None
    return found if not isinstance(found, float) or math.isfinite(found) else None
