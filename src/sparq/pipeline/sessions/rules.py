"""The rules of `spam_analysis`: read from TOML, checked, and turned into polars expressions.

A mistake is one sentence that names the place in the file, before a query starts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import polars as pl
import pyarrow as pa

from sparq.options.mistakes import Mistake, suggestion
from sparq.pipeline.enrich import KINDS
from sparq.pipeline.expressions import checked, typed

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

EXPRESSION = str | Literal[False]
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
    """How clicks become visits."""

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


PARTS = ("visit", "kinds", "clicks", "columns", "windows", "rules")


@dataclass(frozen=True, slots=True)
class Rules:
    """A checked rule file; picklable."""

    visit: Visit
    kinds: tuple[tuple[str, str], ...]  # kind of a path by its ending
    clicks: dict[str, pl.Expr]  # columns of a click
    columns: dict[str, pl.Expr]  # aggregates over the clicks of a visit
    windows: list[tuple[str, pl.Expr, Window]]  # with the clicks that count
    rules: list[tuple[str, pl.Expr, pl.Expr, bool]]  # when it holds, amount of evidence, `ended`
    kept: dict[str, pl.DataType]  # click columns that some rule uses: they are in the state
    needed: tuple[str, ...]  # columns of a message that packing needs


def read_rules(path: str | Path | None, columns: pa.Schema) -> Rules:
    """Read and check the shipped rules, with a user's file laid over them, if there is one.

    `columns` are those of a click. Raises RulesError.
    """
    content, file = shipped(), str(path or SHIPPED.name)
    if path:
        try:
            own = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RulesError(f"--rules={path} cannot be read: {error}") from None
        _lay_over(content, own)
    try:
        for name in content:
            if name not in PARTS:
                raise ValueError(f"{name} is unknown{suggestion(name, PARTS)}")
        return rules_of(content, columns)
    except ValueError as error:
        raise RulesError(f"{file}: {error}") from None


def shipped() -> dict[str, Any]:
    """The content of the shipped file."""
    return tomllib.loads(SHIPPED.read_text(encoding="utf-8"))


REASONS = {name: rule["about"] for name, rule in shipped()["rules"].items()}


def _lay_over(held: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Put the user's keys over the shipped ones, table by table."""
    for key, value in own.items():
        if isinstance(held.get(key), dict) and isinstance(value, dict):
            _lay_over(held[key], value)
        else:
            held[key] = value


def _entries(content: Mapping[str, Any], part: str, kind: Any) -> dict[str, Any]:
    """What is switched on of a table of the file, each of this type."""
    found = {}
    for name, value in typed(content[part], dict[str, Any], part).items():
        if part != "kinds" and not NAME.fullmatch(name):
            raise ValueError(f"{part}.{name} must have a name of a-z, 0-9 and _")
        one = typed(value, kind, f"{part}.{name}")
        if one is not False and getattr(one, "enabled", True):
            found[name] = one
    return found


def rules_of(content: Mapping[str, Any], columns: pa.Schema) -> Rules:
    """Check each expression on an empty table with the columns that it may use, before a start."""
    limits = typed(content["visit"], Visit, "visit")
    raw = pl.DataFrame(pl.from_arrow(columns.empty_table())).drop("reason")
    raw = raw.with_columns(kind=pl.lit("page", KIND))
    for name in limits.visitor:
        if name not in raw.columns:
            raise ValueError(
                f"visit.visitor: a click has no column {name}{suggestion(name, raw.columns)}"
            )
    click, clicks, aggregates = dict(raw.schema) | CLICK | GAPS, {}, {}
    for name, text in _entries(content, "clicks", EXPRESSION).items():
        clicks[name], kind = checked(raw, text, f"clicks.{name}")
        _add(click, name, kind, f"clicks.{name}: a click")
    empty, visit, windows, rules = pl.DataFrame(schema=click), dict(VISIT), [], []
    for name, text in _entries(content, "columns", EXPRESSION).items():
        aggregates[name], kind = checked(empty, text, f"columns.{name}", aggregate=True)
        _add(visit, name, kind, f"columns.{name}: a visit")
    for name, window in _entries(content, "windows", Window).items():
        where, _ = checked(empty, window.where, f"windows.{name}.where", pl.Boolean)
        windows.append((name, where, window))
        _add(visit, name, pl.Int64, f"windows.{name}: a visit")
        if window.same:
            checked(empty, window.same, f"windows.{name}.same")
            visit[f"{name}_of"] = pl.String
    visits = pl.DataFrame(schema=visit)
    for name, rule in _entries(content, "rules", Rule).items():
        when, _ = checked(visits, rule.when, f"rules.{name}.when", pl.Boolean)
        amount, kind = checked(visits, rule.amount, f"rules.{name}.amount")
        if not kind.is_numeric():
            raise ValueError(f"rules.{name}.amount must be a number, and is of type {kind}")
        rules.append((name, when, amount, rule.ended))
    used = {window.same for _, _, window in windows}
    for one in (*aggregates.values(), *(where for _, where, _ in windows)):
        used.update(one.meta.root_names())
    kept = {name: kind for name, kind in click.items() if name in used - CLICK.keys() - GAPS.keys()}
    needed = {"time", "address", "user_agent", "page", "reason", *limits.visitor}
    for name in kept:
        needed.update(clicks[name].meta.root_names() if name in clicks else [name])
    kinds = tuple(_entries(content, "kinds", Literal[KINDS]).items())
    needed_names = tuple(name for name in columns.names if name in needed)
    return Rules(limits, kinds, clicks, aggregates, windows, rules, kept, needed_names)


def _add(columns: dict[str, Any], name: str, kind: Any, place: str) -> None:
    if name in columns:
        raise ValueError(f"{place} has a column of this name already")
    columns[name] = kind
