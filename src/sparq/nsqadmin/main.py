"""The program `nsqadmin`: its command line and the socket that listens.

A mistake is told, and the port is open, before anything heavy is loaded (event loop, HTTP, pages).
`server.serve` does the rest.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from sparq.daemon import address
from sparq.nsqadmin.options import Options, check
from sparq.program import flags, lifecycle
from sparq.program import logging as log_lines
from sparq.program.version import version_line

PROGRAM = "nsqadmin"

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    version = version_line(PROGRAM)
    options = flags.parse(Options, PROGRAM, version, words)
    log_lines.set_up(options.log_prefix, log_lines.chosen_level(options.log_level, options.verbose))
    logger.info("%s", version)
    lifecycle.end_on_signals()
    try:
        check(options)
        listener = address.listen(options.http_address)
    except (address.ListenError, lifecycle.StartError) as error:
        lifecycle.say_why(PROGRAM, lifecycle.StartError(str(error)))
        return 1
    serve = import_module("sparq.nsqadmin.server").serve
    read_again = partial(flags.parse_again, Options, PROGRAM, words)
    return lifecycle.run(PROGRAM, lambda stop: serve(options, listener, read_again, stop))
