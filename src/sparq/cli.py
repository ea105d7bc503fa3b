"""The program `sparq` and its commands.

`run` and `up` start nsqds and the pipeline, `pipeline` runs the pipeline on existing nsqds and any
Spark cluster, `report` makes a page from its tables, `forget` deletes a visitor from them, `top`
shows a cluster live, `admin` manages a cluster, `token` makes the tokens that the daemons accept.

Each command's modules are loaded when it is called: only the pipeline needs the extra `spark`.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final

from sparq.options.declare import option
from sparq.options.kinds import INT
from sparq.options.mistakes import Mistake, one_of, shown, suggestion
from sparq.program import flags
from sparq.program.stdout import version_line, write_stdout

SEEDS = 100_000
COMMANDS: Final = {
    "run": "start a cluster, send clicks through it into Spark, and audit the result",
    "up": "like run, but keeps running and accepts your own clicks",
    "pipeline": "run the pipeline on existing nsqds and any Spark cluster",
    "report": "make a page about the clicks of any period from the pipeline's tables",
    "forget": "delete an address or a visitor from the pipeline's tables",
    "top": "live view of a cluster in the terminal",
    "admin": "manage topics, channels, nodes and messages of a cluster from scripts",
    "token": "make, list and remove the tokens of a token file",
}
MAINS: Final = {
    "pipeline": ("sparq.pipeline.command", "main"),
    "report": ("sparq.pipeline.report.command", "main"),
    "forget": ("sparq.pipeline.forget", "main"),
    "top": ("sparq.tools.commands", "top"),
    "admin": ("sparq.tools.commands", "admin"),
    "token": ("sparq.daemon.access.command", "main"),
}
"""The functions of commands that parse their own flags; those of `run` and `up` are here."""


def _count(text: str) -> int:
    return int(INT.parse(text.replace(",", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Options of `sparq up`."""

    data: str = option("", "output directory (default: that of --config, or data)")
    config: str = option(
        "", "settings file of sparq pipeline: format, columns, metrics, rules and so on"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(UpOptions):
    """Options of `sparq run`."""

    clicks: str = option(
        "", "access log or JSON lines to send, plain or .gz (default: generated clicks)"
    )
    count: int = option(
        200_000, "number of clicks to generate", kind=INT._replace(parse=_count), least=1
    )
    seed: int | None = option(None, "random seed of the generated clicks (default: a new one)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return the exit status.

    0: success; 1: the audit or the run failed, or the arguments are not valid; 130: interrupted.
    """
    name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or [""]
    if name in MAINS:
        module, function = MAINS[name]
        return int(getattr(import_module(module), function)(rest))
    if name in COMMANDS:
        options_class = RunOptions if name == "run" else UpOptions
        about = f"{COMMANDS[name].capitalize()}.\n\n"
        options = flags.parse(options_class, f"sparq {name}", rest, about, takes_file=False)
        return flags.status_of(f"sparq {name}", lambda: _run_pipeline(options))
    if name in ("-h", "-help", "--help"):
        lines = "".join(f"  {each:10}{text}\n" for each, text in COMMANDS.items())
        about = "NSQ in Python. It picks up where NSQ leaves off, with a click pipeline."
        page = f"usage: sparq COMMAND [flags]\n\n{about}\n\ncommands (sparq COMMAND --help):\n"
        return int(not write_stdout(page + lines))
    if name in ("-version", "--version"):
        return int(not write_stdout(f"{version_line('sparq')}\n"))
    near = suggestion(name, COMMANDS) if name else ""
    what = f"unknown command {shown(name)}" if name else "a command is missing"
    raise flags.exit_after_mistake(
        "sparq", f"{what}{near or f': use {one_of(COMMANDS)}'}", is_daemon=False
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End a run, with everything that it started, on Ctrl-C or SIGTERM."""
    raise KeyboardInterrupt


def _run_pipeline(options: UpOptions) -> int:
    """Run `run` or `up`, the commands that need Spark."""
    pipeline = import_module("sparq.pipeline.run.command")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    data = (Path(options.data) if options.data else pipeline.data_of(options.config)).resolve()
    if not isinstance(options, RunOptions):
        return int(pipeline.up(data, options.config))
    clicks = Path(options.clicks) if options.clicks else None
    if clicks is not None and not clicks.is_file():
        raise Mistake(f"--clicks {options.clicks}: no such file")
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
    return int(pipeline.run(data, clicks, options.count, seed, options.config))


if __name__ == "__main__":
    sys.exit(main())
