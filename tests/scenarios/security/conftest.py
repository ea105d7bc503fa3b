"""What the checks of the security table have in common.

    @pytest.mark.security("N-3")

A run that contains such tests ends with `security checks N, passed N`, and below it what each check
has to show: what it gave to `shows`.
"""

from collections.abc import Callable

import pytest

from tests.scenarios.security import rows


@pytest.fixture
def shows(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Have a figure of this check in the summary."""
    names = ", ".join(request.node.get_closest_marker(rows.MARKER).args)
    return lambda text: record_property(rows.FIGURE, f"{names}: {text}")
