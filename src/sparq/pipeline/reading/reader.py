"""A batch of messages -> a table of clicks, one row for each message, in their order.

1. Lines and JSON are read separately, usual lines of each format together. What they have in common
   (requests, addresses, numbers) is then read the same way for all of them, by polars expressions.
2. No message raises an error. What is no click has a `reason`, and null in all other columns.
3. Nothing is lost: a value that is in no column is in `extra`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.addresses import Network, visitor
from sparq.pipeline.reading.formats import FIELDS
from sparq.pipeline.reading.json import JsonReader, encode, series
from sparq.pipeline.reading.lines import LineReader, Rows, request_parts
from sparq.pipeline.reading.own_columns import own_columns, with_extra
from sparq.pipeline.reading.schema import Reading, click_schema
from sparq.pipeline.reading.times import all_micros

_ADDRESS: Final = r"^[0-9A-Za-z._:%\[\]-]+$"
ADDRESS_BYTES_MAX: Final = 255
_ORIGIN: Final = r"^(?i:https?)://[^/]*"
_STATUS: Final = r"^[0-9]{3}$"
_NO_STATUS: Final = ("-", "", "0", "-1")
_SIZE: Final = r"^[0-9]{1,18}$"
_EMPTY: Final = ("-", "")  # what a line has in place of a value
_SCALES: Final = {"duration": 1.0, "duration_ms": 1e-3, "duration_us": 1e-6, "duration_ns": 1e-9}
_OURS: Final = frozenset(FIELDS.values())

Part = tuple[Rows, pl.DataFrame]
"""Messages that were read together: their numbers in the batch, and their fields.

Fields are those of a click as texts or numbers, `time` in microseconds, and `format`, `extra`,
`reason`, `misfits` and the user's columns. Any may be missing.
"""


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
        _, fields = parts[0]
        if len(parts) > 1:
            fields = pl.concat([part for _, part in parts], how="diagonal_relaxed")
            order = np.concatenate([rows for rows, _ in parts])
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

    def _parts(self, bodies: pa.BinaryArray) -> Iterator[Part]:
        rows = np.arange(len(bodies))
        is_json = np.full(len(bodies), self._lines is None)
        if self._lines is not None and self._json is not None and len(bodies):
            is_json = pc.starts_with(bodies, "{").to_numpy(zero_copy_only=False)
        if self._lines is not None and not is_json.all():
            lines = rows[~is_json]
            texts = _texts(bodies.filter(pa.array(~is_json)) if is_json.any() else bodies)
            left = np.ones(len(lines), bool)
            for some, name, fields in self._lines.read(texts):
                left[some] = False
                yield self._of_lines(lines[some], name, fields)
            reasons: dict[int, str] = {}
            for row, text in zip(lines[left], texts.filter(pl.Series(left)), strict=True):
                if self._json is not None and text.lstrip(" \t\r\n")[:1] == "{":
                    is_json[row] = True
                else:
                    reasons[row] = self._lines.mistake(text.rstrip("\r\n"))
            if reasons:
                yield np.array(list(reasons)), pl.DataFrame({"reason": [*reasons.values()]})
        if self._json is not None and is_json.any():
            some = rows[is_json]
            for found in self._json.read(bodies.take(pa.array(some)).to_pylist()):
                places = some[list(found.rows)]
                if found.format is None:
                    why = pl.repeat("the JSON is not one valid object", len(places), eager=True)
                    yield places, pl.DataFrame({"reason": why})
                else:
                    yield self._part(places, found.format, found.fields, found.own, found.extras)

    def _of_lines(self, rows: Rows, name: str, fields: dict[str, pl.Series]) -> Part:
        """Lines of a format."""
        ours = {FIELDS[key]: one for key, one in fields.items() if key in FIELDS}
        others = {
            FIELDS.get(key, key): one.to_list()
            for key, one in fields.items()
            if key not in self._own
            and FIELDS.get(key, "forwarded") == "forwarded"
            and not one.is_in(_EMPTY).fill_null(True).all()
        }
        extras: list[bytes | None] = []
        for texts in zip(*others.values(), strict=True):
            pairs = zip(others, texts, strict=True)
            found = {key: text for key, text in pairs if text is not None and text not in _EMPTY}
            extras.append(encode(found) if found else None)
        own = {
            self._own[key]: [None if text in _EMPTY else text for text in one]
            for key, one in fields.items()
            if key in self._own
        }
        if "date" in ours:
            day = ours["date"] + " " + ours["clock"]
            ours["time"] = ours["time"].fill_null(day) if "time" in ours else day
        return self._part(rows, name, ours, own, extras)

    def _part(
        self,
        rows: Rows,
        name: str,
        fields: Mapping[str, Sequence[Any] | pl.Series],
        own: Mapping[str, Sequence[Any]],
        extras: list[bytes | None],
    ) -> Part:
        columns = {
            key: one if isinstance(one, pl.Series) else series(one, key)
            for key, one in fields.items()
            if key != "time"
        }
        columns["format"] = pl.repeat(name, len(rows), eager=True)
        if "time" in fields:
            times = list(fields["time"])
            micros = all_micros(times)
            columns["time"] = pl.Series(micros, dtype=pl.Int64)
            if None in micros:
                why = {True: "the time is missing", False: "the time is not a time"}
                pairs = zip(times, micros, strict=True)
                reasons = [why[text is None] if one is None else None for text, one in pairs]
                columns["reason"] = pl.Series(reasons, dtype=pl.String)
        else:
            columns["reason"] = pl.repeat("the time is missing", len(rows), eager=True)
        if self._own:
            extras = extras or [None] * len(rows)
            empty = {name: [None] * len(rows) for name in self._reading.own}
            columns |= own_columns({**empty, **own}, extras, self._reading)
        if extras:
            columns["extra"] = pl.Series(extras, dtype=pl.Binary).cast(pl.String)
        return rows, pl.DataFrame(columns)


def _texts(bodies: pa.BinaryArray) -> pl.Series:
    """Messages as texts; invalid UTF-8 is replaced."""
    try:
        return pl.Series(bodies.cast(pa.string()))
    except pa.ArrowInvalid:
        return pl.Series([one.decode("utf-8", "replace") for one in bodies.to_pylist()])


def _with_requests(fields: pl.DataFrame) -> pl.DataFrame:
    """Add method, path and protocol of the request lines, where they are not given."""
    if "request" not in fields.columns:
        return fields
    parts = request_parts(fields["request"])
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
    seconds = [
        pl.col(name).cast(pl.Float64, strict=False) * scale
        for name, scale in _SCALES.items()
        if name in types
    ]
    known = [pl.when((one >= 0) & one.is_finite()).then(one) for one in seconds]
    is_odd = ~address.str.contains(_ADDRESS) | (address.str.len_bytes() > ADDRESS_BYTES_MAX)
    reasons = (
        (is_odd, "the address is neither an IP address nor a name"),
        (has_status & ~status.str.contains(_STATUS), "the status is not three digits"),
        (~(size.str.contains(_SIZE) | (size == "-")), "the size is not a number"),
    )
    reason = text("reason")
    for is_wrong, why in reasons:
        reason = pl.coalesce(reason, pl.when(is_wrong).then(pl.lit(why)))
    columns = {
        "time": pl.col("time") if "time" in types else pl.lit(None, dtype=pl.Int64),
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
    others = [name for name in types if name not in _OURS and name not in columns]
    return [*(one.alias(name) for name, one in columns.items()), *map(pl.col, others)]


def _without_origin(page: pl.Expr) -> pl.Expr:
    """The page of a proxy's `http://host/path`: only its path, at least "/"."""
    bare = page.str.replace(_ORIGIN, "")
    return pl.when(page.str.starts_with("/")).then(page).otherwise(bare.replace("", "/"))
