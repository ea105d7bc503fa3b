"""A daemon's life cycle, from its first log line to its exit status.

1. SIGINT and SIGTERM set one event; the daemon then shuts down in its own order. Further signals
   have no effect, up to the very end; SIGKILL ends the daemon at once, and the log survives it. A
   signal that arrives before there is an event loop also ends the process with status 0: see
   `sparq.scripts`, which also ignores SIGHUP until then.
2. Raising `StartError` is the only way to report that a daemon cannot start: it is logged as
   FATAL, and the exit status is 1.
3. When a daemon has stopped, its process exits at once and skips Python's own teardown: that takes
   up to two seconds for a large heap, and a second signal during it would kill the process.
4. This module loads the event loop only to run a daemon, so a daemon that cannot start reports
   the error before that.
5. An exception that leaves the state unknown ends the process (`crash`): it must not go on
   answering `/ping` with work left undone.
6. SIGHUP never ends a daemon that listens: it does nothing until `on_hangup` sets a handler.
7. A service manager that asks for it (systemd's Type=notify) hears when the daemon listens and when
   it begins to stop.
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

from sparq.program.early_signals import ENDING

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

Serve: TypeAlias = "Callable[[asyncio.Event], Coroutine[Any, Any, None]]"


class StartError(Exception):
    """A daemon cannot start; the text is for its operator."""


class LoadError(StartError):
    """A daemon cannot start because of what is in its data path; the text is logged as it is."""


def load(name: str) -> Any:
    """Import a module while a daemon starts.

    Raises:
        StartError: its files cannot be read, for instance for want of file descriptors.
    """
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise StartError(f"the module {name} cannot be loaded: {error}") from error


def on_hangup(reload: Callable[[], None]) -> None:
    """Call `reload` in the event loop at each SIGHUP from now on."""
    _loop().add_signal_handler(signal.SIGHUP, reload)


async def until_stopped(stop: asyncio.Event) -> None:
    """Wait for the event, in a daemon that listens; the service manager hears of both moments."""
    _notify(b"READY=1")
    await stop.wait()
    _notify(b"STOPPING=1")


def _notify(state: bytes) -> None:
    """Tell the service manager, if there is one, by the datagram of sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux' abstract sockets
        address = f"\0{address[1:]}"
    socket = import_module("socket")
    # A manager that has gone must not end the daemon.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line,
    ):
        line.setblocking(False)
        line.sendto(state, address)


def _loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = import_module("asyncio").get_running_loop()
    return loop


def run(program: str, serve: Serve) -> int:
    """Run a daemon until a signal stops it; the process then exits with status 0.

    Args:
        program: its name in the log.
        serve: starts the daemon, waits for the event that it is given, and stops the daemon.
    Returns:
        The exit status 1: the daemon could not start, and the log says why.
    """
    try:
        load("uvloop").run(_until_signal(serve))
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
    # An event and not an exception such as KeyboardInterrupt, which could end a turn half-way.
    for number in ENDING:
        loop.add_signal_handler(number, stop.set)
    on_hangup(lambda: None)
    await serve(stop)
    # Exit while the loop still runs: closing it would restore the signals' default action, and a
    # further signal would kill the process.
    _end_process()


def crash(what: str) -> None:
    """Log the exception that is being handled, and end the process with status 1, in any thread.

    For an exception that leaves the daemon's state unknown: a supervisor starts it again from what
    is on the disk.
    """
    logger.critical("%s", what, exc_info=True)
    _end_process(1)


def _end_process(status: int = 0) -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # The stream is closed, its reader has gone, or the signal interrupted a write to it.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            stream.flush()
    os._exit(status)
