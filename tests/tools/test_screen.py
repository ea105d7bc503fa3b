"""The screen of `sparq top`: its order, selection, filter and keys, rows, errors, one channel."""

from __future__ import annotations

import itertools
import re
from functools import partial

import pytest
from rich.console import Console

from sparq.cluster.figures import Client
from sparq.cluster.rows import Reader
from sparq.tools.overview import ChannelPart, Overview, OverviewRow
from sparq.tools.top import (
    BY_NAME,
    COLUMNS,
    COMPLAINTS_MAX,
    FRAME_LINES,
    ChannelFacts,
    Screen,
    column_name,
    complaints,
    fitting,
)

row_of = partial(OverviewRow, nodes=1)
ROWS = [
    row_of("a", "x", in_rate=5.0, out_rate=1.0, depth=3, in_flight=1, requeue_rate=9.0, clients=2),
    row_of("a", "y", depth=7, deferred=2, timeout_rate=1.0, paused=True, base="paused"),
    row_of(
        *("b", "x"),
        **{"in_rate": 50.0, "out_rate": 2.0, "depth": 3, "in_flight": 4, "clients": 1},
        **{"lag_seconds": 61.0, "base": "behind"},
    ),
]
CLIENT = Client(
    *("10.0.0.1:5", "", "c1", "h1", "go-nsq"),
    **{"ready_count": 7, "in_flight_count": 3, "finish_count": 1234, "requeue_count": 2},
    connect_ts=1,
)


def screen_of(sort: str = "topic", rows: int = 9, width: int = 150) -> Screen:
    """Return a screen with room for this number of rows."""
    size = {"width": width, "height": rows + FRAME_LINES}
    return Screen(sort, Console(**size, color_system=None, force_terminal=False))


def drawn(screen: Screen, facts: ChannelFacts, seen: Overview, **errors: str) -> list[str]:
    """Return the lines of the screen."""
    with screen._console.capture() as captured:
        screen._console.print(screen.contents(seen, errors, facts))
    return captured.get().rstrip("\n").split("\n")


def channel_drawn(
    facts: ChannelFacts, first: int = 0, rows: int = 19, channel: str = "c", width: int = 150
) -> list[str]:
    """Return the lines of the opened channel, between the head line and the keys."""
    screen = screen_of(rows=rows, width=width)
    screen.opened, screen._first = ("t", channel), first
    return drawn(screen, facts, Overview())[1:-1]


def order(screen: Screen) -> str:
    return " ".join(row.topic + row.channel for row in screen.sorted(ROWS))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        *(("t", "ax ay bx"), ("c", "ax bx ay"), ("i", "bx ax ay"), ("o", "bx ax ay")),
        *(("d", "ay ax bx"), ("f", "bx ax ay"), ("e", "ay ax bx"), ("l", "bx ax ay")),
        *(("r", "ax ay bx"), ("m", "ay ax bx"), ("n", "ax bx ay"), ("p", "ay ax bx")),
        ("a", "bx ay ax"),
    ],
)
def test_a_key_sorts_by_its_column(key: str, expected: str) -> None:
    """Names ascend, numbers descend; unknown values are last; the second press reverses."""
    screen = screen_of("in" if key != "i" else "out")
    screen.press(key)
    assert expected == order(screen)
    screen.press(key)
    assert expected.split(maxsplit=1)[0] != order(screen).split()[0]
    screen.press(key)
    assert expected == order(screen)


def test_every_column_has_its_key_in_its_heading() -> None:
    """The underlined letter is the key; no two columns share one, and none has q or x."""
    assert len({column.key for column in COLUMNS}) == len(COLUMNS)
    assert all(column.key in column.heading.lower() for column in COLUMNS)
    assert not {"q", "x"} & {column.key for column in COLUMNS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_column_is_named_by_its_heading(name: str) -> None:
    """The heading is accepted in any case; a space may be a dash or an underscore."""
    heading = BY_NAME[name].heading
    for text in (heading, heading.lower(), heading.replace(" ", "-"), heading.removesuffix("/S")):
        assert name == column_name(text)
    with pytest.raises(ValueError, match="column must be one of topic, channel, in, "):
        column_name(f"{name}s of")


def test_keys_move_the_selection() -> None:
    """The keys move by one, by a page, to the first and to the last row, which stays visible."""
    screen = screen_of(rows=4)
    rows = [row_of("t", f"c{number}") for number in range(10)]
    screen.page(rows)

    def selected(key: str) -> str:
        screen.press(key)
        (row,) = [row for row, is_selected in screen.page(rows) if is_selected]
        return row.channel

    keys = ("down", "page down", "page down", "down", "up", "page up", "page up", "up")
    assert ["c1", "c5", "c9", "c9", "c8", "c4", "c0", "c0"] == [selected(key) for key in keys]
    assert ["c9", "c0"] == [selected(key) for key in ("end", "home")]
    selected("page down")
    assert "c0" == selected("c")


def test_a_selection_follows_its_row() -> None:
    """Rows may change places between two samples; before any key the first place stays selected."""
    screen = screen_of("depth")
    before = [row_of("t", name, depth=depth) for name, depth in (("a", 3), ("b", 2), ("c", 1))]
    now = [row_of("t", name, depth=depth) for name, depth in (("a", 3), ("b", 9), ("c", 5))]

    assert ("a", True) == (screen.page(before)[0][0].channel, screen.page(before)[0][1])
    assert ("b", True) == (screen.page(now)[0][0].channel, screen.page(now)[0][1])
    screen.page(before)
    screen.press("down")
    for rows in (now, before):
        assert ["b"] == [row.channel for row, is_selected in screen.page(rows) if is_selected]


def test_a_filter_is_typed_until_enter_or_esc() -> None:
    """The filter matches topic, channel and state in any case; until Enter or Esc keys are text."""
    screen = screen_of()
    rows = [
        row_of("clicks", "archive"),
        row_of("Orders", "mail", base="no consumers"),
        row_of("orders", "b2-x#e", base="no consumers"),
    ]

    def shown(*keys: str) -> list[str]:
        for key in keys:
            screen.press(key)
        return [row.channel for row, _ in screen.page(rows)]

    assert ["mail", "b2-x#e"] == shown("/", "o", "R", "d")
    assert ["mail", "b2-x#e"] == shown("q", "backspace", "enter")
    assert (False, "oRd") == (screen.is_typing, screen.filter)
    assert ["mail", "archive", "b2-x#e"] == shown("escape")
    assert ["b2-x#e"] == shown("/", *"b2-x#")
    assert 3 == len(shown("escape"))
    assert ["mail", "b2-x#e"] == shown("/", *"no", "space", *"cons")
    assert [] == shown(*"zzz", "enter")
    assert [] == shown("enter", "down", "end")
    assert screen.opened is None


def test_a_channel_is_opened_and_closed() -> None:
    """Enter opens the selected row, the list's keys do nothing in it, Esc closes it."""
    screen = screen_of()
    screen.page(ROWS)
    screen.press("down")
    screen.page(ROWS)

    screen.press("enter")
    assert ("a", "y") == screen.opened
    for key in ("d", "page down", "up", "space"):
        screen.press(key)
    assert (8, True) == (screen._first, screen.is_frozen)
    screen.press("escape")
    assert (None, "ax ay bx") == (screen.opened, order(screen))


def test_rows_and_errors_fit_the_screen() -> None:
    """Rows, errors and keys fit; further errors are counted, further rows are scrolled."""
    screen = screen_of("depth", rows=8, width=130)
    rows = [row_of("topic", f"channel{number}") for number in range(50)]
    errors = {f"{number}:1": "connection refused" for number in range(9)}
    lines = drawn(screen, ChannelFacts(), Overview(rows, 2, 1, 5.0, {"n:1": "NOK"}), **errors)

    assert 11 == len(lines)
    assert 8 - COMPLAINTS_MAX - 1 == sum(line.startswith("topic") for line in lines)
    counts = r"2 nsqds   1 topics   in 5\.0/s   out -/s   depth 0"
    assert re.match(rf"sparq top   \d\d:\d\d:\d\d   {counts}", lines[0])
    assert "DEPTH v" in lines[1]
    assert any("0:1: connection refused" in line for line in lines)
    assert any("... and 7 more" in line for line in lines)
    assert "quit" in lines[-1]


def test_a_gone_nsqd_is_named_first_with_its_last_figures() -> None:
    """With the reason why it does not answer, or that no nsqlookupd lists it any more."""
    last = {"seconds": 302.0, "depth": 7, "in_flight": 0, "deferred": 0}
    seen = Overview(gone={"b:1": last, "c:1": last})
    told = "gone for 5m02s, its last figures: depth 7, in flight 0, deferred 0"

    assert [
        f"b:1: connection refused; {told}",
        f"c:1: no nsqlookupd lists it any more; {told}",
        "a:1: no answer in time",
    ] == complaints(seen, {"a:1": "no answer in time", "b:1": "connection refused"})


def test_only_names_are_cut_and_columns_are_left_out() -> None:
    """Less important columns are left out; the sort column is shown at any width."""
    row = row_of("t" * 64, "c" * 64, depth=123_456_789, clients=1_234)
    for width, sorted_by in itertools.product((40, 60, 80, 200), ("depth", "clients", "paused")):
        kept = fitting([row], width, BY_NAME[sorted_by])
        _, _, line, *_ = drawn(screen_of(sorted_by, width=width), ChannelFacts(), Overview([row]))

        assert {BY_NAME["depth"], BY_NAME[sorted_by]} <= {*kept}
        assert len(line) <= width
        assert re.match(r"ttt+…?  ccc+…?  .*123,456,789", line)
    narrow = {column.heading for column in fitting(ROWS, 80, BY_NAME["depth"])}
    assert {"TOPIC", "CHANNEL", "IN/S", "OUT/S", "DEPTH", "LAG"} < narrow
    assert "PAUSED" not in narrow
    assert [*COLUMNS] == fitting([row], 250, BY_NAME["topic"]) == fitting([], 250, BY_NAME["topic"])


def test_nsqds_and_clients_are_shown() -> None:
    """Each nsqd is shown with its figures, also one that is gone; each client with its counters.

    Texts of a client have no control characters, and are cut before figures.
    """
    stuck = {"base": "stuck", "unfinished_seconds": 72.0}
    row = row_of("t", "c", depth=7, clients=1, **stuck)
    parts = [ChannelPart("a:1", row_of("t", "c", depth=1_234, clients=1), False)]
    parts.append(ChannelPart("b:1", row_of("t", "c", depth=5), True))

    lines = channel_drawn(ChannelFacts(row, parts, [("a:1", CLIENT)]))
    assert "t / c   stuck: nothing finished for 1m12s" == lines[0].rstrip()
    assert ["NSQD", "IN/S", "OUT/S", "DEPTH"] == lines[1].split()[:4]
    assert ["a:1", "-", "-", "1,234"] == lines[2].split()[:4]
    assert lines[3].split()[3] == "5"
    assert lines[3].rstrip().endswith("gone: last figures")
    expected = ["a:1", "h1", "10.0.0.1:5", "c1", "go-nsq", "7", "3", "1,234", "2"]
    assert expected == lines[6].split()[:9]
    hostile = Client(client_id="\x1b[2J", hostname="a", user_agent="u\n")
    shown = "".join(channel_drawn(ChannelFacts(row, [], [("a:1", hostile)])))
    assert (True, True) == (" [2J" in shown, shown.isprintable())
    long = Client(hostname="h" * 90, user_agent="u" * 50, finish_count=1234)
    lines = channel_drawn(ChannelFacts(row, [], [("a:1", long)]), width=100)
    assert re.match(r"a:1   h+… +- +- +u+… +0 +0 +1,234 +0 +-", lines[-1])


def test_clients_scroll() -> None:
    """As many as fit are shown, with the total number; scrolling stops at the last one."""
    many = [("a:1", Client(client_id=f"c{n}", hostname=f"h{n}")) for n in range(100)]
    parts = [ChannelPart("a:1", row_of("t", "c"), False)]
    facts = ChannelFacts(row_of("t", "c"), parts, many)

    lines = channel_drawn(facts, first=10, rows=14)
    assert "CONNECTED (11-20 of 100)" in lines[4]
    assert [f"h{n}" for n in range(10, 20)] == [line.split()[1] for line in lines[5:]]
    assert "(91-100 of 100)" in channel_drawn(facts, first=1_000, rows=14)[4]


def test_missing_information_is_shown_as_text() -> None:
    """Texts replace missing answers, missing clients, missing channels and a deleted channel."""
    parts = [ChannelPart(f"n{number}:1", row_of("t", "c"), False) for number in range(30)]
    row = row_of("t", "c")

    assert "asking for its clients ..." in channel_drawn(ChannelFacts(row, parts))
    assert "no clients" in channel_drawn(ChannelFacts(row, parts, []))
    assert "NSQD (10 of 30)" in channel_drawn(ChannelFacts(row, parts))[1]
    topic = ChannelFacts(row_of("t", base="no channel"))
    assert "t   no channel" == channel_drawn(topic, channel="")[0].rstrip()
    assert "t / c   no nsqd has it any more" == channel_drawn(ChannelFacts())[0].rstrip()
    spark = row_of("t", "c", reader=Reader("h:1", "", None))
    assert "read by Spark" in channel_drawn(ChannelFacts(spark))[0]
