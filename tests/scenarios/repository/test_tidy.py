"""Checks of style: sizes, unfinished work, silenced checks, paths and hosts.

These are rules that ruff, mypy and import-linter cannot check. Each test lists every violation with
its place, so that one run shows them all.
"""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = ("src", "proofs", "bench", "locks", "docs", "tests")
SHIPPED = ("src", "proofs", "bench", "locks", "docs")
SKIPPED_FOLDERS = {"data", "build", "dist", "node_modules", "spark-warehouse", "__pycache__"}
HIDDEN = {".ci", ".importlinter", ".gitignore"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".in", ".json", ".js", ".cfg", ".ini", ".sh", ""}
FUNCTION_LINES_MAX = 70
# Split in two, so that this file passes its own check.
UNFINISHED = ["TODO", "FIXME", "XXX", "NotImplementedError", "placeholder", "for now"]
DISKLESS = ("protocol", "log", "broker", "migration")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code(*folders: str) -> list[Path]:
    """Every Python file in these folders."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not SKIPPED_FOLDERS & set(path.parts))


@cache
def texts() -> list[Path]:
    """Every text file of the project, including the hidden ones in HIDDEN."""
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if is_ours(name)]
        found += [Path(folder) / name for name in files if is_ours(name)]
    return sorted(path for path in found if path.suffix in TEXT_SUFFIXES and path.is_file())


def is_ours(name: str) -> bool:
    """Whether a file or folder belongs to the project: neither hidden nor generated."""
    hidden = name.startswith(".") and name not in HIDDEN
    return not hidden and name not in SKIPPED_FOLDERS and not name.endswith(".egg-info")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[tuple[Function, int]]:
    """Yield each function and the number of its lines, without its docstring."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
            yield node, (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def offending_lines(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{place(path, number)}: {line.strip()[:90]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def none_of(offenders: list[str]) -> None:
    """Fail and list all offenders, one per line; pytest's assertion would shorten the list."""
    if offenders:
        pytest.fail("\n" + "\n".join(offenders), pytrace=False)


def test_no_function_has_over_70_lines() -> None:
    """A function's body has at most 70 lines, without its docstring."""
    long = [
        f"{place(path, node.lineno)} {node.name}: {size} lines"
        for path in code(*CODE)
        for node, size in functions(path)
        if size > FUNCTION_LINES_MAX
    ]

    none_of(long)


def test_every_installation_is_of_our_package() -> None:
    """Installation commands name `sparq-mq`: `sparq` on PyPI is another project."""
    wrong = re.compile(r"pip3? install(?: -\S+)* ['\"]?sparq(?!-mq)\b|\bsparq" r"\[\w")

    none_of(offending_lines(texts(), wrong))


def test_no_code_is_marked_as_unfinished() -> None:
    """Shipped code contains no markers of unfinished work."""
    marked = re.compile(rf"\b({'|'.join(UNFINISHED)})\b")

    none_of(offending_lines(code(*SHIPPED), marked))


def test_every_suppressed_check_gives_its_reason() -> None:
    """Every suppressed check gives its reason on the same line."""
    marker = r"#\s*(?:no" r"qa|pragma|type:\s*ignore)"
    silenced = re.compile(marker + r"(?!.{0,40}?\s[-#(]+ ?\w.{7})")

    none_of(offending_lines(code(*CODE), silenced))


def test_only_the_disk_opens_files() -> None:
    """In protocol, log, broker and migration only log/disk.py calls open()."""
    openers = [
        place(path, node.lineno)
        for room in DISKLESS
        for path in code(f"src/sparq/{room}")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "open" and path.name != "disk.py"
    ]

    none_of(openers)


def test_no_file_contains_a_path_of_one_machine() -> None:
    """No file contains a path of somebody's working copy or home folder."""
    homes = rf"{re.escape(str(ROOT))}/|{re.escape(str(Path.home()))}/\w"
    machine = re.compile(homes + r"|(?<![\w.:/])/(?:home|Users|root|work)/\w")

    none_of(offending_lines(texts(), machine))


def test_no_lock_file_names_a_host() -> None:
    """Lock files pin versions and hashes, but contain no URL of a package index."""
    locks = [
        path
        for path in texts()
        if re.search(r"lock|requirements|constraints|pip\.conf|uv\.toml|npmrc", str(path.name))
        or path.parent.name == "locks"
    ]

    none_of(offending_lines([path for path in locks if path.suffix != ".py"], re.compile("://")))
    assert {"all.txt", "broker.txt", "build.txt"} <= {path.name for path in locks}
