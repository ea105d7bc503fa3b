"""Know the marker of the security table, and count what is marked.

    @pytest.mark.security("N-3")

A run that contains such tests ends with `security checks N, passed N`, and below it what each check
has to show: what it gave to `shows`.
"""

from collections.abc import Callable

import pytest

from tests.security import rows


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the one who counts."""
    line = f"{rows.MARKER}(*names): checks these rows of tests/security/rows.py"
    config.addinivalue_line("markers", line)
    config.pluginmanager.register(rows.Report(), "security")


@pytest.fixture
def shows(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Have a figure of this check in the summary."""
    names = ", ".join(request.node.get_closest_marker(rows.MARKER).args)
    return lambda text: record_property(rows.FIGURE, f"{names}: {text}")
