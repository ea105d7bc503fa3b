"""Console scripts: each loads and runs its program, and Ctrl-C ends it without a traceback.

Loading takes a few tenths of a second, and Python answers Ctrl-C during that time with a traceback.
Here Ctrl-C ends the program silently until the program installs its own handler, and again after
its main function has returned. Programs that reload or reopen files on SIGHUP ignore SIGHUP until
their own handler is installed: otherwise an early SIGHUP would end them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from importlib import import_module


def _script(module: str, name: str = "main", *, heeds_hangups: bool = False) -> Callable[..., int]:
    """Return a function that loads the module when called and runs its function `name`."""

    def run(arguments: Sequence[str] | None = None) -> int:
        # A shell script that starts a program with & has it ignore SIGINT: keep it ignored.
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        handler = signal.SIG_IGN if is_ignored else signal.SIG_DFL
        signal.signal(signal.SIGINT, handler)
        if heeds_hangups:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            main: Callable[[Sequence[str] | None], int] = getattr(import_module(module), name)
            return main(arguments)
        finally:
            signal.signal(signal.SIGINT, handler)

    return run


TOOLS = "sparq.tools.commands"

sparq = _script("sparq.cli")
nsqd = _script("sparq.nsqd.main", heeds_hangups=True)
nsqlookupd = _script("sparq.nsqlookupd.main", heeds_hangups=True)
nsqadmin = _script("sparq.nsqadmin.main", heeds_hangups=True)
nsq_check = _script(TOOLS, "nsq_check")
nsq_stat = _script(TOOLS, "nsq_stat")
nsq_tail = _script(TOOLS, "nsq_tail")
nsq_to_file = _script(TOOLS, "nsq_to_file", heeds_hangups=True)
nsq_to_http = _script(TOOLS, "nsq_to_http")
nsq_to_nsq = _script(TOOLS, "nsq_to_nsq")
to_nsq = _script(TOOLS, "to_nsq")
