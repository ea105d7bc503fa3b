"""What is read, and into which columns: `Reading`, the schema of a click, the user's columns.

Nothing here loads polars, which a driver or a command line need not load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.values import Network, event_micros, networks

if TYPE_CHECKING:
    import polars as pl

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Counts = np.ndarray[tuple[int], np.dtype[np.int32]]

CLICK_SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),  # event time, the only value that each click has
        ("address", pa.string()),  # the visitor's; see Reading.trusted_proxies
        ("user", pa.string()),  # "-" or the authenticated user
        ("vhost", pa.string()),  # only where the log has it
        ("method", pa.string()),  # null if the request line is broken, like the next two
        ("path", pa.string()),  # with its query
        ("page", pa.string()),  # the path without its query and without https://host
        ("protocol", pa.string()),  # such as "HTTP/1.1"
        ("status", pa.int32()),  # null where the log has "-", 0 or -1
        ("bytes", pa.int64()),  # 0 where the log has "-" or nothing
        ("referer", pa.string()),  # as written, "-" included
        ("user_agent", pa.string()),  # likewise
        ("duration", pa.float64()),  # of the request, in seconds
        ("format", pa.string()),  # one of formats.NAMES, or "log_format"
        ("extra", pa.string()),  # all other values, as a JSON object; null if there are none
        ("misfits", pa.int32()),  # number of values in `extra` that do not fit their column's type
        ("reason", pa.string()),  # null for a click; else why it is none: one sentence
    ]
)
"""The columns of a click. The user's typed columns come between `format` and `extra`."""

OF_MESSAGES: Final = ("nsqd", "id", "index", "timestamp", "body", "date")
"""Columns of the table `clicks` that the message has, and not the click."""

ENRICHMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "source": ("referrer_class", "search_engine"),
    "campaign": ("utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"),
    "device": ("device", "browser", "os"),
    "robot": ("robot",),
    "kind": ("kind",),
    "country": ("country",),
    "network": ("network",),
}
"""The columns that `sparq.pipeline.enrich` adds, by group; all are strings."""

TYPES: Final = {
    **{"string": pa.string(), "boolean": pa.bool_(), "int": pa.int32(), "bigint": pa.int64()},
    **{"double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC")},
}
"""Types of the user's columns, by their names in Spark SQL."""

_PYTHON_TYPES: Final[Mapping[pa.DataType, Any]] = {
    pa.bool_(): bool,
    pa.int32(): Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)],
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.float64(): float,
    pa.date32(): date,
}


@dataclass(frozen=True)
class Reading:
    """How messages are read: the settings of these names, which `Settings` has checked."""

    format: str = formats.AUTO
    fields: str = ""
    log_format: str = ""
    click: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    enrich: tuple[str, ...] = ()
    site_hosts: tuple[str, ...] = ()
    country_file: str = ""
    network_file: str = ""
    anonymize: bool = False

    @cached_property
    def own(self) -> dict[str, tuple[str, pa.DataType]]:
        """Path and type of each of the user's columns."""
        found = {name: path_and_type(text) for name, text in self.columns}
        return {name: (path, TYPES[kind]) for name, (path, kind) in found.items()}

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of ENRICHMENTS whose columns are made."""
        files = {"country": self.country_file, "network": self.network_file}
        return tuple(one for one in ENRICHMENTS if one in self.enrich or files.get(one))

    @cached_property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of `trusted_proxies`."""
        return networks(self.trusted_proxies)


class Found(NamedTuple):
    """Messages of one format that were read together; an empty column has no value at all."""

    rows: Rows  # their numbers in the batch
    format: str
    fields: Mapping[str, Sequence[Any] | pl.Series]  # texts or numbers, by field of a click
    own: Mapping[str, Sequence[Any]]  # the user's columns
    misfits: Counts
    extras: list[bytes | None]  # all other values, as JSON


def path_and_type(text: str) -> tuple[str, str]:
    """The parts of "order.id: bigint"; without a type it is a string."""
    path, colon, kind = text.rpartition(":")
    return (path.strip(), kind.strip()) if colon else (text.strip(), "string")


def fitting(kind: pa.DataType, values: Sequence[Any]) -> list[Any]:
    """Values in the type of the user's column; None for those that do not fit."""

    def converted(value: Any) -> Any:
        if kind == pa.string():
            if isinstance(value, bool | int | float):
                return msgspec.json.encode(value).decode()
            return value if isinstance(value, str) else None
        if kind not in _PYTHON_TYPES:
            return event_micros(value)
        try:
            found = msgspec.convert(value, _PYTHON_TYPES[kind], strict=False)
        except msgspec.ValidationError:
            return None
        return found if not isinstance(found, float) or math.isfinite(found) else None

    return [None if value is None else converted(value) for value in values]


def click_schema(reading: Reading) -> pa.Schema:
    """The columns of a click: before `extra` those of enrichment and the user's."""
    *fields, extra, misfits, reason = CLICK_SCHEMA
    own = [pa.field(name, kind) for name, (_, kind) in reading.own.items()]
    made = [pa.field(name, pa.string()) for group in reading.groups for name in ENRICHMENTS[group]]
    return pa.schema([*fields, *made, *own, extra, misfits, reason])
