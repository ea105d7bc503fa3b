"""The typed programs use the complete API, so that all of its types are checked.

`make types` checks them with the package's sources; tests/scenarios/deploy checks one with an
installed wheel.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from docs import reference

import sparq
import sparq.client
from sparq.client import telemetry

ROOT = Path(__file__).parents[3]
PROGRAMS = [Path(__file__).with_name(name) for name in ("program.py", "traced.py")]


def used() -> set[str]:
    """Return every name, attribute and keyword argument in the programs."""
    found: set[str] = set()
    for program in PROGRAMS:
        for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
    return found


def test_every_public_name_is_used() -> None:
    """The programs use every public name of `sparq`, `sparq.client` and the telemetry module."""
    public = {*sparq.__all__, *sparq.client.__all__, *reference.public(telemetry)}

    assert set() == public - used()


def test_every_member_of_every_class_is_used() -> None:
    """The programs use every public method and property, except four that are internal."""
    inside = {"drained", "split_dead_letter", "redirect", "observe"}
    classes = [getattr(sparq.client, name) for name in sparq.client.__all__]
    classes += [getattr(telemetry, name) for name in reference.public(telemetry)]
    members = {name for one in classes for name, _ in reference.members(one)}

    assert set() == members - used() - inside


def test_make_types_checks_it() -> None:
    """mypy checks this folder, and the code that the tests run only in part, in strict mode."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]

    assert mypy["strict"]
    assert {"sparq", "proofs", "bench", "tests.scenarios.typing"} == set(mypy["packages"])
