"""Fixtures for the checks of the security table.

    @pytest.mark.security("N-3")

A run that contains such tests prints `security checks N, passed N` at its end, and then the figures
that the checks gave to `shows`.
"""

from collections.abc import Callable

import pytest

from tests.scenarios.security import rows


@pytest.fixture
def shows(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Return a function that adds a figure of this check to the summary."""
    names = ", ".join(request.node.get_closest_marker(rows.MARKER).args)
    return lambda text: record_property(rows.FIGURE, f"{names}: {text}")
