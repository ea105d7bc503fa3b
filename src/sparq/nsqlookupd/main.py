"""The program `nsqlookupd`: its command line and the sockets that listen.

A mistake is told, and the ports are open, before anything heavy is loaded (event loop, HTTP).
`server.serve` does the rest.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from sparq.daemon import address
from sparq.nsqlookupd.options import Options
from sparq.program import flags, lifecycle
from sparq.program import logging as log_lines
from sparq.program.version import version_line

PROGRAM = "nsqlookupd"

logger = logging.getLogger(__name__)


def listen(options: Options) -> list[address.Listener]:
    """Open both listeners, TCP and HTTP.

    Raises:
        ListenError: an address cannot be had; then nothing listens.
    """
    tcp = address.listen(options.tcp_address)
    try:
        return [tcp, address.listen(options.http_address)]
    except address.ListenError:
        tcp.close()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    version = version_line(PROGRAM)
    options = flags.parse(Options, PROGRAM, version, words)
    log_lines.set_up(options.log_prefix, log_lines.chosen_level(options.log_level, options.verbose))
    logger.info("%s", version)
    lifecycle.end_on_signals()
    try:
        listeners = listen(options)
    except address.ListenError as error:
        lifecycle.say_why(PROGRAM, lifecycle.StartError(str(error)))
        return 1
    serve = import_module("sparq.nsqlookupd.server").serve
    read_again = partial(flags.parse_again, Options, PROGRAM, words)
    return lifecycle.run(PROGRAM, lambda stop: serve(options, listeners, read_again, stop))
