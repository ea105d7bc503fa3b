"""What the tools share: flags for addresses and for options of the client, and how a tool ends.

1. Exit status: 0 when the work is done and after SIGINT and SIGTERM, 1 when it cannot be done (one
   line on stderr says why, unless nobody reads standard output any more), 2 for a command line
   that cannot be read (with usage on stderr).
2. The first signal ends a tool in order: what is in hand is answered for. The second one, half a
   second later or more, kills it.
   SIGHUP, of a terminal that is closed, is such a signal; under `nohup` it is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import uvloop

from sparq.client.address import lookupd_url, parse_nsqd, split_texts
from sparq.client.config import Config
from sparq.program import flags
from sparq.program.flags import option
from sparq.program.kinds import STRING
from sparq.program.logging import set_up
from sparq.program.version import version_line
from sparq.protocol.identify import NSQ_VERSION
from sparq.protocol.names import is_valid_name, quote

T = TypeVar("T")

Work = Callable[[asyncio.Event], Awaitable[int]]
"""What a tool does until its end or until the event is set; its exit status."""

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONCE_SECONDS = 0.5
"""What comes within it is one signal: `timeout` sends each to a process and to its group."""

QUITTING = (*STOPPING, signal.SIGQUIT)
"""What stops a tool that has something to put in order: a terminal, a topic of its own."""


class UsageError(Exception):
    """The command line asks for what cannot be; the text names the flag."""


class Failed(Exception):
    """The tool cannot go on; the text says why and what of the work is done."""


def _together(texts: Iterable[str]) -> tuple[str, ...]:
    given = tuple(texts)
    Config.from_text(texts_of(given))
    return given


CLIENT_OPTION = STRING._replace(name="key,value", gather=_together)
"""Options of the client, held to what `Config` knows while the command line is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where a tool consumes from; the options of a tool that consumes begin with these."""

    nsqd_tcp_addresses: tuple[str, ...] = option(
        (), "nsqd to consume from: host:port or a unix socket", kind=STRING, name="nsqd-tcp-address"
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "nsqlookupd that knows the nsqds: host:port or URL",
        kind=STRING,
        name="lookupd-http-address",
    )
    consumer_opt: tuple[str, ...] = option(
        (), "an option of the client, or its name alone for true", kind=CLIENT_OPTION
    )


def parse(
    options_class: type[T],
    program: str,
    arguments: Sequence[str] | None,
    *,
    refuses_strays: bool = False,
) -> T:
    """A tool's options from its command line (``sys.argv`` for None).

    Flags end at the first word that is none. NSQ's tools pass over it and all behind it in
    silence; here they are named, or refused.

    Raises:
        SystemExit: 0 after ``--help`` and ``--version``, 2 for a bad command line, 1 for a refusal.
    """
    words = sys.argv[1:] if arguments is None else arguments
    options = flags.parse(options_class, program, version_line(program), words, takes_file=False)
    if strays := " ".join(flags.behind_flags(options_class, words)):
        if refuses_strays:
            refuse(program, f"unknown arguments: {strays}")
        sys.stderr.write(f"{program}: ignored, as flags end at a word that is none: {strays}\n")
    return options


def refuse(program: str, reason: str) -> NoReturn:
    """Say why this cannot be done, and end with status 1, as NSQ's tools do."""
    sys.stderr.write(f"{program}: {reason}\n")
    raise SystemExit(1)


def texts_of(given: Iterable[str]) -> dict[str, str]:
    """The client's options in `key,value` texts; a `key` alone means true."""
    texts = {}
    for text in given:
        key, comma, value = text.partition(",")
        texts[key] = value if comma else "true"
    return texts


def client_config(
    program: str, given: Iterable[str], flag: str = "consumer-opt", **options: Any
) -> Config:
    """The options of a client, from a repeated ``--consumer-opt`` or ``--producer-opt``.

    Each is ``key,value``, or ``key`` alone for true. What is given there wins over ``options``,
    which are a tool's own flags.

    Raises:
        UsageError: there is no such option, or its value is not valid.
    """
    try:
        base = Config(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    agent = f"{program}/{NSQ_VERSION} {base.user_agent}"
    try:
        return Config.from_text(texts_of(given), Config.of(base, {"user_agent": agent}))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--{flag} {error}") from None


def consumer_config(program: str, sources: SourceOptions, max_in_flight: int) -> Config:
    """The options of consumers that give no message up, unless ``--consumer-opt`` asks for that.

    Raises:
        UsageError: one of them is not valid, or no message could come.
    """
    if max_in_flight <= 0:
        raise UsageError("--max-in-flight should be positive")
    config = client_config(
        program, sources.consumer_opt, max_in_flight=max_in_flight, max_attempts=0
    )
    if not config.max_in_flight:
        raise UsageError("--consumer-opt max_in_flight should be positive")
    return config


def check_sources(nsqds: Sequence[str], lookupds: Sequence[str]) -> None:
    """Hold a tool to nsqds or nsqlookupds, and not both, as NSQ's tools do.

    Raises:
        UsageError: neither is given, or both are, or one is no address.
    """
    if not any(nsqds) and not any(lookupds):
        raise UsageError("--nsqd-tcp-address or --lookupd-http-address required")
    if nsqds and lookupds:
        raise UsageError("use --nsqd-tcp-address or --lookupd-http-address not both")
    check_addresses("nsqd-tcp-address", nsqds, parse_nsqd)
    check_addresses("lookupd-http-address", lookupds, lookupd_url)


def check_addresses(flag: str, texts: Iterable[str], read: Callable[[str], object]) -> None:
    """Hold what was given to a flag to addresses; empty texts count for nothing.

    Raises:
        UsageError: one is none; the text names the flag.
    """
    for text in split_texts(texts):
        check_address(flag, text, read)


def check_address(flag: str, text: str, read: Callable[[str], object]) -> None:
    """Hold what was given to a flag to an address.

    Raises:
        UsageError: it is none; the text names the flag.
    """
    try:
        read(text)
    except ValueError as error:
        raise UsageError(f"--{flag} {error}") from None


def check_names(topics: Iterable[str], channel: str) -> None:
    """Hold topics and a channel to names that NSQ allows.

    Raises:
        UsageError: one is none; the text names the flag.
    """
    for flag, name in (*(("topic", topic) for topic in topics), ("channel", channel)):
        if not is_valid_name(name):
            raise UsageError(f"--{flag} {quote(name)} is not a valid name")


def run(program: str, work: Work, signals: Sequence[signal.Signals] = STOPPING) -> int:
    """Run a tool in an event loop until it is done or a signal stops it.

    Its log goes to stderr from warnings upwards; ``work`` may set it up anew.

    Args:
        program: its name.
        work: is given the event that the first signal sets.
        signals: what stops it.
    Returns:
        The exit status: that of ``work``, or 1 when it raises `Failed`, `UsageError` or
        `BrokenPipeError`.
    """
    _occupy_closed_descriptors()
    set_up(f"[{program}] ", logging.WARNING)
    try:
        return uvloop.run(_until_signal(work, signals))
    except (Failed, UsageError) as error:
        sys.stderr.write(f"{program}: {error}\n")
    except BrokenPipeError:
        pass
    return 1


def _occupy_closed_descriptors() -> None:
    """See to it that no socket gets the number of a standard descriptor that is closed.

    What stands there then can be read, or written, as little as what is closed.
    """
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)


async def _until_signal(work: Work, signals: Sequence[signal.Signals]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    heard = [number for number in signals if not _is_ignored_hangup(number)]

    def signalled() -> None:
        if not stop.is_set():
            stop.set()
            loop.call_later(ONCE_SECONDS, mean_it)

    def mean_it() -> None:
        for number in heard:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in heard:
        loop.add_signal_handler(number, signalled)
    return await work(stop)


def _is_ignored_hangup(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
