"""The table of NSQ's behaviours matches the marks in the tests.

Only a reader can judge whether a marked test asserts its behaviour; this test checks the names.
"""

from tests.support.behaviours import ALL, LEFT_OUT, TESTS, places


def test_every_behaviour_has_either_a_test_or_a_reason() -> None:
    """Every behaviour that NSQ's tests assert has a test or a reason; no mark is misspelt."""
    marked = places(sorted(TESTS.rglob("*.py")))

    assert sorted(ALL) == sorted([*marked, *LEFT_OUT])
