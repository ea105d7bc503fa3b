"""Converts docstrings to Markdown.

The format is that of sparq's code: prose, indented examples after `::`, and the sections Args,
Returns, Yields, Raises and Attributes. Their entries are `name: text`, with continuation lines that
are indented deeper.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

END = "Returns:"
"""Added after the last line, so that the last section is processed like the others."""
SECTIONS = ("Args", "Returns", "Yields", "Raises", "Attributes")
HEAD = re.compile(rf"^({'|'.join(SECTIONS)}):$")
ENTRY = re.compile(r"^(\*{0,2}[\w., ]+): (.*)$")


@dataclass
class Docstring:
    """The parts of a docstring.

    Attributes:
        prose: the text before the sections, as Markdown.
        sections: for each section its entries as (name, text); "" as name for plain text.
    """

    prose: str
    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def bullet(name: str, text: str) -> str:
    """An entry as a list item."""
    return f"- `{name}`: {text}" if name else f"- {text}"


def read(text: str) -> Docstring:
    """Parse a docstring."""
    found = Docstring("")
    block: list[str] = []
    section = ""
    for line in [*inspect.cleandoc(text).splitlines(), END]:
        head = HEAD.match(line)
        if head is None:
            block.append(line)
            continue
        if section:
            found.sections[section] = list(entries(block))
        else:
            found.prose = prose(block)
        section, block = head[1], []
    return found


def entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The entries of a section: each begins at a line without further indentation."""
    block = textwrap.dedent("\n".join(lines)).strip()
    for text in re.split(r"\n(?=\S)", block):
        joined = " ".join(text.split())
        named = ENTRY.match(joined)
        yield (named[1], code(named[2])) if named else ("", code(joined))


def prose(lines: list[str]) -> str:
    """Paragraphs, with the indented text after `::` as Python code."""
    parts: list[str] = []
    for part in re.split(r"\n{2,}(?=\S)", "\n".join(lines).strip()):
        text, mark, example = part.partition("::\n\n")
        said = code(text.rstrip() + (":" if mark and text.strip() else ""))
        parts += [said] if said else []
        parts += [fenced(textwrap.dedent(example))] if mark else []
    return "\n\n".join(parts)


def fenced(example: str) -> str:
    """A block of Python."""
    return f"```python\n{example.strip()}\n```"


def code(text: str) -> str:
    """Replace the double backticks of code by Markdown's single ones."""
    return text.replace("``", "`")
