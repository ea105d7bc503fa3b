"""Tables of `sparq admin`: formatted numbers, and texts without control characters."""

from __future__ import annotations

from sparq.tools.view import table


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
