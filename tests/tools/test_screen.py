"""The screen of `sparq top`: rows, errors and keys; an opened channel with its clients."""

from __future__ import annotations

import itertools
import re
from functools import partial

from rich.console import Console

from sparq.cluster.figures import Client
from sparq.cluster.rows import Reader
from sparq.tools.overview import ChannelPart, Overview, OverviewRow
from sparq.tools.screen import COMPLAINTS_MAX, ChannelFacts, Screen, fitting
from sparq.tools.view import BY_NAME, COLUMNS, View, aligned

row_of = partial(OverviewRow, nodes=1)
CLIENT = Client(
    *("10.0.0.1:5", "", "c1", "h1", "go-nsq"),
    **{"ready_count": 7, "in_flight_count": 3, "finish_count": 1234, "requeue_count": 2},
    connect_ts=1,
)


def drawn(
    facts: ChannelFacts, first: int = 0, height: int = 20, channel: str = "c", width: int = 150
) -> list[str]:
    """Return the lines of the opened channel, between the head line and the keys."""
    size = {"width": width, "height": height + 3}
    console = Console(**size, color_system=None, force_terminal=False)
    view = View()
    view.opened, view.first = ("t", channel), first
    with console.capture() as captured:
        console.print(Screen(view, "sparq top", console).contents(Overview(), {}, facts))
    return captured.get().rstrip("\n").split("\n")[1:-1]


def test_texts_of_clients_cannot_change_the_screen() -> None:
    """Control characters are not sent to the terminal."""
    hostile = Client(client_id="\x1b[2J", hostname="a", user_agent="u\n")

    shown = "".join(drawn(ChannelFacts(row_of("t", "c"), [], [("a:1", hostile)])))
    assert " [2J" in shown
    assert shown.isprintable()


def test_nsqds_and_clients_are_shown() -> None:
    """Each nsqd is shown with its figures, also one that is gone; each client with its counters."""
    row = row_of("t", "c", depth=7, clients=1, unfinished_seconds=72.0)
    parts = [ChannelPart("a:1", row_of("t", "c", depth=1_234, clients=1), False)]
    parts.append(ChannelPart("b:1", row_of("t", "c", depth=5), True))
    clients = [("a:1", CLIENT)]

    lines = drawn(ChannelFacts(row, parts, clients))

    assert "t / c   stuck: nothing finished for 1m12s" == lines[0].rstrip()
    assert ["NSQD", "IN/S", "OUT/S", "DEPTH"] == lines[1].split()[:4]
    assert ["a:1", "-", "-", "1,234"] == lines[2].split()[:4]
    assert lines[3].split()[3] == "5"
    assert lines[3].rstrip().endswith("gone: last figures")
    expected = ["a:1", "h1", "10.0.0.1:5", "c1", "go-nsq", "7", "3", "1,234", "2"]
    assert expected == lines[6].split()[:9]


def test_clients_scroll() -> None:
    """As many as fit are shown, with the total number; scrolling stops at the last one."""
    many = [("a:1", Client(client_id=f"c{n}", hostname=f"h{n}")) for n in range(100)]
    parts = [ChannelPart("a:1", row_of("t", "c"), False)]
    facts = ChannelFacts(row_of("t", "c"), parts, many)

    lines = drawn(facts, first=10, height=15)
    assert "CONNECTED (11-20 of 100)" in lines[4]
    assert [f"h{n}" for n in range(10, 20)] == [line.split()[1] for line in lines[5:]]
    assert "(91-100 of 100)" in drawn(facts, first=1_000, height=15)[4]


def test_missing_information_is_shown_as_text() -> None:
    """Texts replace missing answers, missing clients, missing channels and a deleted channel."""
    parts = [ChannelPart(f"n{number}:1", row_of("t", "c"), False) for number in range(30)]

    assert "asking for its clients ..." in drawn(ChannelFacts(row_of("t", "c"), parts))
    assert "no clients" in drawn(ChannelFacts(row_of("t", "c"), parts, []))
    assert "NSQD (10 of 30)" in drawn(ChannelFacts(row_of("t", "c"), parts))[1]
    assert ["t   no channel"] == [
        line.rstrip() for line in drawn(ChannelFacts(row_of("t")), channel="")[:1]
    ]
    assert "t / c   no nsqd has it any more" == drawn(ChannelFacts())[0].rstrip()
    spark = row_of("t", "c", reader=Reader("h:1", "", None))
    assert "read by Spark" in drawn(ChannelFacts(spark))[0]


def screen(width: int, height: int, errors: dict[str, str] | None = None, rows: int = 3) -> str:
    """Return the screen as text."""
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    many = [row_of("topic", f"channel{number}") for number in range(rows)]
    made = Screen(View("depth"), "sparq top", console)
    with console.capture() as captured:
        seen = Overview(many, 2, 1, 5.0, {"n:1": "NOK"})
        console.print(made.contents(seen, errors or {}, ChannelFacts()))
    return captured.get()


def test_rows_and_errors_fit_the_screen() -> None:
    """Rows, errors and keys fit; further errors are counted, further rows are scrolled."""
    text = screen(130, 12, {f"{number}:1": "connection refused" for number in range(9)}, rows=50)

    lines = text.rstrip("\n").split("\n")
    assert 11 == len(lines)
    assert 12 - 4 - COMPLAINTS_MAX - 1 == sum(line.startswith("topic") for line in lines)
    counts = r"2 nsqds   1 topics   in 5\.0/s   out -/s   depth 0"
    assert re.match(rf"sparq top   \d\d:\d\d:\d\d   {counts}", lines[0])
    assert "DEPTH v" in lines[1]
    assert "0:1: connection refused" in text
    assert "... and 7 more" in text
    assert "quit" in lines[-1]


def test_a_narrow_terminal_leaves_out_columns() -> None:
    """Less important columns are left out; names, rates, depth and lag stay longest."""
    wide, narrow = screen(130, 20), screen(80, 20)

    assert "PAUSED" in wide
    assert "PAUSED" not in narrow
    assert all(heading in narrow for heading in ("CHANNEL", "IN/S", "OUT/S", "DEPTH", "LAG"))


def test_only_names_are_cut() -> None:
    """Only names are cut; the sort column is shown at any width."""
    row = row_of("t" * 64, "c" * 64, depth=123_456_789, clients=1_234)
    for width, sorted_by in itertools.product((40, 60, 80, 200), ("depth", "clients", "paused")):
        cells = [column.text(row) for column in COLUMNS]
        kept = fitting([cells], width, BY_NAME[sorted_by])
        (line,) = aligned([[cells[at] for at in kept]], (0, 1), width)

        assert {BY_NAME["depth"], BY_NAME[sorted_by]} <= {COLUMNS[at] for at in kept}
        assert len(line) <= width
        assert re.match(r"ttt+…?  ccc+…?  .*123,456,789", line)
    assert [*range(len(COLUMNS))] == fitting([cells], 250, BY_NAME["topic"])
    assert [*range(len(COLUMNS))] == fitting([], 250, BY_NAME["topic"])


def test_texts_of_clients_are_cut_before_their_figures() -> None:
    """On a narrow terminal the longest texts are cut."""
    client = Client(hostname="h" * 90, user_agent="u" * 50, finish_count=1234)
    lines = drawn(ChannelFacts(row_of("t", "c"), [], [("a:1", client)]), width=100)

    assert re.match(r"a:1   h+… +u+… +0 +0 +1,234 +0 +-", lines[-1])
