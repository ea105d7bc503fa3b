"""Groups of options shared by several daemons; a daemon's own options are in its package.

A token in a file (`--http-token=@/path`) does not appear in the process list. No daemon shows a
token: `hidden` and `public` remove it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparq.options.declare import option
from sparq.options.kinds import STRING, choice
from sparq.program.logging import FORMATS, LEVEL, LEVELS
from sparq.protocol.address import bare_host

HOST = STRING._replace(parse=bare_host)
"""A host name or an IP address, an IPv6 one with or without brackets."""


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """Level and format of the program's log. Flags that begin with `log-`."""

    level: int = option(
        LEVELS["info"],
        "minimum level of logged lines: debug, info, warn, error or fatal",
        kind=LEVEL,
        live="log",
    )
    prefix: str = option("", "text before each log line; in JSON, the program's name")
    format: str = option(
        "text", "text, or json (one object per line, with its time in UTC)", kind=choice(*FORMATS)
    )
    utc: bool = option(False, "log times in UTC")
    repeats: int = option(
        0,
        "maximum log lines of one kind per minute; one more line gives the number suppressed"
        " (0: no limit)",
        least=0,
    )
    verbose: bool = option(
        False, "deprecated: the same as --log-level=debug", name="verbose", live="log"
    )


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Timeouts, token and debug routes of HTTP. Flags that begin with `http-`."""

    request_timeout_ns: int = option(
        0,
        "time limit for the head of an HTTP request, and again for its body (0: 75s for the head,"
        " 60s between two pieces of the body)",
        least=0,
    )
    token: str = option(
        "",
        "bearer token required over HTTP to change state or to read messages, /config and /debug;"
        " @FILE: read it from this file; empty: no check",
    )
    debug_routes: bool = option(True, "serve /debug over HTTP", name="debug-routes")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The token file for access rights, and the audit file."""

    token_file: str = option(
        "",
        "file of bearer tokens, one per line: NAME ROLES SHA256 [EXPIRES]; if set, HTTP requests"
        " need a token with the required role; read again at SIGHUP",
    )
    audit_file: str = option(
        "", "audit log of changes over HTTP and of refused requests, as JSON lines (empty: none)"
    )


def go_compatible(program: str) -> bool:
    """Make the option `--go-compatible`: start in spite of some mistakes, as Go's program does."""
    text = f"start in spite of mistakes that Go's {program} ignores, and log them as warnings"
    made: bool = option(False, text)
    return made


FROM_FILE = "@"
_USER = re.compile(r"//[^/?#]*@")


def public(url: str) -> str:
    """Return a URL without user, password and query; other texts are unchanged."""
    return _USER.sub("//", url).partition("?")[0] if "://" in url else url


def hidden(value: str) -> str:
    """Return `***` for a token; "" and `@FILE` are unchanged."""
    return value if not value or value.startswith(FROM_FILE) else "***"
