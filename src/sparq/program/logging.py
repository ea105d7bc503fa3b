"""NSQ's log lines on stderr: `[nsqd] 2006/01/02 15:04:05.000000 INFO: text`, or JSON objects.

They go through Python's own `logging`, so that warnings from libraries have the same form.

1. One event is one line: characters that end or reorder lines are escaped, because the text may
   come from a peer. Only the traceback of a bug takes more lines, which are indented.
2. A stderr that is full or closed never stops a daemon.
3. Repeated lines can be limited: at most N lines of one kind are written per minute, and then one
   line says how many more there were.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import TextIO

from sparq.options.kinds import named

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_ESCAPES.update({0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"})
# Unicode's line separators, and characters that change the direction of writing.
_ESCAPES.update(
    {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))}
)
_INDENT = "    "

FORMATS = ("text", "json")
FACTS = ("topic", "channel", "client")
"""Fields that a JSON line has as separate keys if the record was logged with them as `extra`."""

REPEAT_SECONDS = 60.0
KINDS_MAX = 1000
"""Number of kinds counted separately in a minute; further kinds share one count per level."""


LEVEL = named(
    *("level", LEVELS, f"log level must be one of {', '.join(LEVELS)}"),
    show=lambda level: next(f'"{name}"' for name, value in LEVELS.items() if value == level),
)
"""The type of an option that is a level."""


class LineFormatter(logging.Formatter):
    """Formats a record as one line in NSQ's form."""

    def __init__(self, prefix: str, *, utc: bool = False) -> None:
        super().__init__()
        self._prefix = prefix
        self._zone = UTC if utc else None

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        when = datetime.fromtimestamp(record.created, self._zone).strftime("%Y/%m/%d %H:%M:%S.%f")
        text = record.getMessage().translate(_ESCAPES)
        formatted = f"{self._prefix}{when} {_level_of(record)}: {text}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            formatted = "\n".join(
                [formatted, *(_INDENT + line.translate(_ESCAPES) for line in lines)]
            )
        return formatted


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line: `time` (UTC), `level`, `program`, `text`.

    Then come `logger`, the record's `FACTS` and `traceback`, if it has them.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._program = prefix.strip("[] ")

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object."""
        when = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": _level_of(record),
            "program": self._program,
            "text": record.getMessage(),
            "logger": record.name,
        }
        fields.update((name, value) for name in FACTS if (value := getattr(record, name, None)))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        # In ASCII, so Unicode's line separators and direction marks are escaped (rule 1).
        return json.dumps(fields)


def _level_of(record: logging.LogRecord) -> str:
    return "FATAL" if record.levelno >= logging.CRITICAL else record.levelname


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to stderr, optionally limiting the number of lines of one kind (rule 3).

    Lines are of one kind if they have the same logger, level and message template; for the template
    `%s` the whole message counts.

    Args:
        most: lines of one kind per minute; 0: no limit.
    """

    def __init__(self, most: int = 0) -> None:
        super().__init__(sys.stderr)
        self._most = most
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless the limit for its kind is reached."""
        if not self._most or self._count(record) <= self._most:
            super().emit(record)

    def close(self) -> None:
        """Report how many lines were left out, as the program ends."""
        self.sum_up()
        super().close()

    def _count(self, record: logging.LogRecord) -> int:
        template = str(record.msg)
        kind = (record.name, record.levelno, template if template != "%s" else record.getMessage())
        if not self._counts:
            timer = threading.Timer(REPEAT_SECONDS, self.sum_up)
            timer.daemon = True
            timer.start()
        # Templates are few, but with "%s" a peer may determine the text: the counts stay bounded.
        if len(self._counts) >= KINDS_MAX and kind not in self._counts:
            kind = ("", record.levelno, "%s")
        self._counts[kind] += 1
        return self._counts[kind]

    def sum_up(self) -> None:
        """Report how many lines of each kind were left out in a minute; restart the counts."""
        self.acquire()  # the lock that `emit` is called with: lines come from several threads
        try:
            counts, self._counts = self._counts, Counter()
            for (name, level, text), count in counts.items():
                if count > self._most:
                    summary = f"{count - self._most:,} more in a minute: {text}"
                    super().emit(logging.LogRecord(name, level, "", 0, summary, None, None))
        finally:
            self.release()


def line(prefix: str, level: int, text: str) -> str:
    """Format a log line for a program that has not set up its log, or writes only this line."""
    record = logging.LogRecord("", level, "", 0, text, None, None)
    return LineFormatter(prefix).format(record)


def set_up(
    prefix: str, level: int, form: str = "text", *, utc: bool = False, repeats: int = 0
) -> None:
    """Send this process's log to stderr, from `level` upwards.

    A further call replaces the previous setup.

    Args:
        prefix: text before each line; in JSON the program's name.
        level: one of the values of `LEVELS`.
        form: one of `FORMATS`.
        utc: write times in UTC; JSON always does.
        repeats: lines of one kind per minute; 0: no limit.
    """
    # Otherwise a failed write would print a traceback, to the same stderr (rule 2).
    logging.raiseExceptions = False
    handler = LineHandler(repeats)
    as_json = form == "json"
    handler.setFormatter(JsonFormatter(prefix) if as_json else LineFormatter(prefix, utc=utc))
    # Replaced, not added: a second handler would write each line twice.
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def chosen_level(log_level: int, verbose: bool) -> int:
    """Return the level that the two flags ask for; `--verbose` is the older one."""
    return logging.DEBUG if verbose else log_level


def set_level(level: int) -> None:
    """Log from this level upwards, from now on."""
    logging.getLogger().setLevel(level)
    # At DEBUG asyncio logs which selector it uses, which is of no use to an operator.
    logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))
