"""The rules of `spam_analysis`: read from TOML, checked, and turned into polars expressions.

Rules are texts in polars' SQL (`polars.sql_expr`). It is a language that users of tables know, and
it is safe: a text becomes an expression tree and never runs as Python, which cannot be said of
polars expressions written as Python. Its only way out of a table is a subquery, such as
`(SELECT * FROM read_csv(...))`; so no text may contain the word SELECT or one of its relatives.

1. `read_rules` checks everything on empty tables with the real columns, before a query starts. A
   mistake is a RulesError: one sentence that names the place in the file.
2. `Rules` has only texts and numbers, so it is pickled and compared by value. Each process makes
   the expressions once (`Compiled`).
3. Click columns that no expression uses are not stored in the state (`Compiled.kept`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from sparq.pipeline.expressions import parse
from sparq.program.mistakes import Mistake, suggestion

SHIPPED = Path(__file__).with_name("rules.toml")
KINDS = pl.Enum(["page", "asset", "other"])
NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")

CLICK: dict[str, Any] = {
    "visitor": pl.Int64,
    "second": pl.Int64,
    "kind": KINDS,
    "page": pl.String,
    "id": pl.UInt64,
}
"""Columns of a click in the state: hash of its visitor, event time since 1970, `id` of its
message. Columns that the rules use follow."""

GAPS: dict[str, Any] = {"gap": pl.Int64, "same_gap": pl.Int64}

VISIT: dict[str, Any] = {
    "address": pl.String,
    "user_agent": pl.String,
    "robot": pl.String,
    "late": pl.Boolean,
    "first_second": pl.Int64,
    "last_second": pl.Int64,
    "seconds": pl.Int64,
    "clicks": pl.Int64,
    "pages": pl.Int64,
    "assets": pl.Int64,
    "entry": pl.String,
    "exit": pl.String,
    "site_assets": pl.Float64,
}
"""Columns of every visit that rules may use; those of [columns] and [windows] are added."""


class RulesError(Mistake):
    """A rule file is wrong; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Window:
    """A column of a visit: the largest number of its clicks within some time.

    Attributes:
        where: which clicks count.
        same: they must be equal in this column; empty: any clicks.
    """

    where: str
    seconds: int
    same: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about a visit.

    Attributes:
        when: whether it holds.
        amount: of evidence.
        ended: whether it is applied only when the visit is over.
        about: what it says, for people.
    """

    when: str
    amount: str = "clicks"
    ended: bool = False
    about: str = ""


@dataclass(frozen=True)
class Rules:
    """A checked rule file; texts, numbers, and pairs of a name and its content.

    Attributes:
        visitor: columns of a click that tell visitors apart.
        gap, late_wait, judge_every: seconds; `clicks_max`, `held_max`: counts. See rules.toml.
        asset, other: endings of paths; `other_paths`: a regular expression.
        types: the columns of a click before packing: names, and their types in Arrow.
    """

    visitor: tuple[str, ...]
    gap: int
    clicks_max: int
    late_wait: int
    held_max: int
    judge_every: int
    asset: tuple[str, ...]
    other: tuple[str, ...]
    other_paths: str
    clicks: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    windows: tuple[tuple[str, Window], ...]
    rules: tuple[tuple[str, Rule], ...]
    types: pa.Schema


def read_rules(path: str | Path | None, columns: pa.Schema) -> Rules:
    """Read and check the shipped rules, with a user's file laid over them.

    Args:
        path: the user's file; None or empty: only the shipped rules.
        columns: the columns of a click (`clicks.CLICK_SCHEMA`).

    Raises:
        RulesError: the file cannot be read, or is wrong.
    """
    held = shipped()
    if path:
        try:
            own = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RulesError(f"--rules={path} cannot be read: {error}") from None
        _lay_over(held, own, str(path), "")
    rules = _rules_of(held, str(path or SHIPPED.name), columns)
    _check(rules, str(path or SHIPPED.name))
    return rules


def shipped() -> dict[str, Any]:
    """The content of the shipped file."""
    return tomllib.loads(SHIPPED.read_text(encoding="utf-8"))


REASONS = {name: rule["about"] for name, rule in shipped()["rules"].items()}
"""The reasons of findings by the shipped rules, with what they say, for people."""

OPEN = ("clicks", "columns", "windows", "rules")  # tables to which a user's file may add
PARTS = {
    "windows": {"where": str, "seconds": int, "same": str, "enabled": bool},
    "rules": {"when": str, "amount": str, "ended": bool, "about": str, "enabled": bool},
}


def _lay_over(held: dict[str, Any], own: Mapping[str, Any], file: str, place: str) -> None:
    """Put the user's keys over the shipped ones, table by table."""
    table, _, part = place.partition(".")
    for key, value in own.items():
        where = f"{place}.{key}" if place else key
        known = PARTS.get(table, {}) if part else held
        if key not in known and not (table in OPEN and not part):
            raise RulesError(f"{file}: {where} is unknown{suggestion(key, known)}")
        if isinstance(held.get(key), dict) and isinstance(value, dict):
            _lay_over(held[key], value, file, where)
            continue
        expected = PARTS[table][key] if part else type(held[key]) if key in held else None
        if table in PARTS and not part:
            expected = dict
        if table in ("clicks", "columns"):
            expected = str if value is not False else bool
        if expected is not None and type(value) is not expected:
            raise RulesError(f"{file}: {where} must be {_WORDS[expected]}, not {value!r}")
        if table in OPEN and not part and not NAME.fullmatch(key):
            raise RulesError(f"{file}: {where} must have a name of a-z, 0-9 and _")
        held[key] = value
        if isinstance(value, dict):
            held[key] = {}
            _lay_over(held[key], value, file, where)


_WORDS = {
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def _rules_of(held: Mapping[str, Any], file: str, columns: pa.Schema) -> Rules:
    visit, kinds = held["visit"], held["kinds"]
    for name in ("gap", "clicks_max", "late_wait", "held_max", "judge_every"):
        if visit[name] < 1:
            raise RulesError(f"{file}: visit.{name} must be at least 1, not {visit[name]}")
    for table, needed in (("windows", ("where", "seconds")), ("rules", ("when",))):
        for name, content in held[table].items():
            for key in needed:
                if key not in content and content.get("enabled", True):
                    raise RulesError(f"{file}: {table}.{name} needs the key {key}")
    lists = {name: tuple(map(str, kinds[name])) for name in ("asset", "other")}
    return Rules(
        tuple(map(str, visit["visitor"])),
        visit["gap"],
        visit["clicks_max"],
        visit["late_wait"],
        visit["held_max"],
        visit["judge_every"],
        lists["asset"],
        lists["other"],
        kinds["other_paths"],
        tuple((name, text) for name, text in held["clicks"].items() if text is not False),
        tuple((name, text) for name, text in held["columns"].items() if text is not False),
        tuple((name, Window(**one)) for name, one in _enabled(held["windows"])),
        tuple((name, Rule(**one)) for name, one in _enabled(held["rules"])),
        columns,
    )


def _enabled(table: Mapping[str, dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, content in table.items():
        rest = dict(content)
        if rest.pop("enabled", True):
            yield name, rest


class Compiled:
    """The expressions of `Rules`, made once in a process.

    Attributes:
        clicks: columns of a click, by name.
        columns: aggregates over the clicks of a visit.
        windows: which clicks count for each window, with the window.
        rules: for each rule, when it holds and the amount of evidence.
    """

    def __init__(self, rules: Rules) -> None:
        self.settings = rules
        self.clicks = {name: expression(text) for name, text in rules.clicks}
        self.columns = {name: expression(text) for name, text in rules.columns}
        self.windows = [(name, expression(one.where), one) for name, one in rules.windows]
        self.rules = [
            (name, expression(one.when), expression(one.amount), one.ended)
            for name, one in rules.rules
        ]

    @cached_property
    def used(self) -> set[str]:
        """The click columns that a visit's columns and windows use."""
        made = [*self.columns.values(), *(where for _, where, _ in self.windows)]
        same = {window.same for _, _, window in self.windows if window.same}
        return same | {name for one in made for name in one.meta.root_names()}

    @cached_property
    def kept(self) -> dict[str, pl.DataType]:
        """The click columns that the state keeps besides those of CLICK, and their types."""
        empty = _raw(self.settings).with_columns(**self.clicks)
        return {
            name: kind
            for name, kind in empty.schema.items()
            if name in self.used and name not in CLICK
        }

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The columns of a message that packing needs."""
        names = {"time", "address", "user_agent", "page", "reason", *self.settings.visitor}
        names |= {name for name in self.kept if name not in self.clicks}
        for name, made in self.clicks.items():
            if name in self.kept:
                names |= set(made.meta.root_names())
        return tuple(name for name in self.settings.types.names if name in names)


@lru_cache(maxsize=8)
def compiled(rules: Rules) -> Compiled:
    """The expressions of these rules."""
    return Compiled(rules)


def expression(text: str) -> pl.Expr:
    """Parse an expression in polars' SQL.

    Raises:
        RulesError: it is not one, or contains a subquery.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise RulesError(str(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _check(rules: Rules, file: str) -> None:
    """Check each expression on an empty table with the columns that it may use."""
    raw = _raw(rules)
    for name in rules.visitor:
        if name not in raw.columns:
            close = suggestion(name, raw.columns)
            raise RulesError(f"{file}: visit.visitor: a click has no column {name}{close}")
    try:
        re.compile(rules.other_paths)
        pl.Series([""]).str.contains(rules.other_paths)
    except (re.error, pl.exceptions.ComputeError) as error:
        raise RulesError(f"{file}: kinds.other_paths: {_first_line(error)}") from None
    click = dict(raw.schema) | CLICK | GAPS
    for name, text in rules.clicks:
        if name in click:
            raise RulesError(f"{file}: clicks.{name}: a click has a column of this name already")
        click[name] = _type_of(raw, text, f"{file}: clicks.{name}")
    clicks = pl.DataFrame(schema=click)
    visit = dict(VISIT)
    for name, text in rules.columns:
        _new_name(name, visit, f"{file}: columns.{name}")
        visit[name] = _type_of(clicks, text, f"{file}: columns.{name}", aggregate=True)
    for name, window in rules.windows:
        place = f"{file}: windows.{name}"
        _new_name(name, visit, place)
        if window.same and window.same not in click:
            raise RulesError(
                f"{place}.same: no column {window.same}{suggestion(window.same, click)}"
            )
        _must_be(pl.Boolean, _type_of(clicks, window.where, f"{place}.where"), f"{place}.where")
        visit[name] = pl.Int64
        if window.same:
            visit[f"{name}_of"] = pl.String
    visits = pl.DataFrame(schema=visit)
    for name, rule in rules.rules:
        place = f"{file}: rules.{name}"
        _must_be(pl.Boolean, _type_of(visits, rule.when, f"{place}.when"), f"{place}.when")
        amount = _type_of(visits, rule.amount, f"{place}.amount")
        if not amount.is_numeric():
            raise RulesError(f"{place}.amount must be a number, and is of type {amount}")


def _raw(rules: Rules) -> pl.DataFrame:
    """The columns that expressions of [clicks] may use, without rows."""
    found = pl.from_arrow(rules.types.empty_table())
    assert isinstance(found, pl.DataFrame)
    return found.drop("reason").with_columns(kind=pl.lit("other", KINDS))


def _new_name(name: str, visit: Mapping[str, Any], place: str) -> None:
    if name in visit:
        raise RulesError(f"{place}: a visit has a column of this name already")


def _must_be(wanted: Any, found: pl.DataType, place: str) -> None:
    if found != wanted:
        raise RulesError(f"{place} must be true or false, and is of type {found}")


def _type_of(frame: pl.DataFrame, text: str, place: str, *, aggregate: bool = False) -> pl.DataType:
    """The type of an expression over a frame.

    Raises:
        RulesError: it is wrong, uses an unknown column or types that do not fit.
    """
    try:
        made = expression(text)
        for name in made.meta.root_names():
            if name not in frame.columns:
                raise RulesError(f"no column {name}{suggestion(name, frame.columns)}")
        if aggregate:
            found = frame.group_by(pl.lit(0)).agg(made.alias("it"))["it"].dtype
        else:
            # Two rows of nulls: an aggregate, which would give all rows one value, gives one row.
            column = frame.clear(2).select(made.alias("it"))["it"]
            found = column.dtype
            if len(column) == 1 and made.meta.root_names():
                raise RulesError("it may not aggregate")
    except RulesError as error:
        raise RulesError(f"{place}: {error}") from None
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise RulesError(f"{place}: {_first_line(error)}") from None
    if aggregate and isinstance(found, pl.List):
        raise RulesError(f"{place} gives a value for each click: it must aggregate them")
    return found
