"""`--version` of a program whose command line argparse reads."""

from __future__ import annotations

import argparse
from typing import NoReturn

from sparq.program.saying import said
from sparq.program.version import version_line


class VersionAction(argparse.Action):
    """Prints the line as it is: argparse's own action breaks it at the terminal's width."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs=0,
            default=argparse.SUPPRESS,
            help="print the version and exit",
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print it and end."""
        raise SystemExit(0 if said(f"{version_line(parser.prog)}\n") else 1)
