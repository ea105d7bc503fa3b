"""The table of NSQ's behaviours matches the marks in the tests.

Only a reader can judge whether a marked test asserts its behaviour; these tests check the names.
"""

from tests.support.behaviours import ALL, LEFT_OUT, TESTS, marked


def marks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, place in marked(sorted(TESTS.rglob("*.py"))):
        found.setdefault(name, []).append(place)
    return found


def test_every_behaviour_has_a_test_or_a_reason() -> None:
    """Every behaviour that NSQ's tests assert has a test or a reason here."""
    found = marks()

    assert [] == [name for name in ALL if name not in found and name not in LEFT_OUT]


def test_every_mark_names_a_behaviour() -> None:
    """A mark with a misspelt name would count for nothing."""
    assert {} == {name: places for name, places in marks().items() if name not in ALL}


def test_the_table_is_consistent() -> None:
    """No name occurs twice; a behaviour that a test asserts needs no reason for being left out."""
    assert len(set(ALL)) == len(ALL)
    assert set(LEFT_OUT) <= set(ALL) - set(marks())
