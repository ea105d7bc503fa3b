"""The names in backticks in docstrings and comments of the sources exist in the code."""

from __future__ import annotations

import ast
import builtins
import functools
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "src" / "sparq"
PATHS = sorted(SOURCES.rglob("*.py"))
QUOTED = re.compile(r"`{1,2}([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`{1,2}")
RAISED = re.compile(r"^ +([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
RAISES = re.compile(r"Raises:\n((?: +.*\n?)+)")
RAISES_INLINE = re.compile(r"\bRaises ((?:[A-Z]\w+(?:, | or )?)+):")
WORD = re.compile(r"\w+").findall
FILES = re.compile(r"\.(json|html|js|toml|md|py|txt)$")
FOREIGN = {
    *("spark", "jdk", "httptools", "prometheus_client", "pyspark_nsq", "StreamingQueryProgress"),
    *("lockf", "nohup", "ps", "optimize", "SSL_CERT_FILE", "traceparent", "tracestate"),
    *("messaging", "orders", "_x", "__", "tls_"),
}
"""Names of other programs and formats, examples of topics, and parts of names."""


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(code: ast.AST) -> Iterator[str]:
    """All names that code defines or uses."""
    for node in ast.walk(code):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name, asname=other):
                yield from (other or name).split(".")


def strings_in(code: ast.Module) -> Iterator[str]:
    """All strings that are not docstrings: keys, options, columns."""
    docstrings = {id(node.value) for node in ast.walk(code) if isinstance(node, ast.Expr)}
    for node in ast.walk(code):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a file."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
    lines = io.StringIO(path.read_text(encoding="utf-8")).readline
    for token in tokenize.generate_tokens(lines):
        if token.type == tokenize.COMMENT:
            yield token.string


@functools.cache
def names(path: Path) -> frozenset[str]:
    return frozenset(names_in(tree(path)))


@functools.cache
def known() -> frozenset[str]:
    """All names of the sources, words of their strings, modules, and names of Python."""
    words = {word for path in PATHS for text in strings_in(tree(path)) for word in WORD(text)}
    modules = {part for path in PATHS for part in path.relative_to(SOURCES).with_suffix("").parts}
    python = {*dir(builtins), *sys.stdlib_module_names, *keyword.kwlist, "sparq"}
    return frozenset().union(words, modules, python, FOREIGN, *map(names, PATHS))


def module(path: Path, parts: list[str]) -> tuple[Path, list[str]] | None:
    """The module that a dotted name begins with, seen from a file, and the names after it."""
    for folder in path.parents:
        if folder == SOURCES.parents[1]:
            break
        for count in range(len(parts), 0, -1):
            place = folder.joinpath(*parts[:count])
            for found in (place.with_suffix(".py"), place / "__init__.py"):
                if found.is_file():
                    return found, parts[count:]
    return None


def mistake(path: Path, name: str) -> str:
    """Why a name is not one of the code; empty: it is one."""
    parts = name.split(".")
    if FILES.search(name) or parts[0] in FOREIGN | sys.stdlib_module_names:
        return ""
    if lost := [part for part in parts if part not in known()]:
        return f"there is no {lost[0]}"
    if len(parts) == 1 or parts[0] in names(path):
        return ""
    if found := module(path, parts):
        lost = [part for part in found[1] if part not in names(found[0])]
        return f"{found[0].relative_to(SOURCES)} has no {lost[0]}" if lost else ""
    is_class = any(parts[0] in names(other) for other in PATHS) and parts[0][0].isupper()
    return "" if is_class else f"{parts[0]} is neither a module nor a name of this file"


def test_names_in_backticks_exist() -> None:
    """Each name in backticks is a name, a module or a word of a string in the sources."""
    found = [
        f"{path.relative_to(SOURCES)}: `{name}`: {why}"
        for path in PATHS
        for text in prose(path)
        for name in QUOTED.findall(text)
        if (why := mistake(path, name))
    ]
    assert found == []


def test_exceptions_in_docstrings_exist() -> None:
    """Each exception that a docstring says is raised is a name of its module or of Python."""
    raised = [
        (path, name)
        for path in PATHS
        for text in prose(path)
        for section in RAISES.findall(text)
        for listed in RAISED.findall(section)
        for name in listed.split(", ")
    ]
    raised += [
        (path, name)
        for path in PATHS
        for text in prose(path)
        for listed in RAISES_INLINE.findall(text)
        for name in WORD(listed)
        if name != "or"
    ]
    assert len(raised) > 300
    assert [] == [f"{path.name}: {name}" for path, name in raised if name not in known()]
