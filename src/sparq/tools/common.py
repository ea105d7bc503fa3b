"""What several tools share on their command lines: addresses, and options of the client."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from sparq.client.config import Config
from sparq.program import flags
from sparq.program.version import version_line
from sparq.protocol.identify import NSQ_VERSION

T = TypeVar("T")


class UsageError(Exception):
    """The command line asks for what cannot be; the text names the flag."""


def parse(options_class: type[T], program: str, arguments: Sequence[str] | None) -> T:
    """A tool's options from its command line (``sys.argv`` for None).

    Raises:
        SystemExit: 0 after ``--help`` and ``--version``, 2 for a bad command line.
    """
    words = sys.argv[1:] if arguments is None else arguments
    return flags.parse(options_class, program, version_line(program), words, takes_file=False)


def refuse(program: str, reason: str) -> NoReturn:
    """Say why this cannot be done, and end with status 1, as NSQ's tools do."""
    sys.stderr.write(f"{program}: {reason}\n")
    raise SystemExit(1)


def client_config(
    program: str, given: Iterable[str], flag: str = "consumer-opt", **options: Any
) -> Config:
    """The options of a client, from a repeated ``--consumer-opt`` or ``--producer-opt``.

    Each is ``key,value``, or ``key`` alone for true. What is given there wins over ``options``.

    Raises:
        UsageError: there is no such option, or its value is not valid.
    """
    texts = {}
    for text in given:
        key, _, value = text.partition(",")
        texts[key] = value or "true"
    base = Config(**options)
    agent = f"{program}/{NSQ_VERSION} {base.user_agent}"
    try:
        return Config.from_text(texts, Config.of(base, {"user_agent": agent}))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--{flag} {error}") from None


def check_sources(nsqds: Sequence[str], lookupds: Sequence[str]) -> None:
    """Hold a tool to nsqds or nsqlookupds, and not both, as NSQ's tools do.

    Raises:
        UsageError: neither is given, or both are.
    """
    if not nsqds and not lookupds:
        raise UsageError("--nsqd-tcp-address or --lookupd-http-address required")
    if nsqds and lookupds:
        raise UsageError("use --nsqd-tcp-address or --lookupd-http-address not both")
