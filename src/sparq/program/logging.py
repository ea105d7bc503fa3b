"""NSQ's log lines on stderr: `[nsqd] 2006/01/02 15:04:05.000000 INFO: text`.

Python's own `logging` carries them, so that libraries' warnings come out in the same form.

1. One event is one line: what ends or reorders lines in a text (a peer may have sent it) is
   escaped. Only the traceback of a bug takes more lines, and those are indented.
2. A stderr that is full or gone never stops a daemon.
"""

from __future__ import annotations

import logging
import sys
from datetime import datetime

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_ESCAPES.update({0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"})
# Line ends of Unicode, and what turns the direction of writing.
_ESCAPES.update(
    {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))}
)
_INDENT = "    "


def parse_level(text: str) -> int:
    """The level that a name stands for, in any case. Raises ValueError: there is no such level."""
    level = LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"log level must be one of {', '.join(LEVELS)}")
    return level


def level_name(level: int) -> str:
    """The name by which a level is set."""
    return next(name for name, value in LEVELS.items() if value == level)


class LineFormatter(logging.Formatter):
    """Formats a record as one line in NSQ's form."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """The line, and behind it the traceback if there is one."""
        when = datetime.fromtimestamp(record.created).strftime("%Y/%m/%d %H:%M:%S.%f")
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        text = record.getMessage().translate(_ESCAPES)
        said = f"{self._prefix}{when} {level}: {text}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            said = "\n".join([said, *(_INDENT + line.translate(_ESCAPES) for line in lines)])
        return said


def line(prefix: str, level: int, text: str) -> str:
    """A line for what must be said before the log is set up, or is all that a program says."""
    record = logging.LogRecord("", level, "", 0, text, None, None)
    return LineFormatter(prefix).format(record)


def set_up(prefix: str, level: int) -> None:
    """Send this process's log to stderr in NSQ's form, from `level` upwards.

    Called again it replaces what it did before.
    """
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(prefix))
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def chosen_level(log_level: int, verbose: bool) -> int:
    """The level that the two flags ask for; `--verbose` is the older one."""
    return logging.DEBUG if verbose else log_level


def set_level(level: int) -> None:
    """Log from this level upwards, from now on."""
    logging.getLogger().setLevel(level)
    # asyncio tells at "debug" which selector it took: nothing for an operator.
    logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))
