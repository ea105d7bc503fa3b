"""docs/tour.md, the tour of the message path, shows the current code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
TOUR: Final = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
STEP: Final = re.compile(
    r"^## \d+\. (?P<title>.+?)\n.*?\]\(\.\./(?P<path>src/[\w/.]+)\).*?```python\n(?P<code>.*?)```",
    re.MULTILINE | re.DOTALL,
)
STEPS: Final = [(step["title"], step["path"], step["code"]) for step in STEP.finditer(TOUR)]
STEPS_MIN: Final = 15
LINES_MAX: Final = 18


def lines(text: str) -> list[str]:
    """The lines of a text without their indentation, which excerpts lack."""
    return [line.strip() for line in text.rstrip().splitlines()]


def is_within(part: list[str], whole: list[str]) -> bool:
    """Whether these lines are consecutive lines of `whole`."""
    size = len(part)
    return any(whole[at : at + size] == part for at in range(len(whole) - size + 1))


@pytest.mark.parametrize(("path", "code"), [step[1:] for step in STEPS])
def test_an_excerpt_is_in_its_source_file(path: str, code: str) -> None:
    """Each excerpt of up to 18 lines is in the file that the tour names."""
    excerpt = lines(code)

    assert 1 < len(excerpt) <= LINES_MAX
    assert is_within(excerpt, lines((ROOT / path).read_text(encoding="utf-8")))


def test_every_step_has_a_file_and_an_excerpt() -> None:
    """Every step of the tour has a file and an excerpt, which the test above compares."""
    titles = re.findall(r"^## \d+\. (.+)$", TOUR, re.MULTILINE)

    assert titles == [title for title, _, _ in STEPS]
    assert len(titles) >= STEPS_MIN
