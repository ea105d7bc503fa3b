"""The program `sparq top`: shows a cluster's channels, one row each, refreshed at an interval.

1. On a terminal it fills the screen: keys sort and select rows, `/` filters them, Enter opens a
   channel with its nsqds and clients (`view`); a narrow terminal shows fewer columns. Otherwise,
   and if `TERM` is `dumb`, each refresh prints lines that begin with the time, or with `--json` one
   line of JSON. With `--once` it prints one table or one document, and exits.
2. Rates need two samples. The screen shows the first one without rates; printed output begins with
   the second.
3. STATE says what is wrong with a channel; docs/operating.md, "Troubleshooting", says what to do.
   A topic without a channel, or with messages that its channels do not get because it is paused,
   has a row of its own, with the channel `-`. docs/glossary.md defines the words and figures.
   `stuck` needs a minute of watching: with `--once` such a channel is `behind` if its lag is long.
4. An nsqd that stops answering is reported as gone, with its last figures, which are in no sum;
   not so if it was drained before and had nothing left.
5. It uses HTTP requests that any nsqd answers (`cluster`), sparq's and Go's, and changes nothing.
   Go's nsqd does not report the age of the oldest message: its lag is estimated from OUT/S.
6. Exit status: 0 after `q`, after `--count` refreshes and after a signal; 1 if no nsqd answers and
   the program would exit by itself (`--once`, `--count`), or if standard output cannot be written.
   With `--once` it is also 1 if any daemon did not answer: the table is then incomplete.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from sparq.options.units import SECOND
from sparq.protocol.names import is_valid_name, quote
from sparq.tools.cluster import ANYWHERE, ClusterPoller, fleet_of
from sparq.tools.commands import IN_ENVIRONMENT, ToolError, UsageError, with_environment
from sparq.tools.commands import TopOptions as Options
from sparq.tools.common import QUITTING, check_one_kind, check_positive, unless_stopped
from sparq.tools.overview import Overview, SampleHistory
from sparq.tools.screen import ChannelFacts, Screen, complaints
from sparq.tools.terminal import STDOUT, PipeOutput, full_screen
from sparq.tools.view import COLUMNS, View, aligned

PROGRAM: Final = "sparq top"
SIGNALS: Final = QUITTING
REQUEST_NS: Final = 5 * SECOND
ONCE_REQUEST_NS: Final = SECOND * 4 // 5
"""A script that asks once waits less than 3 s for a hung nsqd: the interval, and this once."""

FIELDS: Final = (
    *("topic", "channel", "state", "in_rate", "out_rate", "depth", "in_flight", "deferred"),
    *("lag_seconds", "requeue_rate", "timeout_rate", "clients", "paused", "topic_paused", "gone"),
)
"""The keys of a row in JSON: unknown values are null, and a topic's row has the channel "".
"""


async def serve(options: Options, stop: asyncio.Event, output: PipeOutput = STDOUT) -> int:
    """Poll the cluster and show the results until there are enough or the event is set.

    Raises:
        UsageError: the options are not valid.
        ToolError, BrokenPipeError: no nsqd answers, or the output cannot be written.
    """
    options = with_environment(options)
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    check_one_kind("nsqd-http-address", nsqds, lookupds, IN_ENVIRONMENT)
    check_positive(options, "interval_ns")
    if options.count < 0:
        raise UsageError("--count should not be negative")
    for kind, name in (("topic", options.topic), ("channel", options.channel)):
        if name and not is_valid_name(name):
            raise UsageError(f"--{kind}: {quote(name)} is not a valid name")
    if not options.http_client_request_timeout_ns:
        timeout = ONCE_REQUEST_NS if options.once else REQUEST_NS
        options = replace(options, http_client_request_timeout_ns=timeout)
    async with fleet_of(options, ANYWHERE) as fleet:
        poller = ClusterPoller(fleet, options.topic, options.channel)
        watcher = Watcher(options, poller, output, stop)
        to_read_back = options.once or options.json
        if os.isatty(1) and os.environ.get("TERM") != "dumb" and not to_read_back:
            await unless_stopped(watcher.fill_screen(), stop)
            return 0
        await unless_stopped(watcher.print_lines(), stop)
    return int(options.once and bool(watcher.errors))


class Watcher:
    """Polls a cluster at an interval.

    Attributes:
        errors: why a daemon did not answer the last request, by its address.
    """

    def __init__(
        self, options: Options, cluster: ClusterPoller, output: PipeOutput, stop: asyncio.Event
    ) -> None:
        self.errors: dict[str, str] = {}
        self._options = options
        self._cluster = cluster
        self._output = output
        self._stop = stop
        self._view = View(options.sort)
        self._history = SampleHistory()
        self._is_opened = asyncio.Event()
        self._opened = ChannelFacts()

    async def refresh(self) -> Overview:
        """Return the current overview, with rates since the last call."""
        seen = self._history.add(await self._cluster.stats(), time.monotonic())
        errors = self._cluster.errors
        self.errors = {at: why for at, why in errors.items() if at not in seen.drained}
        return seen

    async def print_lines(self) -> None:
        """Print each overview, for a pipe or a file.

        Raises:
            ToolError, BrokenPipeError: no nsqd answers, and the program would exit by itself; or
                standard output cannot be written.
        """
        wanted = 1 if self._options.once else self._options.count
        printed = 0
        interval, began = self._options.interval_ns / SECOND, time.monotonic()
        # The first overview is not printed: rates need two samples.
        seen = await self.refresh()
        while not wanted or printed < wanted:
            if not seen.nsqds and wanted:
                reasons = [f"{address}: {why}" for address, why in self.errors.items()]
                raise ToolError("; ".join(reasons) or "nsqlookupd knows no nsqd")
            # From the beginning of the last refresh: a hung nsqd does not add its timeout twice.
            await asyncio.sleep(max(0.0, began + interval - time.monotonic()))
            began = time.monotonic()
            seen = await self.refresh()
            rows = self._view.sorted(seen.rows)
            if self._options.json:
                document = {
                    "time": f"{datetime.now().astimezone().isoformat(timespec='milliseconds')}",
                    "nsqds": seen.nsqds,
                    "rows": [{name: getattr(row, name) for name in FIELDS} for row in rows],
                    "gone": seen.gone,
                    "errors": {**self.errors, **seen.ill},
                }
                lines = [json.dumps(document, ensure_ascii=False)]
            else:
                cells = [[column.heading for column in COLUMNS]]
                cells += [[column.text(row) for column in COLUMNS] for row in rows]
                texts = {at for at, column in enumerate(COLUMNS) if column.is_text}
                lines = aligned(cells, texts)
                if not self._options.once:
                    now = f"{datetime.now():%Y-%m-%dT%H:%M:%S}"
                    lines = [f"{'TIME':19}  {lines[0]}", *(f"{now}  {line}" for line in lines[1:])]
            await self._output.write("".join(f"{line}\n" for line in lines).encode())
            for complaint in () if self._options.json else complaints(seen, self.errors):
                sys.stderr.write(f"{PROGRAM}: {complaint}\n")
            printed += 1

    async def fill_screen(self) -> None:
        """Draw each overview on the screen, and execute keys."""
        screen = Screen(self._view, PROGRAM)
        seen = Overview()
        shown = 0

        def draw() -> None:
            screen.draw(seen, self.errors, self._opened)

        with full_screen(screen.live, lambda key: self._press(key, screen, draw)):
            draw()
            while True:
                found = await self.refresh()
                if not self._view.is_frozen:
                    seen = found
                    await self._fetch_channel(seen)
                    draw()
                if self._options.count and shown >= self._options.count:
                    return
                shown += 1
                # Wait until the next refresh is due; ask about a channel that is opened meanwhile.
                end = time.monotonic() + self._options.interval_ns / SECOND
                while (rest := end - time.monotonic()) > 0:
                    try:
                        async with asyncio.timeout(rest):
                            await self._is_opened.wait()
                    except TimeoutError:
                        break
                    self._is_opened.clear()
                    await self._fetch_channel(seen)
                    draw()

    def _press(self, key: str, screen: Screen, draw: Callable[[], None]) -> None:
        opened = self._view.opened
        if self._view.is_typing or key not in ("q", "x"):
            self._view.press(key, screen.page_size())
        elif key == "q":
            self._stop.set()
        else:
            self._history.dismiss_gone()
        if self._view.opened != opened:
            self._opened = ChannelFacts()
            self._is_opened.set()
        draw()

    async def _fetch_channel(self, seen: Overview) -> None:
        """Ask for the clients of the opened channel, if there is one."""
        key = self._view.opened
        if key is None:
            return
        row = next((row for row in seen.rows if row.key == key), None)
        parts = self._history.parts(key)
        answers = await self._cluster.clients(*key) if key[1] else {}
        clients = [
            (address, client)
            for address, stats in answers.items()
            if (channel := stats.channel(*key)) is not None
            for client in channel.clients or ()
        ]
        clients.sort(key=lambda each: (each[0], each[1].hostname, each[1].remote_address))
        # The user may have opened another channel while the nsqds were asked.
        if self._view.opened == key:
            self._opened = ChannelFacts(row, parts, clients)
