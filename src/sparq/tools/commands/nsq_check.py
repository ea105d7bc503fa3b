"""The command line of `nsq_check`: the one tool that takes a word that is no flag.

Its exit statuses are its own: 1 says that something is damaged, so that a mistake ends with 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sparq.tools.command_line import launch
from sparq.tools.version_action import VersionAction

FAILED = 2
"""It could not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What nsq_check is asked for."""

    data_path: str
    json: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A mistake is one sentence; usage comes when it is asked for."""
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(FAILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    parser = _Parser("nsq_check", description="check an nsqd's data path, offline")
    parser.add_argument("--version", action=VersionAction)
    parser.add_argument("data_path", help="nsqd's --data-path")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    wish = Wish(**vars(parser.parse_args(arguments)))
    return launch("sparq.tools.nsq_check", wish)
