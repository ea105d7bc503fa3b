"""docs/clients.md shows the outcomes of the clients' tests."""

from pathlib import Path

from tests.scenarios.interop import matrix


def test_the_page_shows_the_expected_outcomes() -> None:
    """The committed page shows the expected outcome of every cell; `make interop` writes it."""
    assert matrix.render(matrix.expected()) == matrix.PAGE.read_text()


def test_every_reason_belongs_to_a_cell() -> None:
    """Each cell has at most one reason, and belongs to an existing client and feature."""
    tables = (matrix.ABSENT, matrix.BROKEN, matrix.NOTES)
    reasoned = [one for table in tables for one in table]

    assert len(set(reasoned)) == len(reasoned)
    assert set(matrix.SYMPTOMS) == set(matrix.BROKEN)
    assert all(name in matrix.CLIENTS and of in matrix.FEATURES for name, of in reasoned)


def test_a_changed_outcome_changes_one_row_of_the_page(tmp_path: Path) -> None:
    """A changed outcome changes only that client's row of the page."""
    page = tmp_path / "clients.md"
    matrix.write(matrix.expected(), page)
    before = page.read_text()

    matrix.write({**matrix.expected(), ("pynsq", "touch"): matrix.FAILS}, page)

    changed = [line for line in page.read_text().splitlines() if line not in before.splitlines()]
    assert ["| pynsq 0.9.1 |"] == [line[:15] for line in changed]
    assert changed[0].count(matrix.FAILS) == 1


def test_the_same_outcomes_do_not_rewrite_the_page(tmp_path: Path) -> None:
    """A run with the same outcomes does not rewrite the file."""
    page = tmp_path / "clients.md"
    matrix.write(matrix.expected(), page)
    written_ns = page.stat().st_mtime_ns

    matrix.write(matrix.expected(), page)

    assert written_ns == page.stat().st_mtime_ns
