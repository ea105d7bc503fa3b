"""A tool's command line: its flags, and the errors for a command line that is not valid.

This module is loaded before the rest of a tool, and alone if only help or version is requested:
nothing here may need an event loop, a socket or arrays. `launch` loads the module with the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, NoReturn, TypeVar

from sparq.program import flags
from sparq.program.flag_types import STRING
from sparq.program.stdout import version_line
from sparq.protocol.durations import SECOND
from sparq.protocol.option import option

T = TypeVar("T")

LOOKUPD_VARIABLE: Final = "SPARQ_LOOKUPD_HTTP_ADDRESS"
NSQD_VARIABLE: Final = "SPARQ_NSQD_HTTP_ADDRESS"
"""Addresses of the cluster for `sparq admin` and `sparq top`, if no flag gives any."""

IN_ENVIRONMENT: Final = f"(or {LOOKUPD_VARIABLE} in the environment)"


class UsageError(Exception):
    """The command line asks for something that is not possible; the text names the flag."""


class ToolError(Exception):
    """The tool cannot go on; the text says why, and which part of the work is done."""


def _together(texts: Iterable[str]) -> tuple[str, ...]:
    given = tuple(texts)
    # This import loads ssl; a tool that is given no such option does not pay for it.
    import_module("sparq.client.config").Config.from_text(texts_of(given))
    return given


FILE_MARK: Final = "@"
FROM_FILE: Final = "auth_secret"
CLIENT_HELP: Final = (
    "client option: key,value, or key alone for true, such as tls_v1, tls_root_ca_file,FILE and"
    " auth_secret,TOKEN or auth_secret,@FILE (docs/tls_and_auth.md)"
)
CLIENT_OPTION = STRING._replace(name="key,value", gather=_together)
"""Options of the client, checked against `Config` while the command line is parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Where a tool consumes from; the options of each consuming tool extend this class."""

    nsqd_tcp_addresses: tuple[str, ...] = option(
        (), "nsqd to consume from: host:port or a unix socket", name="nsqd-tcp-address"
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "nsqlookupd to find nsqds with: host:port or URL", name="lookupd-http-address"
    )
    consumer_opt: tuple[str, ...] = option((), CLIENT_HELP, kind=CLIENT_OPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccessOptions:
    """How a tool identifies itself to daemons over HTTP, and how it verifies them over HTTPS."""

    token: str = option("", "HTTP token of the daemons, or @FILE to read it from a file")
    http_client_tls_root_ca_file: str = option(
        "", "trusted CA certificates (PEM) for HTTPS, in place of the system's"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHttpOptions(HttpAccessOptions):
    """Which cluster a tool asks over HTTP, and how long it waits for a response."""

    nsqd_http_addresses: tuple[str, ...] = option(
        (), "nsqd to query: host:port or URL", name="nsqd-http-address"
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "nsqlookupd to find nsqds with: host:port or URL", name="lookupd-http-address"
    )
    http_client_connect_timeout_ns: int = option(2 * SECOND, "timeout for connecting")
    http_client_request_timeout_ns: int = option(5 * SECOND, "timeout for a response")


def with_environment(options: Any) -> Any:
    """Return the options; if no address was given, with those from the environment."""
    if options.nsqd_http_addresses or options.lookupd_http_addresses:
        return options
    lookupds, nsqds = (
        tuple(os.environ.get(name, "").replace(",", " ").split())
        for name in (LOOKUPD_VARIABLE, NSQD_VARIABLE)
    )
    if lookupds:
        return replace(options, lookupd_http_addresses=lookupds)
    return replace(options, nsqd_http_addresses=nsqds)


def wait_for_nsqd() -> Any:
    """Declare the flag of a tool that exits, as Go's do, if an nsqd it was given is down."""
    return option(
        0,
        "how long an nsqd named with `--nsqd-tcp-address` may be unreachable at the start before"
        " the tool exits with status 1; later, lost connections are retried without limit",
        least=0,
    )


def parse(options_class: type[T], program: str, arguments: Sequence[str] | None) -> T:
    """Parse a tool's options from its command line (``sys.argv`` for None).

    Raises:
        SystemExit: 0 after ``--help`` and ``--version``, 1 for a mistake.
    """
    words = sys.argv[1:] if arguments is None else arguments
    return flags.parse(options_class, program, version_line(program), words, takes_file=False)


def refuse(program: str, reason: str) -> NoReturn:
    """Write the reason to stderr and exit with status 1, as NSQ's tools do."""
    sys.stderr.write(f"{program}: {reason}\n")
    raise SystemExit(1)


def texts_of(given: Iterable[str]) -> dict[str, str]:
    """Return the client's options from `key,value` texts; a `key` alone means true.

    Raises:
        ValueError: the file with the secret (`auth_secret,@FILE`) cannot be read.
    """
    texts = {}
    for text in given:
        key, comma, value = text.partition(",")
        if key.replace("-", "_") == FROM_FILE and value.startswith(FILE_MARK):
            value = read_secret(FROM_FILE, value)
        texts[key] = value if comma else "true"
    return texts


def read_secret(name: str, text: str) -> str:
    """Return the content of the file `@FILE`, or the text itself if it names no file.

    Raises:
        ValueError: the file cannot be read, or is empty; the text begins with `name`.
    """
    if not text.startswith(FILE_MARK):
        return text
    path = text.removeprefix(FILE_MARK)
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"{name}: {path} cannot be read - {reason}") from None
    if not found:
        raise ValueError(f"{name}: {path} is empty")
    return found


def launch(work: str, options: Any) -> int:
    """Load the module that does a tool's work, and call its `start` with the options.

    Returns:
        The exit status.
    """
    return int(import_module(work).start(options))
