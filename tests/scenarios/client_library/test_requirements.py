"""Every requirement names existing tests; every test of these files has a requirement."""

import ast
import importlib
import pkgutil
from functools import cache
from pathlib import Path

import pytest

from tests.scenarios.client_library import requirements
from tests.scenarios.client_library.requirements import Requirement

TESTS = Path(__file__).parents[2]
HERE = "scenarios/client_library"
PARTS = sorted(found.name for found in pkgutil.iter_modules(requirements.__path__))
FILES = (
    "test_connection.py",
    "test_consumer.py",
    "test_nsqd_sources.py",
    "test_producer.py",
    "test_rdy_and_backoff.py",
)
"""The files in which every test belongs to a requirement."""


@cache
def functions_in(file: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@cache
def starts_daemons(file: str) -> bool:
    """Whether a file's tests use real daemons, shared or separate."""
    text = (TESTS / file).read_text(encoding="utf-8")
    return "spawn_nsqd" in text or "shared_daemons" in text


def table(part: str) -> dict[str, Requirement]:
    """The requirements of one part, by name."""
    module = importlib.import_module(f"{requirements.__name__}.{part}")
    return dict(module.REQUIREMENTS)


@pytest.mark.parametrize("part", PARTS)
def test_every_requirement_has_a_test_against_real_daemons(part: str) -> None:
    """Each requirement names existing tests, at least one of them in a file that starts daemons."""
    missing = [
        f"{name}: {test}"
        for name, line in table(part).items()
        for test in line.tests
        if test.partition("::")[2] not in functions_in(test.partition("::")[0])
    ]
    unheld = [name for name, line in table(part).items() if not line.on_nsqd]
    unreal = [
        f"{name}: {test}"
        for name, line in table(part).items()
        for test in line.on_nsqd
        if not starts_daemons(test.partition("::")[0])
    ]

    assert [] == missing
    assert [] == unheld
    assert [] == unreal


@pytest.mark.parametrize("file", FILES)
def test_every_test_of_a_requirement_is_in_a_table(file: str) -> None:
    """Each test of these files is named by a requirement."""
    named = {test for part in PARTS for line in table(part).values() for test in line.tests}
    tests = {
        f"{HERE}/{file}::{name}"
        for name in functions_in(f"{HERE}/{file}")
        if name.startswith("test_")
    }

    assert set() == tests - named
