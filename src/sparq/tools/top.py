"""The program `sparq top`: shows a cluster's channels, one row each, refreshed at an interval.

1. On a terminal it fills the screen: keys sort and select rows, `/` filters them, Enter opens a
   channel with its nsqds and clients; a narrow terminal shows fewer columns. Otherwise, and if
   `TERM` is `dumb`, each refresh prints lines that begin with the time, or with `--json` one line
   of JSON. With `--once` it prints one table or one document, and exits.
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
6. A column has the same name on the command line (`--sort`) and for its key, the underlined letter
   of its heading; pressing the key again reverses the order. Numbers start with the largest, names
   with the first, states with the worst; unknown values sort as the smallest.
7. Text from a peer is drawn as plain text, never read as markup: names are those that NSQ allows,
   and other text contains no control characters (`cluster`).
8. Exit status: 0 after `q`, after `--count` refreshes and after a signal; 1 if no nsqd answers and
   the program would exit by itself (`--once`, `--count`), or if standard output cannot be written.
   With `--once` it is also 1 if any daemon did not answer: the table is then incomplete.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sparq.cluster.figures import Client
from sparq.cluster.rows import Key, total
from sparq.options.mistakes import suggestion
from sparq.options.units import SECOND
from sparq.tools.cluster import ANYWHERE, ClusterPoller, fleet_of
from sparq.tools.commands import ToolError
from sparq.tools.commands import TopOptions as Options
from sparq.tools.common import QUITTING, unless_stopped
from sparq.tools.overview import ORDER, ChannelPart, Overview, OverviewRow, SampleHistory
from sparq.tools.tables import GAP, aligned, cell, duration, rate, table
from sparq.tools.terminal import STDOUT, Pipe, full_screen

PROGRAM: Final = "sparq top"
SIGNALS: Final = QUITTING
REQUEST_NS: Final = 5 * SECOND
ONCE_REQUEST_NS: Final = SECOND * 4 // 5
"""A script that asks once waits less than 3 s for a hung nsqd: the interval, and this once."""

FIELDS: Final = (
    *("topic", "channel", "state", "in_rate", "out_rate", "depth", "in_flight", "deferred"),
    *("lag_seconds", "requeue_rate", "timeout_rate", "clients", "paused", "topic_paused", "gone"),
)
"""The keys of a row in JSON: unknown values are null, and a topic's row has the channel ""."""

FILTER_LENGTH_MAX: Final = 64
COMPLAINTS_MAX: Final = 3
FRAME_LINES: Final = 4
"""The head line, the table's headings, the keys, and one free line."""

KEYS: Final = (
    "q: quit   underlined letter: sort, again: reverse   arrows: select   Enter: open"
    "   /: filter   space: freeze"
)
DISMISS_KEY: Final = "   x: dismiss gone nsqds"
NOT_LISTED: Final = "no nsqlookupd lists it any more"
CHANNEL_KEYS: Final = (
    "q: quit   Esc: back   arrows, pages, home, end: scroll the clients   space: freeze"
)
OTHER_LINES: Final = 4
"""The first line, the headings of both tables, and a blank line between the tables."""

NAME_WIDTH: Final = 12
"""Names are cut to this width before a column with a figure is dropped."""


class Column(NamedTuple):
    """A column: its key and heading, and the field of a row that it shows."""

    key: str
    heading: str
    field: str

    @property
    def is_text(self) -> bool:
        """Whether it holds text."""
        return self.field in ("topic", "channel", "state")

    def value(self, row: OverviewRow) -> Any:
        """Return the value of a row's cell; None: unknown, as if no nsqd that has it answers."""
        return getattr(row, self.field) if row.nodes or self.is_text else None

    def order(self, row: OverviewRow) -> Any:
        """Return the value that rows are sorted by."""
        value = self.value(row)
        if self.field == "state":
            return row.severity, value
        return -1 if value is None else value

    def text(self, row: OverviewRow) -> str:
        """Format a row's cell."""
        return cell(self.field, self.value(row))


COLUMNS: Final = (
    Column("t", "TOPIC", "topic"),
    Column("c", "CHANNEL", "channel"),
    Column("i", "IN/S", "in_rate"),
    Column("o", "OUT/S", "out_rate"),
    Column("d", "DEPTH", "depth"),
    Column("f", "IN FLIGHT", "in_flight"),
    Column("e", "DEFERRED", "deferred"),
    Column("l", "LAG", "lag_seconds"),
    Column("r", "REQUEUED/S", "requeue_rate"),
    Column("m", "TIMED OUT/S", "timeout_rate"),
    Column("n", "CLIENTS", "clients"),
    Column("p", "PAUSED", "paused"),
    Column("a", "STATE", "state"),
)
BY_KEY: Final = {column.key: column for column in COLUMNS}
FIGURES: Final = [column for column in COLUMNS[2:] if column.key not in "pa"]
"""The columns that an opened channel shows of each nsqd."""

SPARED: Final = "pmrenfiola"
"""The keys of columns that a narrow terminal drops, in this order; never the sort column."""


def _name(text: str) -> str:
    return text.lower().replace(" ", "_").replace("-", "_").removesuffix("/s")


BY_NAME: Final = {_name(column.heading): column for column in COLUMNS}


def column_name(text: str) -> str:
    """Return a column's name, given its name or heading in any case, with or without ``/S``.

    Two words may be joined by a space, a dash or an underscore.

    Raises:
        ValueError: there is no such column.
    """
    wanted = _name(text)
    if wanted not in BY_NAME:
        raise ValueError(f"column must be one of {', '.join(BY_NAME)}{suggestion(wanted, BY_NAME)}")
    return wanted


async def serve(options: Options, stop: asyncio.Event, output: Pipe = STDOUT) -> int:
    """Poll the cluster and show the results until there are enough or the event is set.

    Raises:
        UsageError: the options are not valid.
        ToolError, BrokenPipeError: no nsqd answers, or the output cannot be written.
    """
    if not options.http_client_request_timeout_ns:
        timeout = ONCE_REQUEST_NS if options.once else REQUEST_NS
        options = replace(options, http_client_request_timeout_ns=timeout)
    async with fleet_of(options, ANYWHERE) as fleet:
        poller = ClusterPoller(fleet, options.topic, options.channel)
        watcher = Watcher(options, poller)
        to_read_back = options.once or options.json
        if os.isatty(1) and os.environ.get("TERM") != "dumb" and not to_read_back:
            await unless_stopped(watcher.fill_screen(stop), stop)
            return 0
        await unless_stopped(watcher.print_lines(output), stop)
    return int(options.once and bool(watcher.errors))


@dataclass(slots=True)
class ChannelFacts:
    """The data of the opened channel.

    Attributes:
        row: the sum over its nsqds; None if no nsqd has it any more.
        parts: its row at each nsqd.
        clients: its clients, each with the address of its nsqd; None until an nsqd has been asked.
    """

    row: OverviewRow | None = None
    parts: list[ChannelPart] = field(default_factory=list)
    clients: list[tuple[str, Client]] | None = None


class Watcher:
    """Polls a cluster at an interval.

    Attributes:
        errors: why a daemon did not answer the last request, by its address.
    """

    def __init__(self, options: Options, cluster: ClusterPoller) -> None:
        self.errors: dict[str, str] = {}
        self._options = options
        self._cluster = cluster
        self._interval = options.interval_ns / SECOND
        self._history = SampleHistory()

    async def refresh(self) -> Overview:
        """Return the current overview, with rates since the last call."""
        seen = self._history.add(await self._cluster.stats(), time.monotonic())
        errors = self._cluster.errors
        self.errors = {at: why for at, why in errors.items() if at not in seen.drained}
        return seen

    async def print_lines(self, output: Pipe) -> None:
        """Print each overview, for a pipe or a file.

        Raises:
            ToolError, BrokenPipeError: no nsqd answers, and the program would exit by itself; or
                standard output cannot be written.
        """
        options = self._options
        wanted = 1 if options.once else options.count
        printed, began, screen = 0, time.monotonic(), Screen(options.sort)
        # The first overview is not printed: rates need two samples.
        seen = await self.refresh()
        while not wanted or printed < wanted:
            if not seen.nsqds and wanted:
                reasons = [f"{address}: {why}" for address, why in self.errors.items()]
                raise ToolError("; ".join(reasons) or "nsqlookupd knows no nsqd")
            # From the beginning of the last refresh: a hung nsqd does not add its timeout twice.
            await asyncio.sleep(max(0.0, began + self._interval - time.monotonic()))
            began = time.monotonic()
            seen = await self.refresh()
            rows = screen.sorted(seen.rows)
            if options.json:
                document = {
                    "time": f"{datetime.now().astimezone().isoformat(timespec='milliseconds')}",
                    "nsqds": seen.nsqds,
                    "rows": [{name: getattr(row, name) for name in FIELDS} for row in rows],
                    "gone": seen.gone,
                    "errors": {**self.errors, **seen.ill},
                }
                lines = [json.dumps(document, ensure_ascii=False)]
            else:
                lines = _lines_of(COLUMNS, rows)
                if not options.once:
                    now = f"{datetime.now():%Y-%m-%dT%H:%M:%S}"
                    lines = [f"{'TIME':19}  {lines[0]}", *(f"{now}  {line}" for line in lines[1:])]
            await output.write("".join(f"{line}\n" for line in lines).encode())
            for complaint in () if options.json else complaints(seen, self.errors):
                sys.stderr.write(f"{PROGRAM}: {complaint}\n")
            printed += 1

    async def fill_screen(self, stop: asyncio.Event) -> None:
        """Draw each overview on the screen, and execute keys."""
        screen, seen, facts = Screen(self._options.sort), Overview(), ChannelFacts()
        is_opened = asyncio.Event()
        shown = 0

        def draw() -> None:
            screen.live.update(screen.contents(seen, self.errors, facts), refresh=True)

        def press(key: str) -> None:
            nonlocal facts
            opened = screen.opened
            if key == "q" and not screen.is_typing:
                stop.set()
            elif key == "x" and not screen.is_typing:
                self._history.dismiss_gone()
            else:
                screen.press(key)
            if screen.opened != opened:
                facts = ChannelFacts()
                is_opened.set()
            draw()

        with full_screen(screen.live, press):
            draw()
            while True:
                found = await self.refresh()
                if not screen.is_frozen:
                    seen = found
                    facts = await self._facts(screen, seen, facts)
                    draw()
                if self._options.count and shown >= self._options.count:
                    return
                shown += 1
                # Wait until the next refresh is due; ask about a channel that is opened meanwhile.
                end = time.monotonic() + self._interval
                while (rest := end - time.monotonic()) > 0:
                    try:
                        async with asyncio.timeout(rest):
                            await is_opened.wait()
                    except TimeoutError:
                        break
                    is_opened.clear()
                    facts = await self._facts(screen, seen, facts)
                    draw()

    async def _facts(self, screen: Screen, seen: Overview, before: ChannelFacts) -> ChannelFacts:
        """Return the facts of the opened channel, if there is one, with its clients."""
        key = screen.opened
        if key is None:
            return before
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
        return ChannelFacts(row, parts, clients) if screen.opened == key else ChannelFacts()


class Screen:
    """What the terminal shows: a head line, rows or one channel, errors, and the keys.

    One row is selected, and stays selected while rows change places. Enter opens its channel with
    its figures at each nsqd and its clients, which can be scrolled; Esc closes it. `/` begins a
    filter: a text that a row must have in its topic, channel or state.

    Args:
        sort: name of the column to sort by.
        console: the terminal.

    Attributes:
        live: uses the full screen for the duration of a `with` block.
        is_frozen: whether the screen stays unchanged.
        filter: text that a row must have; "": all rows are shown.
        is_typing: whether keys are letters of the filter.
        opened: topic and channel that is shown alone; None: the list of all.
    """

    def __init__(self, sort: str = "topic", console: Console | None = None) -> None:
        self._console = console or Console()
        self.live = Live(console=self._console, screen=True, auto_refresh=False)
        self.is_frozen = self.is_typing = False
        self.filter = ""
        self.opened: Key | None = None
        self._column = BY_NAME[sort]
        self._is_descending = self._column.key not in "tc"
        self._first = self._cursor = self._complaints = self._matching = 0
        self._selected: Key | None = None  # None: the selection stays in its position
        self._keys: list[Key] = []

    # Keys

    def press(self, key: str) -> None:
        """Handle a key: a character, or one of the names in `terminal.NAMES`."""
        page = self._page_size()
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        steps |= {"home": -sys.maxsize, "end": sys.maxsize}
        if self.is_typing:
            self._type(key)
        elif key == "space":
            self.is_frozen = not self.is_frozen
        elif self.opened is not None:
            self._first = max(0, self._first + steps.get(key, 0))
            if key == "escape":
                self.opened, self._first = None, 0
        elif key == "escape":
            self.filter = ""
        elif key == "/":
            self.is_typing = True
        elif (column := BY_KEY.get(key)) is not None:
            is_same = column is self._column
            self._is_descending = not self._is_descending if is_same else key not in "tc"
            self._column, self._first, self._cursor, self._selected = column, 0, 0, None
        elif self._keys and key == "enter":
            self.opened, self._first = self._keys[self._cursor], 0
        elif self._keys and key in steps:
            self._cursor = max(0, min(self._cursor + steps[key], len(self._keys) - 1))
            self._selected = None if key == "home" else self._keys[self._cursor]

    def _type(self, key: str) -> None:
        """Handle a key while the filter is typed: Enter keeps the filter, Esc drops it."""
        letter = " " if key == "space" else key
        if key in ("enter", "escape"):
            self.is_typing = False
        if key == "escape":
            self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(letter) == 1:
            self.filter = (self.filter + letter)[:FILTER_LENGTH_MAX]

    # Rows

    def _page_size(self) -> int:
        """Return the number of rows that fit, given the error lines of the last refresh."""
        lines = self._console.height - FRAME_LINES - min(self._complaints, COMPLAINTS_MAX + 1)
        return max(1, lines)

    def sorted(self, rows: Iterable[OverviewRow]) -> list[OverviewRow]:
        """Return all rows in order; equal ones by topic and channel."""
        # Two sorts: with one key, `reverse` would also reverse the names of equal rows.
        by_name = sorted(rows, key=lambda row: row.key)
        return sorted(by_name, key=self._column.order, reverse=self._is_descending)

    def page(self, rows: Sequence[OverviewRow]) -> list[tuple[OverviewRow, bool]]:
        """Return the rows that fit; one of them is the selected one, which Enter opens."""
        wanted, size = self.filter.lower(), self._page_size()
        found = self.sorted(
            row for row in rows if wanted in f"{row.topic}/{row.channel} {row.state}".lower()
        )
        self._keys = [row.key for row in found]
        self._matching = len(found)
        # Found again by its name: rows move when figures change, and Enter must open the row that
        # was selected.
        if self._selected in self._keys:
            self._cursor = self._keys.index(self._selected)
        else:
            self._selected = None
        self._cursor = max(0, min(self._cursor, len(found) - 1))
        first = max(self._cursor - size + 1, min(self._first, self._cursor))
        self._first = first = max(0, min(first, len(found) - size))
        return [(row, at == self._cursor) for at, row in enumerate(found)][first : first + size]

    # Drawing

    def contents(self, seen: Overview, errors: dict[str, str], opened: ChannelFacts) -> Group:
        """Return the content of the screen; `opened` has the facts of the opened channel."""
        wrong = complaints(seen, errors)
        self._complaints = len(wrong)
        if len(wrong) > COMPLAINTS_MAX:
            wrong[COMPLAINTS_MAX:] = [f"... and {len(wrong) - COMPLAINTS_MAX} more"]
        body = self._rows(seen) if self.opened is None else self._channel(self.opened, opened)
        # The filter while it is typed or active, otherwise the keys.
        last = KEYS + (DISMISS_KEY if seen.gone else "")
        if self.is_typing:
            last = f"filter: {self.filter}_   Enter: keep it   Esc: show all"
        elif self.opened is not None:
            last = CHANNEL_KEYS
        elif self.filter:
            last = f"filter: {self.filter}   {self._matching} of {len(seen.rows)} rows   Esc: all"
        first = [
            PROGRAM,
            "frozen" if self.is_frozen else f"{datetime.now():%H:%M:%S}",
            f"{seen.nsqds} nsqds" + (f", {len(seen.gone)} gone" if seen.gone else ""),
            f"{seen.topics:,} topics",
            f"in {rate(seen.in_rate)}/s",
            f"out {rate(total(row.out_rate for row in seen.rows) if seen.rows else None)}/s",
            f"depth {sum(row.depth for row in seen.rows):,}",
            f"in flight {sum(row.in_flight for row in seen.rows):,}",
        ]
        errors_shown = [_line(text, "red") for text in wrong]
        return Group(_line("   ".join(first), "bold"), *body, *errors_shown, _line(last, "dim"))

    def _rows(self, seen: Overview) -> list[Text]:
        page = self.page(seen.rows)
        columns = fitting(seen.rows, self._console.width, self._column)
        styles = []
        for row, is_selected in page:
            # Red if messages wait and none is finished, yellow for less.
            style = "yellow" if row.severity >= ORDER.index("behind") or row.gone else ""
            waits = row.depth or row.in_flight or row.gone
            if waits and row.severity >= ORDER.index("no channel"):
                style = "red"
            if row.paused:
                style = "dim"
            styles.append("reverse" if is_selected else style)
        arrow = " v" if self._is_descending else " ^"
        marked = [
            each._replace(heading=each.heading + arrow) if each is self._column else each
            for each in columns
        ]
        # With all rows, so that the columns do not move sideways while scrolling.
        rows = [*(row for row, _ in page), *seen.rows]
        head, *lines = self._styled(_lines_of(marked, rows, self._console.width), styles)
        for column in columns:
            if (at := head.plain.find(column.heading)) >= 0:
                at += column.heading.lower().index(column.key)
                head.stylize("underline", at, at + 1)
        return [head, *lines]

    def _channel(self, key: Key, facts: ChannelFacts) -> list[Text]:
        """Return the lines of the opened channel."""
        topic, channel = key
        height = self._page_size() + 1
        head = "no nsqd has it any more"
        if facts.row is not None:
            head = facts.row.state
            if head.startswith("stuck"):
                head += f": nothing finished for {duration(facts.row.unfinished_seconds)}"
            head += "   read by Spark" if facts.row.reader else ""
        lines = [_line(f"{topic} / {channel}   {head}" if channel else f"{topic}   {head}", "bold")]
        parts = facts.parts[: max(1, height // 2)]
        some = "" if len(parts) == len(facts.parts) else f" ({len(parts)} of {len(facts.parts)})"
        cells = [["NSQD" + some, *(column.heading for column in FIGURES), ""]]
        for part in parts:
            figures = [column.text(part.row) for column in FIGURES]
            cells.append([part.address, *figures, "gone: last figures" if part.is_gone else ""])
        styles = ["yellow" if part.is_gone else "" for part in parts]
        lines += self._styled(aligned(cells, (0,), self._console.width), styles)
        if channel:
            room = max(1, height - OTHER_LINES - len(parts))
            lines += [Text(), *self._clients(facts.clients, room)]
        return lines

    def _clients(self, clients: list[tuple[str, Client]] | None, room: int) -> list[Text]:
        if not clients:
            text = "asking for its clients ..." if clients is None else "no clients"
            return [Text(text, style="dim")]
        self._first = max(0, min(self._first, len(clients) - room))
        shown, now = clients[self._first : self._first + room], time.time()
        rows = [
            {
                **{"nsqd": address, "host": one.hostname, "address": one.remote_address},
                **{"client": one.client_id, "user_agent": one.user_agent},
                **{"rdy": one.ready_count, "in_flight": one.in_flight_count},
                **{"finished": one.finish_count, "requeued": one.requeue_count},
                "connected_seconds": max(0.0, now - one.connect_ts) if one.connect_ts else None,
            }
            for address, one in shown
        ]
        head, *lines = table([*rows[0]], rows, self._console.width)
        if len(shown) < len(clients):
            head += f" ({self._first + 1}-{self._first + len(shown)} of {len(clients)})"
        return self._styled([head, *lines], [""] * len(shown))

    def _styled(self, lines: Sequence[str], styles: Sequence[str]) -> list[Text]:
        """Return the first lines of a table: its headings, and as many as there are styles."""
        # Text objects: rich would read a plain string as markup.
        return [
            _line(line.ljust(self._console.width), style)
            for line, style in zip(lines, ("reverse", *styles), strict=False)
        ]


def _lines_of(
    columns: Sequence[Column], rows: Iterable[OverviewRow], width: int = sys.maxsize
) -> list[str]:
    """Return the lines of a table, as `aligned` does."""
    cells = [[column.heading for column in columns]]
    cells += [[column.text(row) for column in columns] for row in rows]
    texts = [at for at, column in enumerate(columns) if column.is_text]
    return aligned(cells, texts, width)


def complaints(seen: Overview, errors: dict[str, str]) -> list[str]:
    """Return a sentence per failing daemon; for a gone nsqd it includes the last figures."""
    found = {**errors, **seen.ill}
    for address, last in seen.gone.items():
        found[address] = (
            f"{found.get(address, NOT_LISTED)}; gone for {duration(last['seconds'])}, its last"
            f" figures: depth {last['depth']:,}, in flight {last['in_flight']:,},"
            f" deferred {last['deferred']:,}"
        )
    # Daemons that are gone come first: their messages cannot be delivered.
    first = sorted(found, key=lambda address: address not in seen.gone)
    return [f"{address}: {found[address]}" for address in first]


def _line(text: str, style: str = "") -> Text:
    """Return a line that is cut at the screen's width."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def fitting(rows: Sequence[OverviewRow], width: int, sorted_by: Column) -> list[Column]:
    """Return which columns fit side by side: names are cut, then columns are dropped."""
    widths = {
        column: max(len(column.heading), *(len(column.text(row)) for row in rows), 0)
        for column in COLUMNS
    }
    widths[sorted_by] = max(widths[sorted_by], len(sorted_by.heading) + len(" v"))
    for column in COLUMNS[:2]:
        widths[column] = min(widths[column], NAME_WIDTH)
    for key in SPARED:
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) <= width:
            break
        if BY_KEY[key] is not sorted_by:
            del widths[BY_KEY[key]]
    return [*widths]
