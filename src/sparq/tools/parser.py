"""Command lines parsed with argparse: those of `sparq`, which has commands, and of `nsq_check`."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from sparq.program.stdout import version_line, write_stdout


class ToolParser(argparse.ArgumentParser):
    """An argparse parser that reports a mistake as one sentence; only `--help` prints the usage.

    Attributes:
        mistake_status: the exit status after a mistake.
    """

    mistake_status = 1

    def error(self, message: str) -> NoReturn:
        """Write the message to stderr and exit with `mistake_status`."""
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(self.mistake_status)


class VersionAction(argparse.Action):
    """Prints the version line unchanged; argparse's own action wraps it at the terminal's width."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        text = "print the version and exit"
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=text)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the version and exit."""
        raise SystemExit(0 if write_stdout(f"{version_line(parser.prog)}\n") else 1)
