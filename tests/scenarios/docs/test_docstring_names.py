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
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parents[3] / "src" / "sparq"
PATHS = sorted(SOURCES.rglob("*.py"))
WORD = re.compile(r"\w+").findall
QUOTED = re.compile(r"`{1,2}([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`{1,2}")
RAISED = re.compile(r"^ +([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
RAISES = re.compile(r"Raises:\n((?: +.*\n?)+)")
RAISES_INLINE = re.compile(r"\bRaises ((?:[A-Z]\w+(?:, | or )?)+):")
FILES = re.compile(r"\.(json|html|js|toml|md|py|txt)$")
FOREIGN = {
    *("spark", "jdk", "httptools", "prometheus_client", "pyspark_nsq", "StreamingQueryProgress"),
    *("lockf", "nohup", "ps", "optimize", "SSL_CERT_FILE", "traceparent", "tracestate"),
    *("StreamingQueryListener", "scan_delta", "to_pyarrow_dataset", "logasap"),
    *("messaging", "orders", "_x", "__", "tls_"),
}
"""Names of other programs and formats, examples of topics, and parts of names."""


class Contents(NamedTuple):
    """What a file contains.

    Attributes:
        names: all names that its code defines or uses.
        words: the words of its strings: keys, options, columns.
        prose: its docstrings and comments.
    """

    names: frozenset[str]
    words: frozenset[str]
    prose: tuple[str, ...]


@functools.cache
def contents(path: Path) -> Contents:
    """Parse a file. Tokens, not the tree: that took three times as long for the names."""
    text = path.read_text(encoding="utf-8")
    docstrings = {
        (node.lineno, node.col_offset): node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    names, words, comments = set(), set(), []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            names.add(token.string)
        elif "STRING" in tokenize.tok_name[token.type] and token.start not in docstrings:
            # Before Python 3.12, an f-string is one token: the names in its braces are words here.
            words.update(WORD(token.string))
        elif token.type == tokenize.COMMENT:
            comments.append(token.string)
    return Contents(frozenset(names), frozenset(words), (*docstrings.values(), *comments))


@functools.cache
def known() -> frozenset[str]:
    """All names of the sources, words of their strings, modules, and names of Python."""
    modules = {part for path in PATHS for part in path.relative_to(SOURCES).with_suffix("").parts}
    python = {*dir(builtins), *sys.stdlib_module_names, *keyword.kwlist, "sparq"}
    found = [part for path in PATHS for part in contents(path)[:2]]
    return frozenset().union(modules, python, FOREIGN, *found)


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
    if len(parts) == 1 or parts[0] in contents(path).names:
        return ""
    if found := module(path, parts):
        lost = [part for part in found[1] if part not in contents(found[0]).names]
        return f"{found[0].relative_to(SOURCES)} has no {lost[0]}" if lost else ""
    is_class = parts[0][0].isupper()
    return "" if is_class else f"{parts[0]} is neither a module nor a name of this file"


def test_names_in_backticks_exist() -> None:
    """Each name in backticks is a name, a module or a word of a string in the sources."""
    found = [
        f"{path.relative_to(SOURCES)}: `{name}`: {why}"
        for path in PATHS
        for text in contents(path).prose
        for name in QUOTED.findall(text)
        if (why := mistake(path, name))
    ]
    assert found == []


def test_exceptions_in_docstrings_exist() -> None:
    """Each exception that a docstring says is raised is a name of the code or of Python."""
    raised = []
    for path in PATHS:
        for text in contents(path).prose:
            sections = "\n".join(RAISES.findall(text))
            listed = [*RAISED.findall(sections), *RAISES_INLINE.findall(text)]
            raised += [(path.name, name) for names in listed for name in WORD(names)]
    assert len(raised) > 300
    assert [] == [(path, name) for path, name in raised if name not in known()]
