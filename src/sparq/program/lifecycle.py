"""A daemon from its first line to its exit status.

1. SIGINT and SIGTERM set one event; the daemon ends in its own order. Further signals change
   nothing, up to the very end: SIGKILL is for those in a hurry, and the log survives it. One that
   comes before there is an event loop ends the process with status 0, too.
2. A `StartError` is the one way to say "cannot start": logged as FATAL, exit status 1.
3. When a daemon has stopped, its process ends at once, without Python's own teardown: that takes
   up to two seconds for a large heap, and in it a second signal would kill the process.
4. This module loads the event loop only to run a daemon: one that cannot start says so before.
5. SIGHUP never ends a daemon: until `on_hangup` says what it does, it does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import asyncio

STOPPING = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger(__name__)

Serve: TypeAlias = "Callable[[asyncio.Event], Coroutine[Any, Any, None]]"


class StartError(Exception):
    """A daemon cannot start; the text is for its operator."""


class LoadError(StartError):
    """It cannot start for what its data path holds; the text says all."""


def end_on_signals() -> None:
    """Until `run` has its loop, have SIGINT and SIGTERM end the process at once, with status 0.

    For a daemon that listens already, and has nothing to put in order yet.
    """
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: _end_process())


def on_hangup(reload: Callable[[], None]) -> None:
    """Call this at each SIGHUP from now on, in the loop."""
    _loop().add_signal_handler(signal.SIGHUP, reload)


def _loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = import_module("asyncio").get_running_loop()
    return loop


def run(program: str, serve: Serve) -> int:
    """Run a daemon until a signal stops it; the process then ends with status 0.

    Args:
        program: its name in the log.
        serve: starts the daemon, waits for the event that it is given, and stops the daemon.
    Returns:
        The exit status 1: it could not start, and the log says why.
    """
    try:
        import_module("uvloop").run(_until_signal(serve))
    except StartError as error:
        say_why(program, error)
    return 1


def say_why(program: str, error: StartError) -> None:
    """Log why a daemon cannot start."""
    if isinstance(error, LoadError):
        logger.critical("%s", error)
    else:
        logger.critical("failed to instantiate %s - %s", program, error)


async def _until_signal(serve: Serve) -> None:
    stop: asyncio.Event = import_module("asyncio").Event()
    loop = _loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop.set)
    on_hangup(lambda: None)
    await serve(stop)
    # Here, in the loop: closing it would give the signals back to the system, which kills by them.
    _end_process()


def _end_process() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # Closed, gone with whoever read it, or just being written by what the signal interrupted.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            stream.flush()
    os._exit(0)
