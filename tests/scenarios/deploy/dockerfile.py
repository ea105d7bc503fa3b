"""Parses deploy/Dockerfile: its stages and their instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCKERFILE = Path(__file__).parents[3] / "deploy" / "Dockerfile"
INSTRUCTION = re.compile(r"^([A-Z]+) (.*)$", re.M)
STAGE = re.compile(r"(\S+)(?: AS (\S+))?")


@dataclass(frozen=True)
class Stage:
    """A stage of the file.

    Attributes:
        origin: the image or the stage that it starts from.
        steps: its instructions, each with its arguments.
    """

    origin: str
    steps: list[tuple[str, str]]

    def of(self, instruction: str) -> list[str]:
        """The arguments of each instruction of this name."""
        return [words for name, words in self.steps if name == instruction]


def instructions() -> list[tuple[str, str]]:
    """All instructions, each on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M)
    return INSTRUCTION.findall(re.sub(r"\\\n\s*", "", text))


def stages() -> dict[str, Stage]:
    """The stages by name."""
    found: dict[str, Stage] = {}
    steps: list[tuple[str, str]] = []
    for name, words in instructions():
        if name == "FROM":
            heading = STAGE.fullmatch(words)
            assert heading is not None, words
            steps = []
            found[heading[2]] = Stage(heading[1], steps)
        else:
            steps.append((name, words))
    return found
