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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final

import uvloop

from sparq.client.address import parse_nsqd, split_texts
from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.client.errors import ConnectionLostError, WrongPeerError
from sparq.client.producer import Producer
from sparq.program.logging import set_up
from sparq.protocol.address import lookupd_url
from sparq.protocol.durations import SECOND
from sparq.protocol.identify import NSQ_VERSION
from sparq.protocol.names import is_valid_name, quote
from sparq.tools.command_line import Failed, SourceOptions, UsageError, texts_of

Work = Callable[[asyncio.Event], Awaitable[int]]
"""What a tool does until its end or until the event is set; its exit status."""

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONCE_SECONDS = 0.5
"""What comes within it is one signal: `timeout` sends each to a process and to its group."""

QUITTING = (*STOPPING, signal.SIGQUIT)
"""What stops a tool that has something to put in order: a terminal, a topic of its own."""

TOGETHER_COUNT: Final = 1000
TOGETHER_BYTES: Final = 256 << 10
"""Of one publish, far below nsqd's default of 5 MiB; a longer message is published alone."""


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
    _check_one_kind("nsqd-tcp-address", nsqds, lookupds)
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


def check_positive(options: Any, *fields: str) -> None:
    """Hold numbers and durations of the command line to be positive; None is not given.

    Raises:
        UsageError: one is not; the text names the flag.
    """
    for field in fields:
        value = getattr(options, field)
        if value is not None and value <= 0:
            raise UsageError(f"--{field.removesuffix('_ns').replace('_', '-')} should be positive")


def check_http_sources(nsqds: Sequence[str], lookupds: Sequence[str]) -> None:
    """Hold a tool to nsqds or nsqlookupds that it asks over HTTP, and not both, as NSQ's do.

    Raises:
        UsageError: neither is given, or both are.
    """
    _check_one_kind("nsqd-http-address", nsqds, lookupds)


def _check_one_kind(flag: str, nsqds: Sequence[str], lookupds: Sequence[str]) -> None:
    if not any(nsqds) and not any(lookupds):
        raise UsageError(f"--{flag} or --lookupd-http-address required")
    if nsqds and lookupds:
        raise UsageError(f"use --{flag} or --lookupd-http-address not both")


def check_names(topics: Iterable[str], channel: str) -> None:
    """Hold topics and a channel to names that NSQ allows.

    Raises:
        UsageError: one is none; the text names the flag.
    """
    for flag, name in (*(("topic", topic) for topic in topics), ("channel", channel)):
        if not is_valid_name(name):
            raise UsageError(f"--{flag} {quote(name)} is not a valid name")


def runs(bodies: Sequence[bytes], bytes_max: int = TOGETHER_BYTES) -> Iterator[Sequence[bytes]]:
    """Bodies in runs for one publish each: bounded in bytes, unless one alone is larger."""
    first, size = 0, 0
    for at, body in enumerate(bodies):
        if at > first and (size + len(body) > bytes_max or at - first == TOGETHER_COUNT):
            yield bodies[first:at]
            first, size = at, 0
        size += len(body)
    if first < len(bodies):
        yield bodies[first:]


async def missing(clients: Iterable[Consumer | Producer], wait_ns: int) -> None:
    """Fail when an nsqd that was given is not there, as `reach` does; otherwise never return.

    Raises:
        Failed: one could not be reached; the text names it.
    """
    await reach(clients, wait_ns)
    await asyncio.get_running_loop().create_future()


async def reach(clients: Iterable[Consumer | Producer], wait_ns: int) -> None:
    """Wait until each nsqd that was given is connected, for as long as ``--wait-for-nsqd`` says.

    Raises:
        Failed: one could not be reached; the text names it.
    """
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.until_connected(wait_ns / SECOND))
    except* (ConnectionLostError, WrongPeerError) as errors:
        # What is raised in here comes out as a group, but for some releases of Python 3.11.
        failure = errors.exceptions[0]
    if failure is not None:
        can_wait = isinstance(failure, ConnectionLostError) and not wait_ns
        hint = " (--wait-for-nsqd=30s waits for it)" if can_wait else ""
        raise Failed(f"{failure}{hint}")


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


async def unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Do the work, or cancel what is left of it when the event is set.

    Raises:
        Exception: whatever the work raises.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        stopping.cancel()
        outcome, _ = await asyncio.gather(working, stopping, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome


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
