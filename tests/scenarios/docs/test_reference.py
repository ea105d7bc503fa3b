"""docs/api.md and docs/tools.md are current; docstrings become Markdown."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from dataclasses import is_dataclass

import pytest
from docs import docstrings, reference

SHORT = re.compile(r"^(#{3,4} [^\n]*)\n+(?:```python\n[^`]*\n```\n+)?(?=#|\Z)", re.M | re.S)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_pages_are_current(name: str) -> None:
    """`make docs` would write the same page."""
    written = (reference.HERE / name).read_text(encoding="utf-8")

    assert reference.PAGES[name]() == written, f"docs/{name} is not current: run 'make docs'"


def test_every_public_name_has_a_docstring() -> None:
    """Every class, function, method and property of the API has a docstring."""
    page = reference.page_of_the_api()

    assert page.count("\n#### ") > 50
    assert [] == SHORT.findall(page)


def test_every_public_attribute_is_documented() -> None:
    """The docstring of a class explains each public attribute that it sets."""
    modules = [importlib.import_module(name) for name in reference.MODULES]
    values = [getattr(module, name) for module in modules for name in reference.public(module)]
    silent = [
        f"{value.__name__}.{name}"
        for value in filter(inspect.isclass, values)
        for name in own_attributes(value) - documented_attributes(value)
    ]

    assert [] == silent


def documented_attributes(value: type) -> set[str]:
    """The attributes documented by a class and its base classes."""
    texts = [owner.__doc__ or "" for owner in value.__mro__]
    return {name for text in texts for name in reference.documented(docstrings.read(text))}


def own_attributes(value: type) -> set[str]:
    """The public attributes that a class sets in `__init__`."""
    if "__init__" not in vars(value) or is_dataclass(value) or reference.is_protocol(value):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(vars(value)["__init__"])))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if node.attr[0] != "_"
    }


def test_every_option_and_flag_is_described() -> None:
    """The last cell of every row of the tables is not empty."""
    lines = [line for page in reference.PAGES.values() for line in page().splitlines()]
    rows = [line for line in lines if line.startswith("| `")]

    assert len(rows) > 100
    assert [] == [row for row in rows if row.endswith("|  |") or not row.endswith("|")]


def test_the_page_lists_every_programs_flags() -> None:
    """The page lists each of NSQ's tools; `sparq` itself and the daemons have `--help`."""
    assert {"nsq_tail", "nsq_stat", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq"} <= set(
        reference.tools()
    )


def test_a_docstring_is_split_into_sections() -> None:
    """A docstring is split into prose, examples, and sections whose entries may span lines."""
    found = docstrings.read(
        """Does ``this``.

        Like so::

            one(
                two)

        Then that.

        Args:
            one: the first, which
                goes on.
            two, three: others.
        Raises:
            ValueError: it is not.
        """
    )

    assert found.prose.split("\n\n") == [
        "Does `this`.",
        "Like so:",
        "```python\none(\n    two)\n```",
        "Then that.",
    ]
    assert found.sections == {
        "Args": [("one", "the first, which goes on."), ("two, three", "others.")],
        "Raises": [("ValueError", "it is not.")],
    }
    assert found.markdown(without=("Args",)).endswith("*Raises*\n\n- `ValueError`: it is not.")


def example_function(*names: str, first: dict[str, int] | None = None, **others: str) -> None:
    """An example of a function."""


async def example_method(self: object, text: str = "a, b") -> None:
    """An example of a method."""


def test_a_signature_is_shown_as_it_is_called() -> None:
    """A signature has no `self`, has `await` if async, and is split over lines if long."""
    assert reference.signature("example_method", example_method) == (
        '```python\nawait example_method(text: str = "a, b") -> None\n```'
    )
    assert reference.signature("made" * 10, example_function).splitlines()[2:5] == [
        "    *names: str,",
        "    first: dict[str, int] | None = None,",
        "    **others: str,",
    ]
