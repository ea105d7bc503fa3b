"""A batch of messages -> a table of clicks, one row for each message, in their order.

1. Lines and JSON are read separately, usual lines of each format together. What they have in common
   (requests, addresses, numbers) is then read the same way for all of them, by polars expressions.
2. No message raises an error. What is no click has a `reason`, and null in all other columns.
3. Nothing is lost: a value that is in no column is in `extra`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.addresses import Network, visitor
from sparq.pipeline.reading.formats import FIELDS
from sparq.pipeline.reading.json import NOT_JSON, JsonReader, encode
from sparq.pipeline.reading.lines import USUAL_REQUEST, LineReader, key_of, request_parts
from sparq.pipeline.reading.own_columns import own_columns, with_extra
from sparq.pipeline.reading.schema import Reading, click_schema
from sparq.pipeline.reading.times import event_micros

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]

_ADDRESS: Final = r"^[0-9A-Za-z._:%\[\]-]+$"
ADDRESS_BYTES_MAX: Final = 255
_ORIGIN: Final = r"^(?i:https?)://[^/]*"
_STATUS: Final = r"^[0-9]{3}$"
_NO_STATUS: Final = ("-", "", "0", "-1")
_SIZE: Final = r"^[0-9]{1,18}$"
_EMPTY: Final = ("-", "")  # what a line has in place of a value
_SCALES: Final = {"duration": 1.0, "duration_ms": 1e-3, "duration_us": 1e-6, "duration_ns": 1e-9}
_OURS: Final = frozenset(FIELDS.values())


class _Part(NamedTuple):
    """Messages that were read together: their numbers in the batch, and their fields.

    Fields are those of a click as texts, but `time` in microseconds, durations as doubles, and
    `has_time`, `format`, `extra`, `reason`, `misfits` and the user's columns. Any may be missing.
    """

    rows: Rows
    fields: pl.DataFrame


class ClickReader:
    """Reads messages as a setting says."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._schema = click_schema(reading)
        self._own = {path: name for name, (path, _) in reading.own.items()}
        is_auto = reading.format == formats.AUTO
        names = {name for name, _ in formats.LINES}
        json_names = {one.name for one in formats.JSON}
        is_lines = is_auto or bool(reading.log_format) or reading.format in names
        self._lines = LineReader(reading) if is_lines else None
        is_json = not reading.log_format and (is_auto or reading.format in json_names)
        self._json = JsonReader(reading) if is_json else None

    def read(self, bodies: pa.BinaryArray, columns: Collection[str] | None = None) -> pa.Table:
        """The clicks of messages.

        Args:
            bodies: one message each.
            columns: the columns to return, in the schema's order; None: all.
        """
        wanted = pa.schema([one for one in self._schema if columns is None or one.name in columns])
        parts = list(self._parts(bodies))
        if not parts:
            return wanted.empty_table()
        fields = parts[0].fields
        if len(parts) > 1:
            fields = pl.concat([part.fields for part in parts], how="diagonal_relaxed")
            order = np.concatenate([part.rows for part in parts])
            back = np.empty(len(order), np.int64)
            back[order] = np.arange(len(order))
            fields = fields[back]
        fields = _with_visitors(_with_requests(fields), self._reading.proxies)
        found = fields.select(_expressions(tuple(fields.schema.items())))
        if not found["page"].str.starts_with("/").all():
            found = found.with_columns(page=_without_origin(pl.col("page")))
        if found["reason"].null_count() < len(found):
            is_click = pl.col("reason").is_null()
            found = found.select(pl.when(is_click).then(pl.exclude("reason")), "reason")
        missing = set(wanted.names) - set(found.columns)
        made = [
            pa.nulls(len(found), one.type)
            if one.name in missing
            else found[one.name].to_arrow(compat_level=pl.CompatLevel.oldest()).cast(one.type)
            for one in wanted
        ]
        return pa.Table.from_arrays(made, schema=wanted)

    def _parts(self, bodies: pa.BinaryArray) -> Iterator[_Part]:
        rows = np.arange(len(bodies))
        is_json = np.full(len(bodies), self._lines is None)
        if self._lines is not None and self._json is not None and len(bodies):
            is_json = pc.starts_with(bodies, "{").to_numpy(zero_copy_only=False)
        lines = rows[~is_json]
        objects = list(rows[is_json])
        if len(lines) and self._lines is not None:
            texts = _texts(bodies if len(lines) == len(rows) else bodies.take(pa.array(lines)))
            left = np.ones(len(lines), bool)
            for some, one, groups in self._lines.usual(texts):
                left[some] = False
                yield self._usual(lines[some], one.name, one.fields, groups)
            others = {
                row: text.rstrip("\r\n")
                for row, text in zip(lines[left], texts.filter(pl.Series(left)), strict=True)
            }
            if self._json is not None:
                spaced = [row for row, one in others.items() if one.lstrip(" \t\r\n")[:1] == "{"]
                objects += spaced
                for row in spaced:
                    del others[row]
            if others:
                yield self._careful(self._lines, others)
        if objects and self._json is not None:
            yield from self._of_json(self._json, np.array(objects), bodies)

    def _usual(
        self, rows: Rows, name: str, fields: Sequence[formats.Field], groups: pl.DataFrame
    ) -> _Part:
        """Usual lines of a format."""
        columns = dict(zip(map(key_of, fields), groups.get_columns(), strict=True))
        others = {
            key: one.to_list()
            for key, one in columns.items()
            if self._is_extra(key) and not one.is_in(_EMPTY).fill_null(True).all()
        }
        extras: list[bytes | None] = []
        if others:
            texts = zip(*others.values(), strict=True)
            extras = [self._extra(dict(zip(others, row, strict=True))) for row in texts]
        own = {
            self._own[one.name]: _filled(columns[key_of(one)])
            for one in fields
            if one.name in self._own
        }
        ours = {key: one for key, one in columns.items() if key in _OURS}
        return self._part(rows, ours, extras, own, format=pl.repeat(name, len(rows), eager=True))

    def _careful(self, reader: LineReader, lines: Mapping[int, str]) -> _Part:
        """Lines that are read one by one."""
        names: list[str | None] = []
        found: list[dict[str, str]] = []
        reasons: list[str | None] = []
        for line in lines.values():
            try:
                name, values = reader.read(line)
                names.append(name)
                found.append(values)
                reasons.append(None)
            except ValueError as error:
                names.append(None)
                found.append({})
                reasons.append(str(error))
        keys = {key for values in found for key in values}
        columns = {key: [values.get(key) for values in found] for key in keys}
        return self._part(
            np.array(list(lines)),
            {key: pl.Series(columns[key], dtype=pl.String) for key in keys & _OURS},
            [self._extra(values) for values in found],
            {self._own[path]: _filled(columns[path]) for path in keys & self._own.keys()},
            format=pl.Series(names, dtype=pl.String),
            reason=pl.Series(reasons, dtype=pl.String),
        )

    def _of_json(self, json: JsonReader, rows: Rows, bodies: pa.BinaryArray) -> Iterator[_Part]:
        """JSON objects."""
        some = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        names = list(self._reading.own)
        for found in json.read(some.to_pylist()):
            count = len(found.rows)
            more = {}
            if isinstance(found.format, str):
                more["format"] = pl.repeat(found.format, count, eager=True)
            else:
                more["format"] = pl.Series(found.format, dtype=pl.String)
                why = [NOT_JSON if name is None else None for name in found.format]
                more["reason"] = pl.Series(why, dtype=pl.String)
            own = {names[at]: values for at, values in found.own.items()}
            yield self._part(rows[found.rows], found.fields, found.extras, own, **more)

    def _part(
        self,
        rows: Rows,
        fields: dict[str, pl.Series],
        extras: list[bytes | None],
        own: Mapping[str, Sequence[Any]],
        **more: pl.Series,
    ) -> _Part:
        columns = {**fields, **more}
        if self._own:
            extras = extras or [None] * len(rows)
            empty = {name: [None] * len(rows) for name in self._reading.own}
            columns |= own_columns({**empty, **own}, extras, self._reading)
        if extras:
            columns["extra"] = pl.Series(extras, dtype=pl.Binary).cast(pl.String)
        return _Part(rows, _with_times(pl.DataFrame(columns)))

    def _is_extra(self, key: str) -> bool:
        """Whether a field of a line belongs to `extra`."""
        return key not in self._own and (key not in _OURS or key == "forwarded")

    def _extra(self, values: Mapping[str, str | None]) -> bytes | None:
        """The values of a line that are in no column."""
        found = {
            key: value
            for key, value in values.items()
            if value is not None and value not in _EMPTY and self._is_extra(key)
        }
        return encode(found) if found else None


def _filled(texts: Iterable[str | None]) -> list[str | None]:
    """The values of a line's field; None where it has a dash."""
    return [None if one in _EMPTY else one for one in texts]


def _texts(bodies: pa.BinaryArray) -> pl.Series:
    """Messages as texts; invalid UTF-8 is replaced."""
    try:
        return pl.Series(bodies.cast(pa.string()))
    except pa.ArrowInvalid:
        return pl.Series([one.decode("utf-8", "replace") for one in bodies.to_pylist()])


def _with_times(fields: pl.DataFrame) -> pl.DataFrame:
    """Event times in microseconds, durations as numbers."""
    casts = [
        pl.col(name).cast(pl.Float64, strict=False)
        for name in _SCALES
        if name in fields.columns and fields.schema[name] == pl.String
    ]
    if casts:
        fields = fields.with_columns(casts)
    if "has_time" in fields.columns:
        return fields
    if "date" in fields.columns:
        day = fields["date"] + " " + fields["clock"]
        texts = fields["time"].fill_null(day) if "time" in fields.columns else day
    elif "time" in fields.columns:
        texts = fields["time"]
    else:
        return fields
    values = texts.to_arrow(compat_level=pl.CompatLevel.oldest()).dictionary_encode()
    micros = pa.array([event_micros(one) for one in values.dictionary.to_pylist()], pa.int64())
    return fields.with_columns(
        pl.Series("time", micros.take(values.indices)), texts.is_not_null().alias("has_time")
    )


def _with_requests(fields: pl.DataFrame) -> pl.DataFrame:
    """Add method, path and protocol of the request lines, where they are not given."""
    if "request" not in fields.columns:
        return fields
    request = fields["request"]
    parts = request.str.extract_groups(USUAL_REQUEST).struct.unnest().get_columns()
    odd = (parts[0].is_null() & request.is_not_null()).arg_true()
    if len(odd):
        read = zip(*map(request_parts, request.gather(odd)), strict=True)
        parts = [
            part.scatter(odd, pl.Series(values, dtype=pl.String))
            for part, values in zip(parts, read, strict=True)
        ]
    return fields.with_columns(
        (part.fill_null(fields[name]) if name in fields.columns else part).alias(name)
        for name, part in zip(("method", "path", "protocol"), parts, strict=True)
    )


def _with_visitors(fields: pl.DataFrame, proxies: Sequence[Network]) -> pl.DataFrame:
    """Choose one address where there are several; the connection's then goes to `extra`."""
    given = [name for name in ("address", "forwarded") if name in fields.columns]
    if not given:
        return fields
    address = fields[given[0]].fill_null(fields[given[-1]])
    several = address.str.contains(",", literal=True)
    if proxies and "forwarded" in given:
        several |= fields["forwarded"].is_not_null()
    odd = several.fill_null(False).arg_true()
    if not len(odd):
        return fields.with_columns(address.alias("address"))
    nothing = pl.repeat(None, len(fields), dtype=pl.String, eager=True)
    peers, passed, extras = (
        (fields[name] if name in fields.columns else nothing).gather(odd).to_list()
        for name in ("address", "forwarded", "extra")
    )
    found = [visitor(*both, proxies) for both in zip(peers, passed, strict=True)]
    kept = [
        with_extra(extra, "peer", peer).decode() if peer and peer != one else extra
        for one, peer, extra in zip(found, peers, extras, strict=True)
    ]
    extra = fields["extra"] if "extra" in fields.columns else nothing
    return fields.with_columns(
        address.scatter(odd, pl.Series(found, dtype=pl.String)).alias("address"),
        extra.scatter(odd, pl.Series(kept, dtype=pl.String)).alias("extra"),
    )


@lru_cache(64)
def _expressions(schema: tuple[tuple[str, pl.DataType], ...]) -> list[pl.Expr]:
    """The columns of a click and its reason, from fields with these names and types."""
    types = dict(schema)

    def text(name: str) -> pl.Expr:
        if name not in types:
            return pl.lit(None, dtype=pl.String)
        return pl.col(name) if types[name] == pl.String else pl.col(name).cast(pl.String)

    path, query = text("path"), text("query").str.strip_prefix("?")
    if "query" in types:
        is_apart = ~query.is_in(["", "-"]) & ~path.str.contains("?", literal=True)
        path = pl.when(is_apart).then(path + "?" + query).otherwise(path)
    agents = [text("user_agent")]
    if "user_agent_plus" in types:
        agents.append(pl.col("user_agent_plus").str.replace_all("+", " ", literal=True))
    if "user_agent_percent" in types:
        agents.append(pl.col("user_agent_percent").map_elements(unquote, pl.String))
    status, size, address = text("status"), text("bytes"), text("address")
    has_status = ~status.is_in(_NO_STATUS)
    seconds = [pl.col(name) * scale for name, scale in _SCALES.items() if name in types]
    known = [pl.when((one >= 0) & one.is_finite()).then(one) for one in seconds]
    is_odd = ~address.str.contains(_ADDRESS) | (address.str.len_bytes() > ADDRESS_BYTES_MAX)
    has_time = pl.col("has_time").fill_null(False) if "has_time" in types else pl.lit(False)
    time = pl.col("time") if "has_time" in types else pl.lit(None, dtype=pl.Int64)
    reasons = (
        (~has_time, "the time is missing"),
        (time.is_null(), "the time is not a time"),
        (is_odd, "the address is neither an IP address nor a name"),
        (has_status & ~status.str.contains(_STATUS), "the status is not three digits"),
        (~(size.str.contains(_SIZE) | (size == "-")), "the size is not a number"),
    )
    reason = text("reason")
    for is_wrong, why in reasons:
        reason = pl.coalesce(reason, pl.when(is_wrong).then(pl.lit(why)))
    columns = {
        "time": time,
        **{name: text(name) for name in ("address", "user", "vhost", "method", "protocol")},
        "path": path,
        "page": path.str.splitn("?", 2).struct.field("field_0"),
        "status": pl.when(has_status).then(status.cast(pl.Int32, strict=False)),
        "bytes": size.cast(pl.Int64, strict=False).fill_null(0),
        "referer": text("referer"),
        "user_agent": pl.coalesce(*agents),
        "duration": pl.coalesce(*known) if known else pl.lit(None, dtype=pl.Float64),
        "misfits": pl.col("misfits") if "misfits" in types else pl.lit(0, dtype=pl.Int32),
        "reason": reason,
    }
    others = [name for name in types if name not in _OURS and name not in (*columns, "has_time")]
    return [*(one.alias(name) for name, one in columns.items()), *map(pl.col, others)]


def _without_origin(page: pl.Expr) -> pl.Expr:
    """The page of a proxy's `http://host/path`: only its path, at least "/"."""
    bare = page.str.replace(_ORIGIN, "")
    return pl.when(page.str.starts_with("/")).then(page).otherwise(bare.replace("", "/"))
