"""How figures are printed: cells, and tables with aligned columns."""

from __future__ import annotations

from sparq.tools.tables import duration, rate, table


def test_cells_are_readable() -> None:
    """Numbers are right-aligned, texts left-aligned, times have units; unknown values are "-"."""
    rows = [
        {"name": "a", "depth": 12_345, "oldest_seconds": 61, "paused": True, "body": "x"},
        {"name": "long", "depth": None, "oldest_seconds": None, "paused": False, "body": "longer"},
    ]

    assert [
        "NAME   DEPTH  OLDEST  PAUSED  BODY",
        "a     12,345   1m01s     yes  x",
        "long       -       -      no  longer",
    ] == table(("name", "depth", "oldest_seconds", "paused", "body"), rows)


def test_control_characters_are_blanks() -> None:
    """Control characters are blanks in every cell."""
    hostile = {"name": "\x1b[2J\n", "note": "a\u202eb", "depth": "\x07"}

    text = "\n".join(table(("name", "note", "depth"), [hostile]))

    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert 1 == text.count("\n")


def test_figures_are_formatted() -> None:
    """Thousands have commas, times have units, unknown values are a dash."""
    assert ["0", "0.4", "9.9", "10", "12,345", "-"] == [
        rate(value) for value in (0.0, 0.4, 9.94, 10.2, 12_345.4, None)
    ]
    times = (0, 0.04, 59.9, 61, 3_599.9, 7_260, 187_200, None)
    assert ["0s", "0.0s", "59.9s", "1m01s", "1h00m", "2h01m", "2d04h", "-"] == [
        duration(seconds) for seconds in times
    ]
