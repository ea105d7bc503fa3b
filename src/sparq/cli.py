"""The program `sparq` and its commands.

`run` and `up` start nsqds and the pipeline, `pipeline` runs the pipeline on existing nsqds and any
Spark cluster, `report` makes a page from its tables, `forget` deletes a visitor from them, `top`
shows a cluster live, `admin` manages a cluster, `token` makes the tokens that the daemons accept.

Each command's modules are loaded when it is called: only the pipeline needs the extra `spark`.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType

from sparq.options.mistakes import one_of, shown, suggestion
from sparq.program.flags import end, status_of
from sparq.tools.parser import ToolParser, VersionAction

SEEDS = 100_000
TOOLS = {
    "top": "live view of a cluster in the terminal",
    "admin": "manage topics, channels, nodes and messages of a cluster from scripts",
    "token": "make, list and remove the tokens of a token file",
}
"""Commands that parse their own flags, in the style of NSQ's tools; see `sparq top --help`."""

COMMANDS = ("run", "up", "pipeline", "report", "forget", *TOOLS)
MODULES = {
    "pipeline": "sparq.pipeline.command",
    "report": "sparq.pipeline.report.command",
    "forget": "sparq.pipeline.forget",
    "token": "sparq.daemon.access.command",
}
"""The modules with the `main` of commands; the functions of the others are in tools.commands."""


def _count(text: str) -> int:
    try:
        value = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return value


def _refuse_unknown(word: str) -> None:
    """Exit with an error if the first word is not a flag and not a command."""
    if not word.startswith("-") and word not in COMMANDS:
        near = suggestion(word, COMMANDS) or f": use {one_of(COMMANDS)}"
        sentence = f"unknown command {shown(word)}{near}"
        raise end("sparq", sentence, is_daemon=False)


def parser() -> argparse.ArgumentParser:
    """Return the command line parser."""
    top = ToolParser(
        prog="sparq",
        description="NSQ in Python. It picks up where NSQ leaves off, with a click pipeline.",
    )
    top.add_argument("--version", action=VersionAction)
    names = " | ".join(COMMANDS)
    commands = top.add_subparsers(dest="command", required=True, metavar=names)
    run = commands.add_parser(
        "run", help="start a cluster, send clicks through it into Spark, and audit the result"
    )
    run.add_argument(
        "--clicks",
        type=Path,
        help="access log or JSON lines to send, plain or .gz (default: generated clicks)",
    )
    run.add_argument(
        "--count",
        type=_count,
        default=200_000,
        help="number of clicks to generate (default: 200,000)",
    )
    run.add_argument(
        "--seed", type=int, help="random seed of the generated clicks (default: a new one)"
    )
    up = commands.add_parser("up", help="like run, but keeps running and accepts your own clicks")
    for command in (run, up):
        command.add_argument(
            "--data", type=Path, help="output directory (default: that of --config, or data)"
        )
        command.add_argument(
            "--config",
            default="",
            help="settings file of sparq pipeline: format, columns, metrics, rules and so on",
        )
    own_flags = {
        "pipeline": "run the pipeline on existing nsqds and any Spark cluster",
        "report": "make a page about the clicks of any period from the pipeline's tables",
        "forget": "delete an address or a visitor from the pipeline's tables",
        **TOOLS,
    }
    for name, text in own_flags.items():
        commands.add_parser(name, help=text, add_help=False)
    return top


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End a run, with everything that it started, on Ctrl-C or SIGTERM."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return the exit status.

    0: success; 1: the audit or the run failed, or the arguments are not valid; 130: interrupted.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in MODULES:
        return int(import_module(MODULES[given[0]]).main(given[1:]))
    if given and given[0] in TOOLS:
        return int(getattr(import_module("sparq.tools.commands"), given[0])(given[1:]))
    if given:
        _refuse_unknown(given[0])
    words = parser()
    return _pipeline(words, words.parse_args(given))


def _pipeline(words: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run `run` or `up`, the commands that need Spark."""
    try:
        from sparq.pipeline.run import command as pipeline  # noqa: PLC0415 - needs `spark`
    except ModuleNotFoundError as error:
        words.error(f"{error.name} is missing: pip install 'sparq-mq[spark]'")
    if options.command == "run" and options.clicks is not None and not options.clicks.is_file():
        words.error(f"--clicks {options.clicks}: no such file")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)

    def work() -> int:
        data = (options.data or pipeline.data_of(options.config)).resolve()
        if options.command == "up":
            return pipeline.up(data, options.config)
        seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
        return pipeline.run(data, options.clicks, options.count, seed, options.config)

    return status_of(f"sparq {options.command}", work)


if __name__ == "__main__":
    sys.exit(main())
