"""The table of NSQ's behaviours against the marks in the tests' text.

That a marked test asserts its line is for its reader to judge; that none is forgotten is not.
"""

from tests.behaviours import ALL, LEFT_OUT, TESTS, marked


def marks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, place in marked(sorted(TESTS.rglob("*.py"))):
        found.setdefault(name, []).append(place)
    return found


def test_every_line_is_asserted_somewhere_or_left_out_with_a_reason() -> None:
    """No behaviour that NSQ's tests assert is forgotten."""
    found = marks()

    assert [] == [name for name in ALL if name not in found and name not in LEFT_OUT]


def test_no_mark_names_what_is_not_in_the_table() -> None:
    """A misspelt name would count for nothing."""
    assert {} == {name: places for name, places in marks().items() if name not in ALL}


def test_what_is_left_out_is_in_the_table_and_has_no_test() -> None:
    """A line that a test asserts needs no reason any more."""
    assert set() == set(LEFT_OUT) - set(ALL)
    assert set() == set(LEFT_OUT) & set(marks())


def test_no_line_stands_twice() -> None:
    """The count is a count of lines."""
    assert len(set(ALL)) == len(ALL)
