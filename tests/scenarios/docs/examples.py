"""The programs of a page of docs/, and the output of each.

A program is a block of Python; the plain block after it is its output.
"""

from __future__ import annotations

import importlib
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparq.tools.command_line import parse
from tests.scenarios.docs.running import Result, run_sparq

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(
    r"^## (?P<title>[^\n]*)$"
    r"|^```python\n(?P<text>.*?)^```\n\n```\n(?P<output>.*?)^```$",
    re.M | re.S,
)
PYTHON = re.compile(r"^```python$", re.M)
SHOWS_A_FAILURE = ("raise ValueError", '127.0.0.1:1"')
"""Text of programs that show a failure, and therefore may write log lines to stderr."""
DAEMONS = ("nsqd", "nsqlookupd")
CONCURRENT_PROGRAMS = 4


@dataclass(frozen=True)
class Example:
    """A program of a page.

    Attributes:
        title: its heading, and its number in the page.
        text: the program.
        output: what it prints.
    """

    title: str
    text: str
    output: str

    @property
    def shows_a_failure(self) -> bool:
        """Whether the program shows a failure, which the log reports."""
        return any(word in self.text for word in SHOWS_A_FAILURE)


def examples(page: str) -> list[Example]:
    """The programs of a page, in order."""
    found: list[Example] = []
    title = ""
    for block in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        if block["title"]:
            title = block["title"]
        else:
            found.append(Example(f"{title}, {len(found)}", block["text"], block["output"]))
    return found


def count_of_programs(page: str) -> int:
    """The number of blocks of Python in a page, with an output or without."""
    return len(PYTHON.findall((DOCS / page).read_text(encoding="utf-8")))


def run_all(page: str, addresses: dict[str, str], folder: Path) -> dict[str, Result]:
    """Run each program of the page, several at the same time; returns the results by title.

    The addresses in the programs are replaced by those of the test's daemons.
    """

    def ran(example: Example) -> Result:
        place = folder / example.title.replace(" ", "_")
        place.mkdir()
        text = example.text
        for written, real in addresses.items():
            text = text.replace(written, real)
        return run_sparq(text, example.output, place, waits="SIGINT" in text)

    programs = examples(page)
    with ThreadPoolExecutor(CONCURRENT_PROGRAMS) as pool:
        outcomes = pool.map(ran, programs)
        return {program.title: found for program, found in zip(programs, outcomes, strict=True)}


def command_lines(page: str) -> dict[str, list[str]]:
    """The indented command lines of tools in a page, by tool, without redirections."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^    (?:sparq )?(\w+) (--[^<>\n]*)", text, re.M)
    return {name: shlex.split(words) for name, words in found if name not in DAEMONS}


def is_accepted(name: str, words: list[str]) -> bool:
    """Whether a tool accepts these flags."""
    tool = importlib.import_module(f"sparq.tools.{name}")
    return isinstance(parse(tool.Options, tool.PROGRAM, words), tool.Options)
