"""docs/clients.md shows which features the clients' tests have."""

from tests.scenarios.interop import matrix


def test_the_page_is_current() -> None:
    """The tables of `matrix` give this page, and have only known clients and features."""
    assert matrix.render() == matrix.PAGE.read_text()
    for name, feature in (*matrix.ABSENT, *matrix.NOTES):
        assert name in matrix.CLIENTS and feature in matrix.FEATURES
