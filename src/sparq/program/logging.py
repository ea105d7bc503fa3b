"""NSQ's log lines on stderr: `[nsqd] 2006/01/02 15:04:05.000000 INFO: text`; or a JSON object each.

Python's own `logging` carries them, so that libraries' warnings come out in the same form.

1. One event is one line: what ends or reorders lines in a text (a peer may have sent it) is
   escaped. Only the traceback of a bug takes more lines, and those are indented.
2. A stderr that is full or gone never stops a daemon.
3. What repeats can be bounded: of the lines of one kind in a minute so many are written, and one
   tells how many more there were.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import TextIO

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

FORMATS = ("text", "json")
FACTS = ("topic", "channel", "client")
"""What a line in JSON names apart, where it has been given as `extra`."""

REPEAT_SECONDS = 60.0
KINDS_MAX = 1000
"""So many kinds of lines are counted apart in a minute."""


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

    def __init__(self, prefix: str, *, utc: bool = False) -> None:
        super().__init__()
        self._prefix = prefix
        self._zone = UTC if utc else None

    def format(self, record: logging.LogRecord) -> str:
        """The line, and behind it the traceback if there is one."""
        when = datetime.fromtimestamp(record.created, self._zone).strftime("%Y/%m/%d %H:%M:%S.%f")
        text = record.getMessage().translate(_ESCAPES)
        said = f"{self._prefix}{when} {_level_of(record)}: {text}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            said = "\n".join([said, *(_INDENT + line.translate(_ESCAPES) for line in lines)])
        return said


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line: `time` (UTC), `level`, `program`, `text`.

    Then come `logger`, the facts that the record names apart, and `traceback`, where it has them.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._program = prefix.strip("[] ")

    def format(self, record: logging.LogRecord) -> str:
        """The object."""
        when = datetime.fromtimestamp(record.created, UTC)
        said = {
            "time": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": _level_of(record),
            "program": self._program,
            "text": record.getMessage(),
            "logger": record.name,
        }
        said.update((name, value) for name in FACTS if (value := getattr(record, name, None)))
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def _level_of(record: logging.LogRecord) -> str:
    return "FATAL" if record.levelno >= logging.CRITICAL else record.levelname


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to stderr, and may bound those of one kind (rule 3).

    A kind is what lines say without what they name; a text that names all is a kind of its own.

    Args:
        most: lines of one kind in a minute; 0: any number.
    """

    def __init__(self, most: int = 0) -> None:
        super().__init__(sys.stderr)
        self._most = most
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless there were enough of its kind."""
        if not self._most or self._count(record) <= self._most:
            super().emit(record)

    def close(self) -> None:
        """The program ends: tell what was left out."""
        self.sum_up()
        super().close()

    def _count(self, record: logging.LogRecord) -> int:
        template = str(record.msg)
        kind = (record.name, record.levelno, template if template != "%s" else record.getMessage())
        if not self._counts:
            timer = threading.Timer(REPEAT_SECONDS, self.sum_up)
            timer.daemon = True
            timer.start()
        if len(self._counts) >= KINDS_MAX and kind not in self._counts:
            kind = ("", record.levelno, "%s")
        self._counts[kind] += 1
        return self._counts[kind]

    def sum_up(self) -> None:
        """A minute is over: tell what was left out of it."""
        self.acquire()  # as whoever calls `emit` has: lines come from several threads
        try:
            counts, self._counts = self._counts, Counter()
            for (name, level, text), count in counts.items():
                if count > self._most:
                    said = f"{count - self._most:,} more in a minute: {text}"
                    super().emit(logging.LogRecord(name, level, "", 0, said, None, None))
        finally:
            self.release()


def line(prefix: str, level: int, text: str) -> str:
    """A line for what must be said before the log is set up, or is all that a program says."""
    record = logging.LogRecord("", level, "", 0, text, None, None)
    return LineFormatter(prefix).format(record)


def set_up(
    prefix: str, level: int, form: str = "text", *, utc: bool = False, repeats: int = 0
) -> None:
    """Send this process's log to stderr, from `level` upwards.

    Called again it replaces what it did before.

    Args:
        prefix: what stands before each line; in JSON the program's name.
        level: one of `LEVELS`.
        form: one of `FORMATS`.
        utc: tell the time in UTC; JSON always does.
        repeats: lines of one kind in a minute; 0: any number.
    """
    logging.raiseExceptions = False
    handler = LineHandler(repeats)
    as_json = form == "json"
    handler.setFormatter(JsonFormatter(prefix) if as_json else LineFormatter(prefix, utc=utc))
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
