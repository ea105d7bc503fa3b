"""A few cases of each pair of twins; every module that works with arrays has a plain twin."""

import ast
from collections.abc import Iterator
from pathlib import Path

from proofs.equal import PAIRS, prove
from proofs.outcome import Plan
from proofs.twins_elsewhere import ELSEWHERE

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "log", "broker", "inspection", "migration")
TYPES = frozenset(["int64", "uint8", "uint16", "uint32", "uint64", "integer", "bool_", "bytes_"])
"""Types of numpy: naming one does not count as working with arrays."""


def test_the_twins_agree_and_wrong_ones_are_found() -> None:
    """The twins' results are equal; the control's wrong functions differ from their twins."""
    outcome = prove(Plan(seed=20261121, count=40 * len(PAIRS)))

    assert outcome.held, f"{outcome.figures} {outcome.control}"
    assert f"pairs {len(PAIRS)} · differences 0" in outcome.figures


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Return the name and syntax tree of each module of the core."""
    for package in PACKAGES:
        for path in sorted((ROOT / "src" / "sparq" / package).glob("*.py")):
            yield f"{package}.{path.stem}", ast.parse(path.read_text())


def works_with_arrays(node: ast.AST) -> bool:
    """Whether a function uses numpy other than for a type."""
    return any(
        isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id == "np"
        and part.attr not in TYPES
        for function in ast.walk(node)
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
        for part in ast.walk(statement)
    )


def test_every_module_with_arrays_is_compared_with_plain_code() -> None:
    """Each such module is checked by a pair of this proof, or by a test that ELSEWHERE names."""
    paired = {pair.name.rsplit(".", 2 if ".InFlight." in pair.name else 1)[0] for pair in PAIRS}
    used = {name for name, text in modules() if works_with_arrays(text)}

    assert used - paired - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() & paired == set()
    assert ELSEWHERE.keys() - used == set()
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []


def test_every_scalar_function_has_a_pair() -> None:
    """Each public `_scalar` or `_few` function of sparq is compared with its sibling here."""
    siblings = {
        f"{name}.{node.name.removesuffix('_scalar').removesuffix('_few')}"
        for name, text in modules()
        for node in text.body
        if isinstance(node, ast.FunctionDef)
        and node.name.endswith(("_scalar", "_few"))
        and not node.name.startswith("_")
    }

    assert "protocol.batch.encode_frames" in siblings
    assert siblings - {pair.name for pair in PAIRS} == set()
