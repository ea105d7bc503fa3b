"""The typed program: it leaves out nothing of the API, so that its types are checked whole.

`make types` checks it with the package's sources, tests/deploy with an installed wheel.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import sparq
import sparq.client
from docs import reference

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
TREE = ast.parse(PROGRAM.read_text(encoding="utf-8"))


def used() -> set[str]:
    """Every name, attribute and keyword of the program."""
    found: set[str] = set()
    for node in ast.walk(TREE):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


def test_every_public_name_is_used() -> None:
    """All of `sparq` and `sparq.client`."""
    public = {*sparq.__all__, *sparq.client.__all__}

    assert set() == public - used()


def test_every_member_of_every_class_is_used() -> None:
    """Methods and properties; what only the library calls has a name that says so."""
    inside = {"redirect"}
    classes = [getattr(sparq.client, name) for name in sparq.client.__all__]
    members = {name for one in classes for name, _ in reference.members(one)}

    assert set() == members - used() - inside


def test_make_types_checks_it() -> None:
    """mypy is told of this folder, and is strict."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]

    assert mypy["strict"]
    assert "tests.typing" in mypy["packages"]
