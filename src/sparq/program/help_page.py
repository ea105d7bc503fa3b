"""The page that `--help` prints. This module is loaded only when the page is requested."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparq.program.flag_types import BOOL

if TYPE_CHECKING:
    from sparq.program.flags import Flag


def page(program: str, flags: Sequence[Flag]) -> str:
    """Format every flag with its type, help text and default, in alphabetical order."""
    parser = argparse.ArgumentParser(prog=program, usage=f"{program} [flags]", add_help=False)
    for flag in sorted(flags):
        parser.add_argument(
            f"--{flag.name}",
            dest=flag.field,
            metavar="" if flag.kind is BOOL else flag.kind.name,
            help=_help(flag),
        )
    return parser.format_help()


def _help(flag: Flag) -> str:
    if flag.repeated:
        shown = ", ".join(flag.kind.show(value) for value in flag.default)
        text = f"{flag.help} (may be given several times)"
    else:
        shown = "" if flag.default is None else flag.kind.show(flag.default)
        text = flag.help
    return (f"{text} (default {shown})" if shown else text).replace("%", "%%")
