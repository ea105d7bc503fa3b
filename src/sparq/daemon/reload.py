"""Options that change while a daemon runs: at SIGHUP, from its file, and over HTTP (`/config`).

1. If the file cannot be read, nothing changes; the log says why.
2. For each changed option the log says whether it is in force or needs a restart.
3. After SIGHUP the file's values apply; values set over HTTP since the start are overwritten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeVar

from sparq.daemon.options import LoggingOptions
from sparq.options.declare import differing, replaced
from sparq.options.mistakes import Mistake
from sparq.program.logging import LEVEL, LEVELS, chosen_level, set_level

T = TypeVar("T")

LEVEL_NUMBERS = {level: number for number, level in enumerate(LEVELS.values(), 1)}
"""The levels as Go's programs show them."""

logger = logging.getLogger(__name__)


def new_value(name: str, body: bytes) -> Any:
    """Read the body of `PUT /config/NAME`: a level's name, or a list of addresses; null: none.

    Raises:
        ValueError: it is neither.
    """
    with suppress(RecursionError):
        if name == "log_level":
            return LEVEL.parse(body.decode())
        found = json.loads(body)
        if found is None:
            return ()
        if isinstance(found, list) and all(isinstance(text, str) for text in found):
            return tuple(found)
    raise ValueError("not a list of texts")


def read_again(read: Callable[[], T]) -> T | None:
    """Read the options again; None (and an error in the log) if the file cannot be read."""
    try:
        return read()
    except Mistake as error:
        logger.error("SIGHUP: nothing is changed: %s", error)
        return None


def apply_live_options(running: T, wanted: T, live: Collection[str]) -> T:
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
