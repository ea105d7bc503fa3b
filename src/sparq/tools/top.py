"""The program `sparq top`: what goes on in a cluster, a row a channel, looked at again and again.

1. On a terminal it fills the screen, and keys sort and scroll (`view`); a narrow one has fewer
   columns. Elsewhere, and where `TERM` is `dumb`, each look is a block of lines, which begin with
   the time; with `--once` there is one table and then the end.
2. Rates need two looks. A screen shows the first one without them; lines begin with the second.
3. It asks over HTTP what any nsqd answers (`cluster`), sparq's and Go's, and changes nothing.
4. Exit status: 0 after `q`, after `--count` looks and after a signal; 1 when no nsqd answers a
   program that is to end (`--once`, `--count`), or standard output takes no more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final

from sparq.client.address import lookupd_url, split_texts
from sparq.protocol.durations import SECOND
from sparq.protocol.names import is_valid_name, quote
from sparq.tools.cluster import Cluster
from sparq.tools.columns import aligned
from sparq.tools.command_line import Failed, UsageError
from sparq.tools.commands.top import PROGRAM, Options, main
from sparq.tools.common import QUITTING, check_addresses, run
from sparq.tools.interruption import unless_stopped
from sparq.tools.keyboard import keyboard
from sparq.tools.overview import Look, Overview, look, overview
from sparq.tools.pipes import Output
from sparq.tools.screen import Screen
from sparq.tools.terminal import taken
from sparq.tools.view import COLUMNS, View, cells

LEFT: Final = sum(column.is_text for column in COLUMNS)


def start(options: Options) -> int:
    """Run the program; the exit status."""
    return run(PROGRAM, partial(watch, options, Output()), QUITTING)


async def watch(options: Options, output: Output, stop: asyncio.Event) -> int:
    """Look, and show what was seen, until there is enough or the event is set.

    Raises:
        UsageError: the options ask for what cannot be.
        Failed: no nsqd answers, or what was seen cannot be written.
    """
    async with _cluster(options) as cluster:
        watcher = Watcher(options, cluster, output, stop)
        if os.isatty(1) and os.environ.get("TERM") != "dumb" and not options.once:
            await unless_stopped(watcher.fill_screen(), stop)
            return 0
        try:
            await unless_stopped(watcher.print_lines(), stop)
        except BrokenPipeError:
            return 1
        except OSError as error:
            raise Failed(f"failed to write to standard output: {error.strerror}") from None
    return 0


def _cluster(options: Options) -> Cluster:
    """The cluster that is asked.

    Raises:
        UsageError: the options ask for what cannot be.
    """
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    if not any(nsqds) and not any(lookupds):
        raise UsageError("--nsqd-http-address or --lookupd-http-address required")
    if nsqds and lookupds:
        raise UsageError("use --nsqd-http-address or --lookupd-http-address not both")
    check_addresses("nsqd-http-address", nsqds, lookupd_url)
    check_addresses("lookupd-http-address", lookupds, lookupd_url)
    for name in ("interval", "http_client_connect_timeout", "http_client_request_timeout"):
        if getattr(options, f"{name}_ns") <= 0:
            raise UsageError(f"--{name.replace('_', '-')} should be positive")
    if options.count < 0:
        raise UsageError("--count should not be negative")
    for kind, name in (("topic", options.topic), ("channel", options.channel)):
        if name and not is_valid_name(name):
            raise UsageError(f"--{kind}: {quote(name)} is not a valid name")
    return Cluster(
        split_texts(nsqds),
        split_texts(lookupds),
        connect_seconds=options.http_client_connect_timeout_ns / SECOND,
        request_seconds=options.http_client_request_timeout_ns / SECOND,
        topic=options.topic,
        channel=options.channel,
    )


class Watcher:
    """Looks at a cluster at an interval.

    Attributes:
        errors: who did not answer the last time, and why.
    """

    def __init__(
        self, options: Options, cluster: Cluster, output: Output, stop: asyncio.Event
    ) -> None:
        self.errors: dict[str, str] = {}
        self._options = options
        self._cluster = cluster
        self._output = output
        self._stop = stop
        self._view = View(options.sort)
        self._looks: Mapping[str, Look] = {}

    async def look(self) -> Overview:
        """What is to be seen now, with rates since the last time."""
        stats = await self._cluster.stats()
        self.errors = dict(self._cluster.errors)
        before, now = self._looks, {}
        for address, document in stats.items():
            try:
                now[address] = look(document, self._cluster.answered_at[address])
            except ValueError as error:
                self.errors[address] = str(error)
        # Whoever misses one look has its rate over both intervals at the next one.
        missed = {address: before[address] for address in before.keys() & self.errors.keys()}
        self._looks = {**missed, **now}
        return overview(before, now)

    async def pause(self) -> None:
        """Wait for the next look's time."""
        await asyncio.sleep(self._options.interval_ns / SECOND)

    async def print_lines(self) -> None:
        """For a pipe or a file.

        Raises:
            Failed: no nsqd answers a program that is to end.
            OSError: standard output takes no more.
        """
        wanted = 1 if self._options.once else self._options.count
        printed = 0
        seen = await self.look()
        while not wanted or printed < wanted:
            if not seen.nsqds and wanted:
                reasons = [f"{address}: {why}" for address, why in self.errors.items()]
                raise Failed("; ".join(reasons) or "nsqlookupd knows no nsqd")
            await self.pause()
            seen = await self.look()
            await self._print(seen)
            printed += 1

    async def _print(self, seen: Overview) -> None:
        stamp = [] if self._options.once else [f"{datetime.now():%Y-%m-%dT%H:%M:%S}"]
        rows = [[*stamp, *cells(row)] for row in self._view.sorted(seen.rows)]
        headings = [*(["TIME"] if stamp else []), *(column.heading for column in COLUMNS)]
        lines = aligned([headings, *rows], LEFT + len(stamp))
        await self._output.write("".join(f"{line}\n" for line in lines).encode())
        for address, why in {**self.errors, **seen.ill}.items():
            sys.stderr.write(f"{PROGRAM}: {address}: {why}\n")

    async def fill_screen(self) -> None:
        """For a person."""
        screen = Screen(self._view, PROGRAM)
        seen = Overview()
        shown = 0

        def pressed(key: str) -> None:
            if key == "q":
                self._stop.set()
            elif self._view.press(key, screen.page_size(len(self.errors))):
                screen.draw(seen, self.errors)

        with taken(partial(keyboard, pressed), screen.shown):
            screen.draw(seen, self.errors)
            while True:
                found = await self.look()
                if not self._view.is_frozen:
                    seen = found
                    screen.draw(seen, self.errors)
                if self._options.count and shown >= self._options.count:
                    return
                shown += 1
                await self.pause()


if __name__ == "__main__":
    sys.exit(main())
