"""The options of a tool's command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sparq.program import flags

T = TypeVar("T")


def parse(options_class: type[T], program: str, arguments: Sequence[str]) -> T:
    """Parse a tool's options. Raises SystemExit: a mistake, or `--help`."""
    return flags.parse(options_class, program, arguments, takes_file=False)
