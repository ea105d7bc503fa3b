"""The console scripts: each loads its program, with Ctrl-C as it is for programs of any language.

Loading takes some tenths of a second, and Python's answer to Ctrl-C in them is a traceback. Here it
ends the program without a word, until that has its own answer, and again once it has ended. A
program that SIGHUP does not end, as it reloads or reopens something then, is not ended by it either
before it can do so.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from importlib import import_module


def _script(module: str, name: str = "main", *, heeds_hangups: bool = False) -> Callable[..., int]:
    """A program's function, of a module that is loaded when it is called."""

    def run(arguments: Sequence[str] | None = None) -> int:
        # One that is ignored (a script's &) is left so.
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
