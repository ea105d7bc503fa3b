"""How figures are shown: tables, and the columns, order and keys of the rows of sparq top."""

from __future__ import annotations

from functools import partial

import pytest

from sparq.tools.overview import OverviewRow
from sparq.tools.view import (
    BY_NAME,
    COLUMNS,
    View,
    column_name,
    duration,
    rate,
    table,
)


def test_cells_are_readable() -> None:
    """Numbers are right-aligned, texts left-aligned, times have units; unknown values are "-"."""
    rows = [
        {"name": "a", "depth": 12_345, "oldest_seconds": 61, "paused": True, "body": "x"},
        {"name": "long", "depth": None, "oldest_seconds": None, "paused": False, "body": "longer"},
    ]

    lines = table(("name", "depth", "oldest_seconds", "paused", "body"), rows, 1)

    assert [
        "NAME   DEPTH  OLDEST  PAUSED  BODY",
        "a     12,345   1m01s     yes  x",
        "long       -       -      no  longer",
    ] == lines


def test_control_characters_are_blanks() -> None:
    """Control characters are blanks in every cell."""
    hostile = {"name": "\x1b[2J\n", "note": "a\u202eb", "depth": "\x07"}

    text = "\n".join(table(("name", "note", "depth"), [hostile], 2))

    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert 1 == text.count("\n")


row_of = partial(OverviewRow, nodes=1)
ROWS = [
    row_of("a", "x", in_rate=5.0, out_rate=1.0, depth=3, in_flight=1, requeue_rate=9.0, clients=2),
    row_of("a", "y", in_rate=None, depth=7, deferred=2, timeout_rate=1.0, paused=True),
    row_of(
        *("b", "x"),
        **{"in_rate": 50.0, "out_rate": 2.0, "depth": 3, "in_flight": 4, "clients": 1},
        lag_seconds=61.0,
    ),
]


def order(view: View) -> list[str]:
    return [row.topic + row.channel for row in view.sorted(ROWS)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("t", ["ax", "ay", "bx"]),
        ("c", ["ax", "bx", "ay"]),
        ("i", ["bx", "ax", "ay"]),
        ("o", ["bx", "ax", "ay"]),
        ("d", ["ay", "ax", "bx"]),
        ("f", ["bx", "ax", "ay"]),
        ("e", ["ay", "ax", "bx"]),
        ("l", ["bx", "ax", "ay"]),
        ("r", ["ax", "ay", "bx"]),
        ("m", ["ay", "ax", "bx"]),
        ("n", ["ax", "bx", "ay"]),
        ("p", ["ay", "ax", "bx"]),
        ("a", ["bx", "ay", "ax"]),
    ],
)
def test_a_key_sorts_by_its_column(key: str, expected: list[str]) -> None:
    """Names ascend, numbers descend; unknown values are last, equal ones are sorted by name."""
    view = View("in" if key != "i" else "out")

    view.press(key, 10)
    assert expected == order(view)


def test_every_column_has_its_key_in_its_heading() -> None:
    """The underlined letter is the key; no two columns share one, and none has q."""
    assert len({column.key for column in COLUMNS}) == len(COLUMNS)
    assert all(column.key in column.heading.lower() for column in COLUMNS)
    assert "q" not in {column.key for column in COLUMNS}


def test_the_same_key_again_reverses_the_order() -> None:
    """The second press reverses the order, the third restores it."""
    view = View("depth")
    assert ["ay", "ax", "bx"] == order(view)
    view.press("d", 10)
    assert ["ax", "bx", "ay"] == order(view)
    view.press("d", 10)
    assert ["ay", "ax", "bx"] == order(view)


def test_keys_move_the_selection() -> None:
    """The keys move by one, by a page, to the first and to the last row, which stays visible."""
    view = View("topic")
    rows = [row_of("t", f"c{number}") for number in range(10)]
    view.page(rows, 4)

    def selected(key: str) -> str:
        view.press(key, 4)
        (row,) = [row for row in view.page(rows, 4) if view.is_selected(row)]
        return row.channel

    assert ["c1", "c5", "c9", "c9", "c8", "c4", "c0", "c0"] == [
        selected(key)
        for key in ("down", "page down", "page down", "down", "up", "page up", "page up", "up")
    ]
    assert "c9" == selected("end")
    assert "c0" == selected("home")
    selected("page down")
    assert "c0" == selected("c")
    selected("page down")
    assert "c9" == selected("c")


def test_a_selection_follows_its_row() -> None:
    """Rows may change places between two samples; before any key the first place stays selected."""
    view = View("depth")
    before = [
        row_of("t", "a", depth=3),
        row_of("t", "b", depth=2),
        row_of("t", "c", depth=1),
    ]
    now = [
        row_of("t", "a", depth=3),
        row_of("t", "b", depth=9),
        row_of("t", "c", depth=5),
    ]

    assert "a" == view.page(before, 9)[0].channel
    assert view.is_selected(view.page(now, 9)[0])
    view.page(before, 9)
    view.press("down", 9)
    assert ["b"] == [row.channel for row in view.page(now, 9) if view.is_selected(row)]
    assert ["b"] == [row.channel for row in view.page(before, 9) if view.is_selected(row)]


def test_a_filter_is_typed_until_enter_or_esc() -> None:
    """The filter matches topic, channel and state in any case; until Enter or Esc keys are text."""
    view = View("topic")
    rows = [
        row_of("clicks", "archive", clients=1),
        row_of("Orders", "mail"),
        row_of("orders", "b2-x#e"),
    ]

    def shown(*keys: str) -> list[str]:
        for key in keys:
            view.press(key, 9)
        return [row.channel for row in view.page(rows, 9)]

    assert ["mail", "b2-x#e"] == shown("/", "o", "R", "d")
    assert ["mail", "b2-x#e"] == shown("q", "backspace", "enter")
    assert not view.is_typing
    assert (2, "oRd") == (view.matching, view.filter)
    assert ["mail", "archive", "b2-x#e"] == shown("escape")
    assert ["b2-x#e"] == shown("/", *"b2-x#")
    assert 3 == len(shown("escape"))
    assert ["mail", "b2-x#e"] == shown("/", *"no", "space", *"cons")
    assert ["mail", "b2-x#e"] == shown("up")
    assert [] == shown(*"zzz", "enter")
    assert [] == shown("enter", "down", "end")
    assert view.opened is None


def test_a_channel_is_opened_and_closed() -> None:
    """Enter opens the selected row, the list's keys do nothing in it, Esc closes it."""
    view = View("topic")
    view.page(ROWS, 9)
    view.press("down", 9)
    view.page(ROWS, 9)

    view.press("enter", 9)
    assert ("a", "y") == view.opened
    for key in ("d", "page down", "up", "space"):
        view.press(key, 9)
    assert 8 == view.first
    view.press("home", 9)
    assert 0 == view.first
    view.press("escape", 9)
    assert view.opened is None
    assert view.column is BY_NAME["topic"]


def test_a_space_freezes_the_screen() -> None:
    """The next one ends that."""
    view = View()
    view.press("space", 10)
    assert view.is_frozen
    view.press("space", 10)
    assert not view.is_frozen


def test_figures_are_formatted() -> None:
    """Thousands have commas, times have units, unknown values are a dash."""
    assert ["0", "0.4", "9.9", "10", "12,345", "-"] == [
        rate(value) for value in (0.0, 0.4, 9.94, 10.2, 12_345.4, None)
    ]
    times = (0, 0.04, 59.9, 61, 3_599.9, 7_260, 187_200, None)
    assert ["0s", "0.0s", "59.9s", "1m01s", "1h00m", "2h01m", "2d04h", "-"] == [
        duration(seconds) for seconds in times
    ]
    expected = ["a", "y", "-", "-", "7", "0", "2", "-", "-", "1.0", "0", "yes", "paused"]
    assert expected == [column.text(ROWS[1]) for column in COLUMNS]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_column_is_named_by_its_heading(name: str) -> None:
    """The heading is accepted in any case; a space may be a dash or an underscore."""
    heading = BY_NAME[name].heading
    for text in (heading, heading.lower(), heading.replace(" ", "-"), heading.replace(" ", "_")):
        assert name == column_name(text)
    assert name == column_name(heading.removesuffix("/S"))
    assert name == column_name(name)


def test_a_column_that_is_not_there_is_refused() -> None:
    """The error lists all columns."""
    with pytest.raises(ValueError, match="column must be one of topic, channel, in, "):
        column_name("flight")
