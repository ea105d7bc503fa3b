"""Makes mutants: copies of modules with one small change. Runs in .venvs/mutants, with cosmic-ray.

Standard input has the request, standard output the mutants, both as JSON:

1. A package's places are chosen at random with the seed, then one change at each place.
2. A change swaps an operator for one that is easily confused with it, negates a condition, skips a
   loop, changes a number by one, or replaces an exception's name. Each changes what runs: those in
   annotations and those that no longer compile are left out.
3. Assertions are not changed: a weaker assertion passes every test that the right one passes.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

SWAPS = (
    "Add_Sub Sub_Add Mul_FloorDiv FloorDiv_Mul Div_Mul Mod_FloorDiv Pow_Mul RShift_LShift"
    " LShift_RShift BitOr_BitAnd BitAnd_BitOr BitXor_BitOr"
)
COMPARISONS = (
    "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_GtE GtE_Lt Gt_LtE LtE_Gt Is_IsNot IsNot_Is"
)
OPERATORS = (
    *(f"core/ReplaceBinaryOperator_{swap}" for swap in SWAPS.split()),
    *(f"core/ReplaceComparisonOperator_{swap}" for swap in COMPARISONS.split()),
    *("core/ReplaceUnaryOperator_Delete_Not", "core/ReplaceUnaryOperator_USub_UAdd"),
    *("core/AddNot", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd"),
    *("core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/NumberReplacer"),
    *("core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak"),
    *("core/ZeroIterationForLoop", "core/ExceptionReplacer"),
)
"""Of the changes that cosmic-ray knows, those that a programmer may make by mistake."""

Place = tuple[int, int]
"""Line and column."""


class Change(NamedTuple):
    """One of cosmic-ray's operators at one of its places in a module."""

    operator: str
    occurrence: int


def changes(text: str) -> dict[Place, list[Change]]:
    """The changes of a module, by place."""
    found: dict[Place, list[Change]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(text)))
    left_out = list(unchanged(ast.parse(text)))
    for name in OPERATORS:
        operator = get_operator(name)()
        places = (place for node in nodes for place, _ in operator.mutation_positions(node))
        for occurrence, place in enumerate(places):
            if not any(begin <= place < end for begin, end in left_out):
                found[place].append(Change(name, occurrence))
    return found


def unchanged(tree: ast.AST) -> Iterator[tuple[Place, Place]]:
    """Where nothing is changed: annotations and assertions."""
    for node in ast.walk(tree):
        parts: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.Assert):
            parts.append(node)
        for part in parts:
            if part is not None:
                end = part.end_lineno or part.lineno, part.end_col_offset or part.col_offset
                yield (part.lineno, part.col_offset), end


def mutants(paths: list[Path], count: int, chance: random.Random) -> tuple[list[object], int]:
    """Mutants of these modules, and the number of places that were there to choose from."""
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    places = [
        (path, place, those)
        for path, text in texts.items()
        for place, those in sorted(changes(text).items())
    ]
    total = len(places)
    chance.shuffle(places)
    found: list[object] = []
    for path, place, those in places:
        if len(found) == count:
            break
        change = chance.choice(those)
        text = mutate_code(texts[path], get_operator(change.operator)(), change.occurrence)
        if text is not None and differs(text, texts[path]):
            found.append({"path": str(path), "line": place[0], "text": text})
    return found, total


def differs(text: str, original: str) -> bool:
    """Whether it compiles to something else."""
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(original))
    except SyntaxError:
        return False


def main() -> None:
    """Answer a request: {"seed", "packages": {name: [paths]}, "counts": {name: count}}."""
    request = json.load(sys.stdin)
    chance = random.Random(request["seed"])
    found: list[object] = []
    totals: Counter[str] = Counter()
    for package, paths in request["packages"].items():
        made, totals[package] = mutants(
            [Path(path) for path in paths], request["counts"][package], chance
        )
        found += made
    json.dump({"mutants": found, "places": totals}, sys.stdout)


if __name__ == "__main__":
    main()
