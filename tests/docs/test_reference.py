"""docs/api.md and docs/tools.md: what the code says now; and how docstrings become Markdown."""

from __future__ import annotations

import re

import pytest

from docs import docstrings, reference

SHORT = re.compile(r"^(#{3,4} [^\n]*)\n+(?:```python\n[^`]*\n```\n+)?(?=#|\Z)", re.M | re.S)


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    """`make docs` would write the very same."""
    written = (reference.HERE / name).read_text(encoding="utf-8")

    assert reference.PAGES[name]() == written, f"docs/{name} is not current: run 'make docs'"


def test_no_public_name_is_without_a_word() -> None:
    """Every class, function, method and property of the API says what it is."""
    page = reference.page_of_the_api()

    assert page.count("\n#### ") > 50
    assert [] == SHORT.findall(page)


def test_no_option_and_no_flag_is_without_a_word() -> None:
    """The last cell of every table's line says something."""
    lines = [line for page in reference.PAGES.values() for line in page().splitlines()]
    rows = [line for line in lines if line.startswith("| `")]

    assert len(rows) > 100
    assert [] == [row for row in rows if row.endswith("|  |") or not row.endswith("|")]


def test_every_program_has_its_flags_in_the_page() -> None:
    """Each tool of the project is listed; `sparq` itself and the daemons have `--help`."""
    assert {"nsq_tail", "nsq_stat", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq"} <= set(
        reference.tools()
    )


def test_a_docstring_is_taken_apart() -> None:
    """Prose, an example, and a section whose entry goes on over two lines."""
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


def made(*names: str, first: dict[str, int] | None = None, **others: str) -> None:
    """A function to be shown."""


async def awaited(self: object, text: str = "a, b") -> None:
    """A method to be shown."""


def test_a_signature_is_shown_as_it_is_called() -> None:
    """Without `self`, with `await`, and in lines of its own when it is long."""
    assert reference.signature("awaited", awaited) == (
        '```python\nawait awaited(text: str = "a, b") -> None\n```'
    )
    assert reference.signature("made" * 10, made).splitlines()[2:5] == [
        "    *names: str,",
        "    first: dict[str, int] | None = None,",
        "    **others: str,",
    ]
