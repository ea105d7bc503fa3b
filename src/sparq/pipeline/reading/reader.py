"""A batch of messages -> a table of clicks, one row for each message, in their order.

Messages of a format are read together. What formats have in common (requests, addresses, numbers)
is then read the same way for all of them. No message raises an error: what is no click has a
`reason`, and null in all other columns. Nothing is lost: what is in no column is in `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.reading.formats import DURATIONS
from sparq.pipeline.reading.json import JsonReader
from sparq.pipeline.reading.lines import LineReader, request_parts
from sparq.pipeline.reading.schema import (
    CLICK_SCHEMA,
    ENRICHMENTS,
    Found,
    Reading,
    Rows,
    click_schema,
)
from sparq.pipeline.reading.values import Network, event_micros, visitor

_ORIGIN: Final = r"^(?i:https?)://[^/]*"
_NUMBERS: Final = {"time": pl.Int64, "misfits": pl.Int32, "duration": pl.Float64}
_ALL: Final = (*CLICK_SCHEMA.names, "forwarded", "request", "query")
_TEXTS: Final = [one for one in _ALL if one not in _NUMBERS]

ADDRESS_BYTES_MAX: Final = 255
_HAS_STATUS: Final = ~pl.col("status").is_in(["-", "", "0", "-1"])
_STATUS: Final = pl.col("status").cast(pl.Int32, strict=False)
_BYTES: Final = pl.col("bytes").cast(pl.Int64, strict=False)
_REASONS: Final = (
    (pl.col("time").is_null(), "no time, or not a valid one"),
    (
        ~pl.col("address").str.contains(r"^[0-9A-Za-z._:%\[\]-]+$")
        | (pl.col("address").str.len_bytes() > ADDRESS_BYTES_MAX),
        "the address is neither an IP address nor a name",
    ),
    (
        _HAS_STATUS & ~pl.col("status").str.contains("^[1-9][0-9]{2}$"),
        "the status is not three digits",
    ),
    ((pl.col("bytes") != "-") & (_BYTES.fill_null(-1) < 0), "the size is not a number"),
)
_JSON: Final = re.compile(rb"\s*(?:\{|\[.*\]\s*$)", re.DOTALL)
_CLICK: Final = {
    "page": pl.col("path").str.splitn("?", 2).struct.field("field_0"),
    "status": pl.when(_HAS_STATUS).then(_STATUS),
    "bytes": _BYTES.fill_null(0),
    "duration": pl.when(pl.col("duration").is_between(0, 1e300)).then("duration"),  # finite
    "misfits": pl.col("misfits").fill_null(0),
    "reason": pl.coalesce("reason", *(pl.when(odd).then(pl.lit(why)) for odd, why in _REASONS)),
}


class ClickReader:
    """Reads messages as a setting says; by form: see `JsonReader`."""

    def __init__(self, reading: Reading, *, by_form: bool = False) -> None:
        self._reading, self._is_by_form = reading, by_form
        self._lines, self._json = LineReader(reading), JsonReader(reading, by_form=by_form)
        made = {name for group in reading.groups for name in ENRICHMENTS[group]}
        self._schema = pa.schema([one for one in click_schema(reading) if one.name not in made])
        types = {**dict.fromkeys(_TEXTS, pl.String), **_NUMBERS}
        own = pl.DataFrame(pl.from_arrow(self._schema.empty_table().select([*reading.own])))
        self._nothing = pl.DataFrame(schema=types).hstack(own.get_columns())

    @cached_property
    def _by_form(self) -> ClickReader:
        return ClickReader(self._reading, by_form=True)

    def read(self, bodies: pa.BinaryArray, columns: Collection[str] | None = None) -> pa.Table:
        """The clicks of messages, with some columns in the schema's order; None: all."""
        parts = list(self._parts(bodies))
        frames = [frame for _, frame in parts]
        if len(parts) > 1:
            order = np.concatenate([rows for rows, _ in parts])
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
            frames = [pl.concat(frames, how="diagonal")[places]]
        fields = pl.concat([self._nothing, *frames], how="diagonal")
        fields = _with_visitors(_with_requests(fields), self._reading.proxies)
        fields = fields.with_columns(**_CLICK)
        if not fields["page"].str.starts_with("/").all():
            # A proxy's `http://host/path`: only the path, at least "/".
            page, bare = pl.col("page"), pl.col("page").str.replace(_ORIGIN, "").replace("", "/")
            is_path = page.str.starts_with("/")
            fields = fields.with_columns(page=pl.when(is_path).then(page).otherwise(bare))
        reasons = fields["reason"]
        if reasons.null_count() < len(fields):
            is_click = pl.col("reason").is_null()
            fields = fields.select(pl.when(is_click).then(pl.exclude("reason")), "reason")
        wanted = pa.schema([one for one in self._schema if columns is None or one.name in columns])
        found = fields.select(wanted.names).to_arrow(compat_level=pl.CompatLevel.oldest())
        found = found.cast(wanted)
        odd = reasons.is_in([why for _, why in _REASONS[1:]]).arg_true()
        rows = [row for row in odd if _JSON.match(bodies[row].as_py())]
        if not rows or self._is_by_form:
            return found
        # In JSON, keys of other meanings may have a field's name: only the time must be one.
        again = self._by_form.read(bodies.take(pa.array(rows)), columns)
        places = np.arange(len(bodies))
        places[rows] = np.arange(len(rows)) + len(bodies)
        return pa.concat_tables([found, again]).take(places)

    def _parts(self, bodies: pa.BinaryArray) -> Iterator[tuple[Rows, pl.DataFrame]]:
        """Messages that were read together: their numbers in the batch, and their columns."""
        is_json = np.full(len(bodies), not self._lines.formats)
        if self._lines.formats and self._json.formats:
            is_json = pc.starts_with(bodies, "{").to_numpy(zero_copy_only=False)
        lines = np.flatnonzero(~is_json)
        reasons: dict[int, str] = {}
        if len(lines):
            texts = _texts(bodies.take(pa.array(lines)) if is_json.any() else bodies)
            left = np.ones(len(lines), bool)
            for found in self._lines.read(texts):
                left[found.rows] = False
                yield lines[found.rows], self._frame(found)
            for row, text in zip(lines[left].tolist(), texts.filter(pl.Series(left)), strict=True):
                if self._json.formats and _JSON.match(text.encode()):
                    is_json[row] = True
                else:
                    reasons[row] = self._lines.mistake(text.rstrip("\r\n"))
        objects = np.flatnonzero(is_json)
        if len(objects):
            for found in self._json.read(bodies.take(pa.array(objects)).to_pylist()):
                is_json[objects[found.rows]] = False
                yield objects[found.rows], self._frame(found)
            others = np.flatnonzero(is_json).tolist()
            reasons.update(dict.fromkeys(others, "the JSON is not one valid object"))
        if reasons:
            rows = sorted(reasons)
            yield np.array(rows), pl.DataFrame({"reason": [reasons[row] for row in rows]})

    def _frame(self, found: Found) -> pl.DataFrame:
        """Messages of a format with columns of a click, as texts, and the user's columns."""
        size = len(found.rows)
        given = {name: values for name, values in found.fields.items() if len(values)}
        times = given.pop("time", [None] * size)
        times = times.to_list() if isinstance(times, pl.Series) else times
        known = {one: event_micros(one) for one in set(times)}
        fields = {name: _series(values) for name, values in given.items()}
        columns = {name: one for name, one in fields.items() if name in _TEXTS}
        columns["format"] = pl.repeat(found.format, size, eager=True)
        columns["time"] = pl.Series(list(map(known.__getitem__, times)), dtype=pl.Int64)
        for name, seconds in DURATIONS.items():
            if name in fields:
                one = fields[name].cast(pl.Float64, strict=False) * seconds
                columns["duration"] = columns.get("duration", one).fill_null(one)
        for name, values in found.own.items():
            kind = self._reading.own[name][1]
            columns[name] = pl.Series(pa.array(values or [None] * size, kind))
        if found.misfits.any():
            columns["misfits"] = pl.Series(found.misfits)
        if found.extras:
            columns["extra"] = pl.Series(found.extras, dtype=pl.Binary).cast(pl.String)
        return pl.DataFrame(columns)


def _texts(bodies: pa.BinaryArray) -> pl.Series:
    """Messages as texts; invalid UTF-8 is replaced."""
    try:
        return pl.Series(bodies.cast(pa.string()))
    except pa.ArrowInvalid:
        return pl.Series([one.decode("utf-8", "replace") for one in bodies.to_pylist()])


def _series(values: Sequence[Any] | pl.Series) -> pl.Series:
    """Values of a field as texts."""
    if isinstance(values, pl.Series):
        return values
    for kind in (pl.String, pl.Int64):
        with suppress(TypeError, OverflowError):  # not all values are of this kind
            return pl.Series(values, dtype=kind).cast(pl.String)
    return pl.Series(values, dtype=pl.String, strict=False)


def _with_requests(fields: pl.DataFrame) -> pl.DataFrame:
    """Read method, path and protocol of request lines, and add queries to paths."""
    if fields["request"].null_count() < len(fields):
        parts = zip(("method", "path", "protocol"), request_parts(fields["request"]), strict=True)
        fields = fields.with_columns(pl.coalesce(part, name).alias(name) for name, part in parts)
    if fields["query"].null_count() == len(fields):
        return fields
    path, query = pl.col("path"), pl.col("query").str.strip_prefix("?")
    is_apart = ~query.is_in(["", "-"]) & ~path.str.contains("?", literal=True)
    return fields.with_columns(path=pl.when(is_apart).then(path + "?" + query).otherwise(path))


def _with_visitors(fields: pl.DataFrame, proxies: Sequence[Network]) -> pl.DataFrame:
    """Choose one address where there are several; the connection's then goes to `extra`."""
    peers, passed, extra = fields["address"], fields["forwarded"], fields["extra"]
    address = peers.fill_null(passed)
    several = address.str.contains(",", literal=True).fill_null(False)
    odd = (several | passed.is_not_null() if proxies else several).arg_true()
    if not len(odd):
        return fields.with_columns(address=address)
    found, extras = [], []
    columns = (one.gather(odd).to_list() for one in (peers, passed, extra))
    for peer, others, rest in zip(*columns, strict=True):
        found.append(visitor(peer, others, proxies))
        kept = {"peer": peer} if peer and peer != found[-1] else {}
        whole = {**msgspec.json.decode(rest or "{}"), **kept}
        extras.append(msgspec.json.encode(whole).decode() if kept else rest)
    return fields.with_columns(
        address=address.scatter(odd, pl.Series(found, dtype=pl.String)),
        extra=extra.scatter(odd, pl.Series(extras, dtype=pl.String)),
    )
