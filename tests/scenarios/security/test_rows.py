"""Checks of the security table and the tests' marks."""

from tests.scenarios.security import rows


def test_every_row_has_a_check() -> None:
    """At least one test is marked with each row."""
    found = {name for name, _ in rows.marked()}

    assert [] == [name for name in rows.ROWS if name not in found]


def test_every_marked_row_is_in_the_table() -> None:
    """Every marked row is in the table: a misspelt one would not be counted."""
    assert [] == [place for name, place in rows.marked() if name not in rows.ROWS]


def test_make_security_runs_every_check() -> None:
    """Every marked test is in a file or folder that `make security` runs."""
    paths = rows.run_paths()
    assert "tests/scenarios/security" in paths
    files = {place.rpartition(":")[0] for _, place in rows.marked()}

    assert [] == [file for file in sorted(files) if not file.startswith(tuple(paths))]
