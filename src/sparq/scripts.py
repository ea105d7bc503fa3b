"""Console scripts: each loads and runs its program, and a signal ends it from the start.

Loading takes a few tenths of a second. Signals that arrive meanwhile end the program silently, a
daemon with status 0, until it installs handlers of its own; and again after its main function has
returned. Programs that reload or reopen files on SIGHUP ignore SIGHUP until their own handler is
installed: otherwise an early SIGHUP would end them. `python -m` runs these functions, too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from importlib import import_module

from sparq.program import early_signals


def _script(
    module: str, name: str = "main", *, is_daemon: bool = False, heeds_hangups: bool = False
) -> Callable[..., int]:
    """Return a function that loads the module when called and runs its function `name`."""

    def run(arguments: Sequence[str] | None = None) -> int:
        default = early_signals.default_action()
        handler = early_signals.end_with_success if is_daemon else default
        early_signals.install(handler)
        if is_daemon or heeds_hangups:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            main: Callable[[Sequence[str] | None], int] = getattr(import_module(module), name)
            return main(arguments)
        finally:
            early_signals.install(handler)

    return run


TOOLS = "sparq.tools.commands"

sparq = _script("sparq.cli")
nsqd = _script("sparq.nsqd.main", is_daemon=True)
nsqlookupd = _script("sparq.nsqlookupd.main", is_daemon=True)
nsqadmin = _script("sparq.nsqadmin.main", is_daemon=True)
nsq_check = _script(TOOLS, "nsq_check")
nsq_stat = _script(TOOLS, "nsq_stat")
nsq_tail = _script(TOOLS, "nsq_tail")
nsq_to_file = _script(TOOLS, "nsq_to_file", heeds_hangups=True)
nsq_to_http = _script(TOOLS, "nsq_to_http")
nsq_to_nsq = _script(TOOLS, "nsq_to_nsq")
to_nsq = _script(TOOLS, "to_nsq")
