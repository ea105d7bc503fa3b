"""SIGHUP for any daemon: its configuration file is read again, and what may change then does.

1. A file that cannot be read changes nothing; the log says why.
2. The log says of each option that changed whether it is in force or needs a restart.
3. What was set over HTTP since the start gives way to the file: after SIGHUP the file is true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, TypeVar

from sparq.daemon.options import LogOptions
from sparq.program.flags import FileError, Flag, differing, replaced
from sparq.program.logging import chosen_level, set_level

T = TypeVar("T")

logger = logging.getLogger(__name__)


def read_again(read: Callable[[], T]) -> T | None:
    """The options as the file has them now; None (and an error in the log) if it cannot be read."""
    try:
        return read()
    except FileError as error:
        logger.error("SIGHUP: nothing is changed: %s", error)
        return None


def take(running: T, wanted: T, live: Collection[str]) -> T:
    """Log from the wanted level on, and say what SIGHUP changes.

    Args:
        running: the options in force, before.
        wanted: the options as the file has them.
        live: what has changed without a restart; `live` in the options' declarations.
    Returns:
        The options in force, from now on.
    """
    log: LogOptions = attrgetter("log")(wanted)
    level = chosen_level(log.level, log.verbose)
    # What is said about the change is said at the more talkative of the two levels.
    set_level(min(level, logging.getLogger().level))
    changed = differing(running, wanted)
    for flag in changed:
        if flag.live in live:
            logger.info("SIGHUP: %s is now %s", flag.key, shown(flag, wanted))
        else:
            logger.warning("SIGHUP: %s has changed: that needs a restart", flag.key)
    if not changed:
        logger.info("SIGHUP: no option has changed")
    set_level(level)
    taken = {flag.field: attrgetter(flag.field)(wanted) for flag in changed if flag.live in live}
    return replaced(running, taken)


def shown(flag: Flag, options: Any) -> str:
    """An option's value as `--help` would show it."""
    value = flag.value(options)
    if flag.repeated:
        return ", ".join(flag.kind.show(one) for one in value) or "empty"
    return flag.kind.show(value) or "empty"
