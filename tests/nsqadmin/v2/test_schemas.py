"""Schemas of the API's answers, and conversion of values to JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from sparq.nsqadmin.v2.schemas import SCHEMAS, name_of, of_dataclass, of_type, plain
from sparq.nsqadmin.watch.rows import ChannelRow, Reader


@dataclass(frozen=True)
class Example:
    """Fields of every kind that the API shows."""

    name: str
    rate: float | None
    state: Literal["up", "gone"]
    lookupds: tuple[str, ...]
    reader: Reader | None


def test_a_field_has_the_schema_of_its_type() -> None:
    """An object has exactly its fields; other dataclasses are referenced by name."""
    found = of_dataclass(Example)

    assert {
        "name": {"type": "string"},
        "rate": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "state": {"enum": ["up", "gone"]},
        "lookupds": {"type": "array", "items": {"type": "string"}},
        "reader": {"anyOf": [{"$ref": "#/components/schemas/Reader"}, {"type": "null"}]},
    } == found["properties"]
    assert (["name", "rate", "state", "lookupds", "reader"], False) == (
        *(found["required"], found["additionalProperties"]),
    )
    assert "Channel" == name_of(ChannelRow)
    with pytest.raises(TypeError, match="no schema"):
        of_type(complex)


def references(schema: Any) -> set[str]:
    """The names that a schema refers to."""
    if isinstance(schema, dict):
        own = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
        return own.union(*map(references, schema.values()))
    return set().union(*map(references, schema)) if isinstance(schema, list) else set()


def test_every_reference_has_its_schema() -> None:
    """Each `$ref` in the OpenAPI document has a schema."""
    assert references(SCHEMAS) <= SCHEMAS.keys()
    assert references(SCHEMAS)


def test_values_are_those_of_json() -> None:
    """Infinity and NaN become null, sets sorted lists."""
    shown = plain(
        {
            "lag": math.inf,
            "rates": (1.5, math.nan, None),
            "nodes": frozenset({"b", "a"}),
            "reader": Reader("h:1", commit_seconds=-math.inf),
        }
    )

    expected = {"address": "h:1", "query": "", "commit_seconds": None}
    assert {
        "lag": None,
        "rates": [1.5, None, None],
        "nodes": ["a", "b"],
        "reader": expected,
    } == shown
    assert json.dumps(shown, allow_nan=False)
