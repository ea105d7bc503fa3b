"""SIGHUP for any daemon: read the configuration file again and apply the options that may change.

1. If the file cannot be read, nothing changes; the log says why.
2. For each changed option the log says whether it is in force or needs a restart.
3. After SIGHUP the file's values apply; values set over HTTP since the start are overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import TypeVar

from sparq.daemon.options import LoggingOptions
from sparq.options.declare import differing, replaced
from sparq.options.mistakes import Mistake
from sparq.program.logging import chosen_level, set_level

T = TypeVar("T")

logger = logging.getLogger(__name__)


def read_again(read: Callable[[], T]) -> T | None:
    """Read the options again; None (and an error in the log) if the file cannot be read."""
    try:
        return read()
    except Mistake as error:
        logger.error("SIGHUP: nothing is changed: %s", error)
        return None


def take(running: T, wanted: T, live: Collection[str]) -> T:
    """Set the log level, and log the options that SIGHUP changes.

    Args:
        running: the options in force so far.
        wanted: the options from the file.
        live: `live` names (from the options' declarations) of the options that have been applied.
    Returns:
        The options in force from now on.
    """
    log: LoggingOptions = attrgetter("log")(wanted)
    level = chosen_level(log.level, log.verbose)
    # The change is logged at the more verbose of the two levels.
    set_level(min(level, logging.getLogger().level))
    changed = differing(running, wanted)
    for flag in changed:
        if flag.live in live:
            shown = flag.shown(flag.value(wanted)) or "empty"
            logger.info("SIGHUP: %s is now %s", flag.key, shown)
        else:
            logger.warning("SIGHUP: %s has changed: that needs a restart", flag.key)
    if not changed:
        logger.info("SIGHUP: no option has changed")
    set_level(level)
    taken = {flag.field: attrgetter(flag.field)(wanted) for flag in changed if flag.live in live}
    return replaced(running, taken)
