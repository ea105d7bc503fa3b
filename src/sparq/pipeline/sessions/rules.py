"""The rules of `spam_analysis`: read from TOML, checked, and turned into polars expressions.

1. `read_rules` checks everything on empty tables with the real columns, before a query starts. A
   mistake is a RulesError: one sentence that names the place in the file.
2. `Rules` has only texts and numbers, so it is pickled and compared by value. Each process makes
   the expressions once (`Compiled`).
3. Click columns that no expression uses are not stored in the state (`Compiled.kept`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import polars as pl
import pyarrow as pa

from sparq.pipeline.enrich import KINDS
from sparq.pipeline.expressions import parse, type_of, typed
from sparq.program.mistakes import Mistake, suggestion

SHIPPED = Path(__file__).with_name("rules.toml")
KIND = pl.Enum(KINDS)
NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")

CLICK: dict[str, Any] = {
    "visitor": pl.Int64,
    "second": pl.Int64,
    "kind": KIND,
    "page": pl.String,
    "id": pl.UInt64,
}
"""Columns of a click in the state: hash of its visitor, event time since 1970, `id` of its
message. Columns that the rules use follow."""

GAPS: dict[str, Any] = {"gap": pl.Int64, "same_gap": pl.Int64}

VISIT: dict[str, Any] = {
    **dict.fromkeys(("address", "user_agent", "robot", "entry", "exit"), pl.String),
    **dict.fromkeys(("first_second", "last_second", "seconds"), pl.Int64),
    **dict.fromkeys(("clicks", "pages", "assets"), pl.Int64),
    "late": pl.Boolean,
    "site_assets": pl.Float64,
}
"""Columns of every visit that rules may use; those of [columns] and [windows] are added."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class RulesError(Mistake):
    """A rule file is wrong; the text is one sentence."""


# The tables of a rule file. What their keys mean is said in rules.toml.


class Visit(msgspec.Struct, frozen=True):
    """The table [visit]: `clicks_max` and `held_max` are counts, the others seconds."""

    visitor: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    gap: Positive
    clicks_max: Positive
    late_wait: Positive
    held_max: Positive
    judge_every: Positive


class Window(msgspec.Struct, frozen=True):
    """A column of a visit: the largest number of its clicks within some time."""

    where: str
    seconds: int
    same: str = ""
    enabled: bool = True


class Rule(msgspec.Struct, frozen=True):
    """A rule about a visit."""

    when: str
    amount: str = "clicks"
    ended: bool = False
    about: str = ""
    enabled: bool = True


PARTS: dict[str, Any] = {
    "visit": Visit,
    "kinds": Literal[KINDS],
    "clicks": str | Literal[False],
    "columns": str | Literal[False],
    "windows": Window,
    "rules": Rule,
}
"""The tables of a rule file: what each is or, for those to which users may add, has."""


@dataclass(frozen=True)
class Rules:
    """A checked rule file; pairs of a name and its content.

    Attributes:
        types: the columns of a click before packing: names, and their types in Arrow.
    """

    visit: Visit
    kinds: tuple[tuple[str, str], ...]
    clicks: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    windows: tuple[tuple[str, Window], ...]
    rules: tuple[tuple[str, Rule], ...]
    types: pa.Schema


def read_rules(path: str | Path | None, columns: pa.Schema) -> Rules:
    """Read and check the shipped rules, with a user's file laid over them, if there is one.

    `columns` are those of a click (`click_schema`).

    Raises:
        RulesError: the file cannot be read, or is wrong.
    """
    held, file = shipped(), str(path or SHIPPED.name)
    if path:
        try:
            own = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RulesError(f"--rules={path} cannot be read: {error}") from None
        _lay_over(held, own)
    try:
        parts = {name: _typed(name, content) for name, content in held.items()}
        rules = Rules(**parts, types=columns)
        _check(rules)
    except ValueError as error:
        raise RulesError(f"{file}: {error}") from None
    return rules


def shipped() -> dict[str, Any]:
    """The content of the shipped file."""
    return tomllib.loads(SHIPPED.read_text(encoding="utf-8"))


REASONS = {name: rule["about"] for name, rule in shipped()["rules"].items()}
"""The reasons of findings by the shipped rules, with what they say, for people."""


def _lay_over(held: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Put the user's keys over the shipped ones, table by table."""
    for key, value in own.items():
        if isinstance(held.get(key), dict) and isinstance(value, dict):
            _lay_over(held[key], value)
        else:
            held[key] = value


def _typed(name: str, content: Any) -> Any:
    """A table of the file with types; of those to which users may add, what is switched on."""
    if name not in PARTS:
        raise ValueError(f"{name} is unknown{suggestion(name, PARTS)}")
    kind = PARTS[name]
    if kind is Visit:
        return typed(content, kind, name)
    found = []
    for key, value in typed(content, dict[str, Any], name).items():
        if name != "kinds" and not NAME.fullmatch(key):
            raise ValueError(f"{name}.{key} must have a name of a-z, 0-9 and _")
        one = typed(value, kind, f"{name}.{key}")
        if one is not False and getattr(one, "enabled", True):
            found.append((key, one))
    return tuple(found)


class Compiled:
    """The expressions of `Rules`, made once in a process.

    Attributes:
        clicks: columns of a click, by name.
        columns: aggregates over the clicks of a visit.
        windows: which clicks count for each window, with the window.
        rules: for each rule, when it holds, the amount of evidence, and `ended`.
    """

    def __init__(self, rules: Rules) -> None:
        self.settings = rules
        self.clicks = {name: parse(text) for name, text in rules.clicks}
        self.columns = {name: parse(text) for name, text in rules.columns}
        self.windows = [(name, parse(one.where), one) for name, one in rules.windows]
        self.rules = [
            (name, parse(one.when), parse(one.amount), one.ended) for name, one in rules.rules
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
        columns = _raw(self.settings).with_columns(**self.clicks).schema
        return {name: columns[name] for name in columns if name in self.used and name not in CLICK}

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The columns of a message that packing needs."""
        names = {"time", "address", "user_agent", "page", "reason", *self.settings.visit.visitor}
        for name in self.kept:
            names |= set(self.clicks[name].meta.root_names()) if name in self.clicks else {name}
        return tuple(name for name in self.settings.types.names if name in names)


@lru_cache(maxsize=8)
def compiled(rules: Rules) -> Compiled:
    """The expressions of these rules."""
    return Compiled(rules)


def _check(rules: Rules) -> None:
    """Check each expression on an empty table with the columns that it may use."""
    raw = _raw(rules)
    for name in rules.visit.visitor:
        if name not in raw.columns:
            raise ValueError(
                f"visit.visitor: a click has no column {name}{suggestion(name, raw.columns)}"
            )
    click = dict(raw.schema) | CLICK | GAPS
    for name, text in rules.clicks:
        _add(click, name, _type_of(raw, text, f"clicks.{name}"), f"clicks.{name}: a click")
    clicks, visit = pl.DataFrame(schema=click), dict(VISIT)
    for name, text in rules.columns:
        kind = _type_of(clicks, text, f"columns.{name}", aggregate=True)
        _add(visit, name, kind, f"columns.{name}: a visit")
    for name, window in rules.windows:
        place = f"windows.{name}"
        _type_of(clicks, window.where, f"{place}.where", pl.Boolean)
        _add(visit, name, pl.Int64, f"{place}: a visit")
        if window.same:
            _type_of(clicks, window.same, f"{place}.same")
            visit[f"{name}_of"] = pl.String
    visits = pl.DataFrame(schema=visit)
    for name, rule in rules.rules:
        _type_of(visits, rule.when, f"rules.{name}.when", pl.Boolean)
        amount = _type_of(visits, rule.amount, f"rules.{name}.amount")
        if not amount.is_numeric():
            raise ValueError(f"rules.{name}.amount must be a number, and is of type {amount}")


def _raw(rules: Rules) -> pl.DataFrame:
    """The columns that expressions of [clicks] may use, without rows."""
    found = pl.from_arrow(rules.types.empty_table())
    assert isinstance(found, pl.DataFrame)
    return found.drop("reason").with_columns(kind=pl.lit("page", KIND))


def _add(columns: dict[str, Any], name: str, kind: Any, place: str) -> None:
    if name in columns:
        raise ValueError(f"{place} has a column of this name already")
    columns[name] = kind


def _type_of(
    empty: pl.DataFrame, text: str, place: str, wanted: Any = None, *, aggregate: bool = False
) -> pl.DataType:
    """The type of an expression; ValueError with its place if it is wrong or has another type."""
    try:
        found = type_of(empty, text, aggregate=aggregate)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if wanted is not None and found != wanted:
        raise ValueError(f"{place} must be true or false, and is of type {found}")
    return found
