"""Groups of options shared by several daemons; a daemon's own options are in its package."""

from __future__ import annotations

from dataclasses import dataclass

from sparq.program.kinds import LEVEL, choice
from sparq.program.logging import FORMATS, LEVELS
from sparq.protocol.option import option


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Level and format of the program's log. Flags that begin with `log-`."""

    level: int = option(LEVELS["info"], "debug, info, warn, error or fatal", kind=LEVEL, live="log")
    prefix: str = option("", "text before each log line; in JSON the program's name")
    format: str = option(
        "text", "text, or json: an object a line, with its time in UTC", kind=choice(*FORMATS)
    )
    utc: bool = option(False, "tell the time in UTC")
    repeats: int = option(
        0,
        "lines of one kind in a minute; one more tells how many others there were; 0: any",
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
        "time that the head of an HTTP request, and then its body, may take; 0: 75s for the head,"
        " 60s between two pieces of the body",
        least=0,
    )
    token: str = option(
        "",
        "bearer token that requests over HTTP must show to change something or to look inside;"
        " @FILE: the one in this file; empty: nobody is asked",
    )
    debug_routes: bool = option(True, "answer /debug over HTTP", name="debug-routes")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The token file for access rights, and the audit file."""

    token_file: str = option(
        "",
        "file of bearer tokens: NAME ROLES SHA256 [EXPIRES] a line; with it requests over HTTP must"
        " show one that may; read again at SIGHUP",
    )
    audit_file: str = option(
        "", "file for each change over HTTP and each refusal (JSON lines); empty: none"
    )


def go_compatible(program: str) -> bool:
    """Make the option `--go-compatible`: start in spite of some mistakes, as Go's program does."""
    text = (
        f"start wherever Go's {program} starts: mistakes that it passes over are logged as warnings"
    )
    made: bool = option(False, text)
    return made
