"""docs/clients.md is what the run of the clients' tests comes to."""

from pathlib import Path

from tests.scenarios.interop import matrix


def test_the_page_is_what_the_tests_hold() -> None:
    """The committed page is the expected outcome of every cell; `make interop` writes it."""
    assert matrix.render(matrix.expected()) == matrix.PAGE.read_text()


def test_every_reason_belongs_to_a_cell() -> None:
    """A reason is given once, for a client and a feature that exist."""
    tables = (matrix.ABSENT, matrix.BROKEN, matrix.NOTES)
    reasoned = [one for table in tables for one in table]

    assert len(set(reasoned)) == len(reasoned)
    assert set(matrix.SYMPTOMS) == set(matrix.BROKEN)
    assert all(name in matrix.CLIENTS and of in matrix.FEATURES for name, of in reasoned)


def test_another_outcome_makes_another_page(tmp_path: Path) -> None:
    """A cell that came out differently is on the page, with its neighbours as they were."""
    page = tmp_path / "clients.md"
    matrix.write(matrix.expected(), page)
    before = page.read_text()

    matrix.write({**matrix.expected(), ("pynsq", "touch"): matrix.FAILS}, page)

    changed = [line for line in page.read_text().splitlines() if line not in before.splitlines()]
    assert ["| pynsq 0.9.1 |"] == [line[:15] for line in changed]
    assert changed[0].count(matrix.FAILS) == 1


def test_the_same_outcome_leaves_the_page_alone(tmp_path: Path) -> None:
    """A run that changes nothing does not touch the file."""
    page = tmp_path / "clients.md"
    matrix.write(matrix.expected(), page)
    written_ns = page.stat().st_mtime_ns

    matrix.write(matrix.expected(), page)

    assert written_ns == page.stat().st_mtime_ns
