"""The start of any daemon: command line, essential resources, then the slow imports.

Mistakes are reported, such as ports that are taken, within a tenth of a second: before slow modules
(event loop, arrays, HTTP) are imported. The server accepts connections once they are loaded.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

from sparq.daemon.options import LoggingOptions
from sparq.program import flags, lifecycle
from sparq.program import logging as log_lines
from sparq.program.stdout import version_line

T = TypeVar("T")

logger = logging.getLogger(__name__)


def main(
    program: str,
    options_class: type[T],
    begin: Callable[[T], object],
    server: str,
    arguments: Sequence[str] | None,
) -> int:
    """Run a daemon and return its exit status.

    Args:
        program: its name.
        options_class: its options.
        begin: locks and opens the essential resources, or raises `StartError`.
        server: the module imported after `begin`. Its coroutine `serve` runs the daemon; it gets
            the options, the result of `begin`, a function that reads the options again, and the
            event that stops the daemon.
        arguments: the command line without the program; None: that of the process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    version = version_line(program)
    options = flags.parse(options_class, program, words)
    # Not `options.log`: T is any daemon's class of options, of which mypy knows no attribute.
    log: LoggingOptions = attrgetter("log")(options)
    level = log_lines.chosen_level(log.level, log.verbose)
    log_lines.set_up(log.prefix, level, log.format, utc=log.utc, repeats=log.repeats)
    logger.info("%s", version)
    try:
        beginning = begin(options)
        serve = lifecycle.load(server).serve
    except lifecycle.StartError as error:
        lifecycle.say_why(program, error)
        return 1
    read_again = partial(flags.parse_again, options_class, program, words)
    return lifecycle.run(program, lambda stop: serve(options, beginning, read_again, stop))
