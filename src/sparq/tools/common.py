"""What the tools share: checks of addresses and client options, signals and exit status.

1. Exit status: 0 when the work is done and after SIGINT and SIGTERM; 1 if it cannot be done, or
   the command line is not valid. One line on stderr says why, except when the reader of standard
   output has gone.
2. The first signal ends a tool in order: messages in flight are finished or requeued. A second
   signal, half a second later or more, kills it.
   SIGHUP, sent when a terminal is closed, counts as such a signal; under `nohup` it is ignored.
3. The progress line is rewritten in place, only where stderr is a terminal. Log lines appear above
   it: the line is erased before each of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import uvloop

from sparq.client.config import Config
from sparq.client.consumer import Consumer, Handler
from sparq.client.errors import ConnectionLostError, WrongPeerError
from sparq.client.producer import Producer
from sparq.options.units import SECOND
from sparq.program.early_signals import default_action
from sparq.program.logging import set_up
from sparq.protocol import NSQ_VERSION
from sparq.tools.commands import (
    NsqTailOptions,
    NsqToFileOptions,
    NsqToHttpOptions,
    NsqToNsqOptions,
    ToolError,
    UsageError,
    texts_of,
)

T = TypeVar("T")

ConsumingOptions = NsqTailOptions | NsqToFileOptions | NsqToHttpOptions | NsqToNsqOptions
Work = Callable[[asyncio.Event], Awaitable[int]]
"""Does a tool's work until it is done or the event is set; returns the exit status."""

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONCE_SECONDS = 0.5
"""Signals within this time count as one: `timeout` sends each to a process and to its group."""

QUITTING = (*STOPPING, signal.SIGQUIT)
"""Signals that stop a tool that must restore or remove something: a terminal, its own topic."""

STEP_SECONDS: Final = 0.5
COLUMNS: Final = 80
"""Width of a terminal that does not report one."""

CLEAR: Final = "\r\x1b[K"

HANDLED_MAX: Final = 10_000
"""Maximum number of a consumer's messages handled at a time; each costs a task."""

TOGETHER_COUNT: Final = 1000
TOGETHER_BYTES: Final = 256 << 10
"""Limit of one publish, far below nsqd's default of 5 MiB; a longer message is published alone."""


def client_config(program: str, given: Iterable[str], **options: Any) -> Config:
    """Return the client's config from a repeated ``--consumer-opt`` or ``--producer-opt``.

    Each is ``key,value``, or ``key`` alone for true. These values override ``options``, which come
    from the tool's own flags.

    Raises:
        UsageError: the value of an option is not valid.
    """
    try:
        base = Config(**options)
        agent = f"{program}/{NSQ_VERSION} {base.user_agent}"
        return Config.from_text(texts_of(given), Config.of(base, {"user_agent": agent}))
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


def consumer_config(program: str, options: ConsumingOptions) -> Config:
    """Return the config of consumers that give up no message, unless ``--consumer-opt`` says so.

    Raises:
        UsageError: the value of an option is not valid, or `max_in_flight` allows no message.
    """
    config = client_config(
        program, options.consumer_opt, max_in_flight=options.max_in_flight, max_attempts=0
    )
    if not config.max_in_flight:
        raise UsageError("--consumer-opt max_in_flight should be positive")
    return config


def consumers_of(
    program: str,
    options: ConsumingOptions,
    topics: Iterable[str],
    channel: str,
    *,
    handler: Handler | None = None,
    most: int = 0,
) -> list[Consumer]:
    """Return a consumer of each topic, from the sources that the flags name.

    A handler may run for all messages in flight at once: one that waited for a free handler could
    time out.

    Args:
        most: maximum number of messages in flight; 0: as the flags say.

    Raises:
        UsageError: there is no source, or the value of an option is not valid.
    """
    require_source(options.nsqd_tcp_addresses, options.lookupd_http_addresses, "nsqd-tcp-address")
    config = consumer_config(program, options)
    if most:
        config = Config.of(config, {"max_in_flight": min(config.max_in_flight, most)})
    return [
        Consumer(
            topic,
            channel,
            nsqd_tcp_addresses=options.nsqd_tcp_addresses,
            lookupd_http_addresses=options.lookupd_http_addresses,
            handler=handler,
            concurrency=min(config.max_in_flight, HANDLED_MAX) if handler else 1,
            config=config,
        )
        for topic in dict.fromkeys(topics)
    ]


async def consume(
    consumers: Sequence[Consumer],
    stop: asyncio.Event,
    wait_ns: int,
    follow: Callable[[Consumer], Coroutine[Any, Any, None]] | None = None,
    stop_seconds: float | None = None,
) -> None:
    """Run consumers until the event is set; then let them finish their messages.

    Args:
        consumers: not started yet.
        stop: the event.
        wait_ns: how long an nsqd given by address may be down at the start.
        follow: processes a consumer that has no handler, until it is stopped; if it returns
            earlier, all consumers are stopped.
        stop_seconds: how long they may take to finish their messages; None: as configured.

    Raises:
        ToolError: an nsqd given by address cannot be reached; messages in flight have been
            finished.
        Exception: any exception that ``follow`` raises.
    """

    async def wait_for_stop() -> None:
        await unless_stopped(reach(consumers, wait_ns), stop)
        await stop.wait()

    tasks = [asyncio.create_task(wait_for_stop())]
    try:
        for consumer in consumers:
            consumer.start()
            if follow is not None:
                tasks.append(asyncio.create_task(follow(consumer)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await asyncio.gather(*(consumer.stop(stop_seconds) for consumer in consumers))
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def require_source(nsqds: Sequence[str], lookupds: Sequence[str], flag: str) -> None:
    """Require addresses of either nsqds (``flag``) or nsqlookupds, not both, as NSQ's tools do.

    Raises:
        UsageError: neither or both are given.
    """
    if not nsqds and not lookupds:
        raise UsageError(f"--{flag} or --lookupd-http-address required")
    if nsqds and lookupds:
        raise UsageError(f"use --{flag} or --lookupd-http-address not both")


def publish_runs(
    bodies: Sequence[bytes], bytes_max: int = TOGETHER_BYTES
) -> Iterator[Sequence[bytes]]:
    """Split bodies into runs of one publish each, within the limits; a larger body goes alone."""
    first, size = 0, 0
    for at, body in enumerate(bodies):
        if at > first and (size + len(body) > bytes_max or at - first == TOGETHER_COUNT):
            yield bodies[first:at]
            first, size = at, 0
        size += len(body)
    if first < len(bodies):
        yield bodies[first:]


async def reach(clients: Iterable[Consumer | Producer], wait_ns: int) -> None:
    """Wait up to ``--wait-for-nsqd`` until every nsqd given by address is connected.

    Raises:
        ToolError: one could not be reached; the text names it.
    """
    try:
        await asyncio.gather(*(client.until_connected(wait_ns / SECOND) for client in clients))
    except (ConnectionLostError, WrongPeerError) as error:
        can_wait = isinstance(error, ConnectionLostError) and not wait_ns
        hint = " (use --wait-for-nsqd=30s to wait for it)" if can_wait else ""
        raise ToolError(f"{error}{hint}") from None


def run(program: str, work: Work, signals: Sequence[signal.Signals] = STOPPING) -> int:
    """Run a tool in an event loop until it is done or a signal stops it.

    The log goes to stderr, from warnings upwards; ``work`` may set it up differently.

    Args:
        program: the tool's name.
        work: called with the event that the first signal sets.
        signals: the signals that stop it.
    Returns:
        The exit status: that of ``work``, or 1 if it raises `ToolError`, `UsageError` or
        `BrokenPipeError`.
    """
    # The null device on closed standard descriptors, so that no socket gets their numbers. It is
    # opened so that reading or writing still fails, as it does on a closed descriptor.
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    set_up(f"[{program}] ", logging.WARNING)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        return runner.run(_until_signal(work, signals))
    except (ToolError, UsageError) as error:
        sys.stderr.write(f"{program}: {error}\n")
    except BrokenPipeError:
        pass
    finally:
        # uvloop refuses (EBUSY) while a TLS connection is still being closed. The work is done.
        with suppress(OSError):
            runner.close()
    return 1


async def _until_signal(work: Work, signals: Sequence[signal.Signals]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Under `nohup`, SIGHUP is ignored.
    handled = [
        number
        for number in signals
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]

    def signalled() -> None:
        if not stop.is_set():
            stop.set()
            # The default action comes back only then: a second copy of the same signal must not
            # kill a tool that has just begun to finish its messages.
            loop.call_later(ONCE_SECONDS, mean_it)

    def mean_it() -> None:
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, default_action())

    for number in handled:
        loop.add_signal_handler(number, signalled)
    return await work(stop)


async def unless_stopped(work: Awaitable[T], stop: asyncio.Event) -> T | None:
    """Await the work and return its result; cancel it when the event is set, and return None.

    Raises:
        Exception: any exception that the work raises.
    """
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        stopping.cancel()
        # Wait for the cancelled work: it may have to restore a terminal or delete its topic first.
        await asyncio.wait([working, stopping])
    return None if working.cancelled() else working.result()


@asynccontextmanager
async def progress_shown(text: Callable[[], str]) -> AsyncIterator[None]:
    """Show the result of ``text`` twice a second for the duration of a block.

    It begins after logging is set up.
    """
    stream = sys.stderr
    if not stream.isatty():
        yield
        return

    def clear(_: logging.LogRecord) -> bool:
        stream.write(CLEAR)
        return True

    async def show() -> None:
        while True:
            columns = os.get_terminal_size(stream.fileno()).columns or COLUMNS
            stream.write(f"{CLEAR}{text()[: columns - 1]}")
            stream.flush()
            await asyncio.sleep(STEP_SECONDS)

    # A filter of the handlers runs directly before a record is written, whichever logger it is
    # from.
    for handler in logging.getLogger().handlers:
        handler.addFilter(clear)
    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        stream.write(CLEAR)
        stream.flush()
