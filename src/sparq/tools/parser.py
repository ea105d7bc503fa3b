"""Command lines that argparse reads: of `sparq`, which has commands, and of `nsq_check`."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from sparq.program.saying import said, version_line


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one sentence; usage comes when it is asked for.

    Attributes:
        mistake_status: the exit status after a mistake.
    """

    mistake_status = 1

    def error(self, message: str) -> NoReturn:
        """End the program."""
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(self.mistake_status)


class VersionAction(argparse.Action):
    """Prints the line as it is: argparse's own action breaks it at the terminal's width."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        text = "print the version and exit"
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=text)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print it and end."""
        raise SystemExit(0 if said(f"{version_line(parser.prog)}\n") else 1)
