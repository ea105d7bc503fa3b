"""Tests mirror the source: each module has one test file, named after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
SOURCES = {"bench": ROOT / "bench", "proofs": ROOT / "proofs", "support": TESTS / "support"}
"""Test folders whose modules are not in `src/sparq`."""
WITHOUT = {
    "log/task.py": "two types, without behavior of their own",
    "nsqadmin/services.py": "a record of the parts that the routes share",
    "nsqadmin/watch/rows.py": "records, which the tests of every list fill",
}
"""Modules without a test file, with the reason."""


def test_each_test_file_is_named_after_a_module() -> None:
    """Each test file outside `tests/scenarios` is named after a module."""
    strangers = [str(path.relative_to(TESTS)) for path in _test_files() if not _module(path)]

    assert [] == strangers


def test_each_module_has_a_test_file() -> None:
    """Each module except `__*__.py` has a test file, or a listed reason why not."""
    source = ROOT / "src" / "sparq"
    alone = [
        str(module.relative_to(source))
        for module in sorted(source.rglob("*.py"))
        if not module.name.startswith("__")
        and not (TESTS / module.relative_to(source)).with_name(f"test_{module.name}").exists()
    ]

    assert sorted(WITHOUT) == alone


def _test_files() -> Iterator[Path]:
    for path in sorted(TESTS.rglob("test_*.py")):
        if path.relative_to(TESTS).parts[0] != "scenarios":
            yield path


def _module(path: Path) -> bool:
    """Whether the module, or the package, of a test file exists."""
    place = path.relative_to(TESTS)
    source = SOURCES.get(place.parts[0])
    folder = source / Path(*place.parts[1:-1]) if source else ROOT / "src" / "sparq" / place.parent
    name = path.stem.removeprefix("test_")
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()
